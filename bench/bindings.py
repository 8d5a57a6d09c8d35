"""Bindings: a reader's query and a writer's batch upsert, against azure-functions-db and SQLAlchemy Core by hand."""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from azure_functions_db import DbReader as TheirReader
from azure_functions_db import DbWriter as TheirWriter
from azure_functions_db import EngineProvider as TheirProvider
from sqlalchemy import MetaData, Table, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Engine

from bench.orders import Orders, filled
from bench.report import Section, Target
from bench.rounds import Contestant, take_turns
from bench.scale import Scale
from holdfast import DbConfig, DbReader, DbWriter, EngineProvider
from tests.components.postgres import PostgresServer

QUERY = "SELECT * FROM orders"
HOLDFAST, AZURE, CORE = "Holdfast", "azure-functions-db 0.8.3", "SQLAlchemy Core"
SLOW_ROUNDS = 2  # a round of azure-functions-db's upsert takes half a minute
Row = dict[str, Any]


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Race the three at reading and at writing."""
    read_rows, write_rows, rounds = (100_000, 50_000, 7) if scale.enforces_targets else (5_000, 1_000, 1)
    orders = filled(server, read_rows)
    provider = EngineProvider()
    engine = provider.get_engine(DbConfig(connection_url=orders.url))
    readers = _readers(orders, provider, engine, rounds)
    take_turns(readers)
    writers = _writers(orders, provider, engine, write_rows, rounds)
    take_turns(writers)
    provider.dispose_all()
    read_ratios, write_ratios = _ratios("query", readers), _ratios("batch upsert", writers)
    lines = [
        *_table(f"query of {read_rows:,} rows of 6 columns", readers, read_rows, read_ratios),
        *_table(f"batch upsert of {write_rows:,} rows, half of them new", writers, write_rows, write_ratios),
    ]
    figures = {
        name: {
            "rows per second": {each.name: round(rows / each.best) for each in contestants},
            "seconds": {each.name: [round(value, 4) for value in each.seconds] for each in contestants},
            "ratios": ratios,
        }
        for name, contestants, rows, ratios in (
            ("query", readers, read_rows, read_ratios),
            ("batch upsert", writers, write_rows, write_ratios),
        )
    }
    return Section("Bindings", lines, figures, _targets({**read_ratios, **write_ratios}))


def _readers(orders: Orders, provider: EngineProvider, engine: Engine, rounds: int) -> list[Contestant]:
    theirs = TheirProvider()

    def holdfast() -> list[Row]:
        with DbReader(url=orders.url, engine_provider=provider) as reader:
            return reader.query(QUERY)

    def azure() -> list[Row]:
        with TheirReader(url=orders.url, engine_provider=theirs) as reader, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of queries without parameters
            found: list[Row] = reader.query(QUERY)
            return found

    def core() -> list[Row]:
        with engine.connect() as connection:
            return [dict(row) for row in connection.execute(text(QUERY)).mappings().all()]

    return [
        Contestant(name, functools.partial(_read, read, orders.checksum), rounds)
        for name, read in ((CORE, core), (HOLDFAST, holdfast), (AZURE, azure))
    ]


def _read(read: Callable[[], list[Row]], checksum: int) -> None:
    assert sum(row["id"] for row in read()) == checksum


def _writers(orders: Orders, provider: EngineProvider, engine: Engine, count: int, rounds: int) -> list[Contestant]:
    """Return contestants that take a table of their own for each round, half filled and already known to them."""
    with DbReader(url=orders.url, engine_provider=provider) as reader:
        rows = reader.query(f"{QUERY} ORDER BY id LIMIT {count}")
    theirs = TheirProvider()

    def holdfast(table: str) -> Callable[[list[Row]], None]:
        writer = DbWriter(url=orders.url, table=table, engine_provider=provider)
        return lambda batch: writer.upsert_many(rows=batch, conflict_columns=["id"])

    def azure(table: str) -> Callable[[list[Row]], None]:
        writer = TheirWriter(url=orders.url, table=table, engine_provider=theirs)
        return lambda batch: writer.upsert_many(rows=batch, conflict_columns=["id"])

    def core(table: str) -> Callable[[list[Row]], None]:
        reflected = Table(table, MetaData(), autoload_with=engine)
        statement = insert(reflected)
        changes = {name: statement.excluded[name] for name in rows[0] if name != "id"}
        statement = statement.on_conflict_do_update(index_elements=["id"], set_=changes)

        def write(batch: list[Row]) -> None:
            with engine.begin() as connection:
                connection.execute(statement, batch)

        return write

    contestants = []
    for name, make, turns in (
        (CORE, core, rounds),
        (HOLDFAST, holdfast, rounds),
        (AZURE, azure, min(rounds, SLOW_ROUNDS)),
    ):
        writing = _prepared(orders, name.split()[0].split("-")[0].lower(), make, rows, turns)
        contestants.append(Contestant(name, functools.partial(_write, writing, rows), turns))
    return contestants


def _prepared(
    orders: Orders, prefix: str, make: Callable[[str], Callable[[list[Row]], None]], rows: list[Row], rounds: int
) -> Iterator[Callable[[list[Row]], None]]:
    prepared = []
    with psycopg.connect(orders.dsn, autocommit=True) as connection:
        for number in range(rounds):
            table = f"{prefix}_{number}"
            connection.execute(f"CREATE TABLE {table} (LIKE orders INCLUDING ALL)".encode())
            connection.execute(f"INSERT INTO {table} SELECT * FROM orders WHERE id <= {len(rows) // 2}".encode())
            connection.execute(f"VACUUM ANALYZE {table}".encode())
            write = make(table)
            write(rows[:1])
            prepared.append(write)
        connection.execute("CHECKPOINT")
    return iter(prepared)


def _write(writing: Iterator[Callable[[list[Row]], None]], rows: list[Row]) -> None:
    next(writing)(rows)


def _ratios(what: str, contestants: Sequence[Contestant]) -> dict[str, float]:
    """Return Holdfast's speed as a multiple of the others'."""
    by_name = {each.name: each for each in contestants}
    return {
        f"{what}, {HOLDFAST} / {other}": round(by_name[HOLDFAST].speed_against(by_name[other]), 3)
        for other in (CORE, AZURE)
    }


def _table(title: str, contestants: Sequence[Contestant], rows: int, ratios: dict[str, float]) -> list[str]:
    head = [title, f"  {'':36}{'rows/s (best)':>14}{'median':>10}{'seconds':>10}"]
    lines = [
        f"  {each.name:36}{rows / each.best:>14,.0f}{rows / each.median:>10,.0f}{each.best:>10.2f}"
        for each in contestants
    ]
    return list(itertools.chain(head, lines, (f"  ratio {name}: {value:.2f}" for name, value in ratios.items()), [""]))


def _targets(ratios: dict[str, float]) -> list[Target]:
    return [Target(name, value, at_least=0.8 if name.endswith(CORE) else 1.0) for name, value in ratios.items()]
