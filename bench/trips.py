"""Round trips: what one batch asks of the source and of the state store. Counted, so the same on every machine."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from bench.holdfast_loop import application
from bench.orders import NAME, filled
from bench.report import Section, Target
from bench.scale import Scale
from holdfast import Holdfast, RowChange
from holdfast.lease.stores.sql import SqlDocumentStore
from tests.components.postgres import PostgresServer

_BATCH_SIZE = 100
_BATCHES = 20


@dataclass(slots=True)
class BatchTrips:
    """What one batch asked: SQL statements by their first word, on the source and on the state."""

    delivered: int = 0
    source: Counter[str] = field(default_factory=Counter)
    state: Counter[str] = field(default_factory=Counter)


def count_trips(app: Holdfast, trigger_name: str, batches: int) -> list[BatchTrips]:
    """Deliver ``batches`` batches under one lease and return what each asked. The state must be kept in SQL."""
    runner = app.runner(trigger_name)
    documents = app.state.documents
    assert isinstance(documents, SqlDocumentStore)
    counted = []
    with runner.leased() as lease:
        for _ in range(batches):
            trips = BatchTrips()
            with _counting(trips, documents.engine):
                trips.delivered = runner.process_batch(lease).delivered
            counted.append(trips)
    return counted


@contextmanager
def _counting(trips: BatchTrips, state_engine: Engine) -> Iterator[None]:
    """Count every statement that any engine of this process sends: what does not go to the state goes to the source."""

    def count(connection: Connection, cursor: object, statement: str, *_: object) -> None:
        counter = trips.state if connection.engine is state_engine else trips.source
        counter[statement.split(None, 1)[0].upper()] += 1

    event.listen(Engine, "before_cursor_execute", count)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", count)


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Count the trips of every batch of a catch-up."""
    orders = filled(server, scale.growth_rows[0])
    app = application(orders, _ignore, _BATCH_SIZE, max_batches_per_tick=1)
    first, *later = count_trips(app, NAME, _BATCHES)
    most = {
        "statements on the source": max(trips.source.total() for trips in later),
        "reads of the state": max(trips.state["SELECT"] for trips in later),
        "writes of the state": max(trips.state.total() - trips.state["SELECT"] for trips in later),
    }
    return Section(
        "Round trips per batch",
        [
            f"  first batch: source {dict(first.source)}, state {dict(first.state)}",
            *(f"  every later batch, at most: {value} {name}" for name, value in most.items()),
        ],
        {"first batch": {"source": dict(first.source), "state": dict(first.state)}, "later batches": most},
        [
            Target("statements on the source", most["statements on the source"], at_most=1),
            Target("reads of the state", most["reads of the state"], at_most=0),
            Target("writes of the state", most["writes of the state"], at_least=1, at_most=1),
        ],
    )


def _ignore(events: list[RowChange]) -> None:
    """Handle nothing."""
