"""Catch-up: how fast a table that was never read is delivered, against loops by hand and azure-functions-db."""

from collections.abc import Sequence

from bench import azure_functions_db_loop, holdfast_loop, psycopg_loops
from bench.orders import Orders, filled
from bench.report import Section, Target
from bench.rounds import Contestant, take_turns
from bench.scale import Scale
from tests.components.postgres import PostgresServer

BATCH_SIZES = (100, 1000)
TUPLES, DICTS, HAND = "psycopg tuples", "psycopg dict rows", "psycopg dict rows, own checkpoint"
AZURE = "azure-functions-db 0.8.3"
COUNTS, AFTER, IDENTITY = "Holdfast, counts", "Holdfast, reads after", "Holdfast, reads after and event_id"


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Race everybody at each batch size."""
    orders = filled(server, scale.catchup_rows)
    lines = []
    figures = {}
    ratios: dict[str, float] = {}
    for batch_size in BATCH_SIZES:
        contestants = _contestants(orders, batch_size, scale.catchup_rounds)
        take_turns(contestants)
        by_name = {contestant.name: contestant for contestant in contestants}
        ratios = _ratios(by_name)
        lines += _table(orders, batch_size, contestants, ratios)
        figures[f"batch {batch_size}"] = {
            "rows per second": {name: round(orders.rows / item.best) for name, item in by_name.items()},
            "seconds": {name: [round(value, 4) for value in item.seconds] for name, item in by_name.items()},
            "ratios": ratios,
        }
    return Section(f"Catch-up of {orders.rows:,} rows of 6 columns", lines, figures, _targets(ratios))


def _contestants(orders: Orders, batch_size: int, rounds: int) -> list[Contestant]:
    slow_rounds = min(rounds, 4 if batch_size >= 1000 else 2)  # a round of azure-functions-db takes up to a minute
    return [
        Contestant(TUPLES, psycopg_loops.tuple_loop(orders, batch_size), rounds),
        Contestant(COUNTS, holdfast_loop.catch_up(orders, batch_size, lambda tally: tally.count), rounds),
        Contestant(DICTS, psycopg_loops.dict_loop(orders, batch_size), rounds),
        Contestant(HAND, psycopg_loops.dict_loop_with_checkpoint(orders, batch_size), rounds),
        Contestant(AFTER, holdfast_loop.catch_up(orders, batch_size, lambda tally: tally.read_after), rounds),
        Contestant(IDENTITY, holdfast_loop.catch_up(orders, batch_size, lambda tally: tally.read_identity), rounds),
        Contestant(AZURE, azure_functions_db_loop.after_loop(orders, batch_size), slow_rounds),
    ]


def _ratios(by_name: dict[str, Contestant]) -> dict[str, float]:
    """Return Holdfast's speed as a multiple of the others'."""
    return {
        f"{ours} / {theirs}": round(by_name[ours].speed_against(by_name[theirs]), 3)
        for theirs in (DICTS, HAND, AZURE)
        for ours in (COUNTS, AFTER, IDENTITY)
    }


def _table(orders: Orders, batch_size: int, contestants: Sequence[Contestant], ratios: dict[str, float]) -> list[str]:
    lines = [f"batch {batch_size}", f"  {'':36}{'rows/s (best)':>14}{'median':>10}{'ms/batch':>10}"]
    batches = orders.rows / batch_size
    for item in contestants:
        best, median = orders.rows / item.best, orders.rows / item.median
        lines.append(f"  {item.name:36}{best:>14,.0f}{median:>10,.0f}{item.best / batches * 1000:>10.2f}")
    return [*lines, *(f"  ratio {name}: {value:.2f}" for name, value in ratios.items()), ""]


def _targets(ratios: dict[str, float]) -> list[Target]:
    return [
        Target(f"{AFTER} / {DICTS}, batch 1000", ratios[f"{AFTER} / {DICTS}"], at_least=0.5),
        Target(f"{AFTER} / {AZURE}, batch 1000", ratios[f"{AFTER} / {AZURE}"], at_least=10),
    ]
