"""Eight connections are enough: handlers that hold all of theirs enqueue meanwhile, and no beat is late."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from holdfast import Holdfast, Message, RowChange
from holdfast.database.connection_slots import slots_of
from tests.components.prepared import mariadb_url as mariadb_url
from tests.components.prepared import postgres_url as postgres_url
from tests.components.processes import wait_until
from tests.runtime.release_app import make
from tests.trigger.shop import Shop

MOST = 8
JOBS, ORDERS, MESSAGES = 24, 6, 6
PATIENCE_SECONDS = 30.0
OPEN = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND backend_type = 'client backend'",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE()",
}
DONE = text("INSERT INTO done (work, item) VALUES (:work, :item)")


def open_on(connection: Connection) -> int:
    """Return how many connections the server has to this database."""
    return int(connection.exec_driver_sql(OPEN[connection.dialect.name.replace("mariadb", "mysql")]).scalar_one())


@dataclass
class Crowd:
    """Handlers that hold their transactions until as many are open as there may be; then all enqueue at once."""

    hf: Holdfast
    places: int
    is_full: threading.Event = field(default_factory=threading.Event)
    most_open: int = 0
    _holding: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold_and_enqueue(self, context: Any, work: str, items: list[int]) -> None:
        context.transaction.execute(DONE, [{"work": work, "item": item} for item in items])
        with self._lock:
            self._holding += 1
            if self._holding >= self.places:
                self.is_full.set()
        assert self.is_full.wait(PATIENCE_SECONDS)
        for item in items:
            self.after.enqueue(work=work, item=item)  # on a connection of its own
        self.most_open = max(self.most_open, open_on(context.transaction))
        with self._lock:
            self._holding -= 1

    def declare(self) -> None:
        hf = self.hf

        @hf.job("after", lease_seconds=3)
        def after(context: Any, work: str, item: int) -> None:
            context.transaction.execute(DONE, {"work": f"after {work}", "item": item})

        @hf.job("crowd", lease_seconds=3)
        def job(context: Any, item: int) -> None:
            self.hold_and_enqueue(context, "job", [item])

        @hf.trigger("orders", cursor="updated_at", lease_seconds=3, poll_seconds=0.05, horizon_margin_seconds=0.1)
        def trigger(changes: list[RowChange], context: Any) -> None:
            self.hold_and_enqueue(context, "trigger", [int(str(each.pk["id"])) for each in changes])

        @hf.processor("crowd", lease_seconds=3, poll_seconds=0.05, batch_size=2, start_from="beginning")
        def processor(messages: list[Message], context: Any) -> None:
            self.hold_and_enqueue(context, "message", [message.data["item"] for message in messages])

        self.after, self.job = after, job

    def ask(self, shop: Shop) -> None:
        shop.place(range(1, ORDERS + 1))
        self.job.enqueue_many({"item": item} for item in range(JOBS))
        with self.hf.database.begin() as connection:
            for item in range(MESSAGES):
                self.hf.outbox.append(connection, "Placed", {"item": item})

    def expected(self) -> set[tuple[str, int]]:
        first = {
            *(("job", item) for item in range(JOBS)),
            *(("trigger", item) for item in range(1, ORDERS + 1)),
            *(("message", item) for item in range(MESSAGES)),
        }
        return first | {(f"after {work}", item) for work, item in first}

    def done(self) -> list[tuple[str, int]]:
        with self.hf.database.connect() as connection:
            return [(row.work, row.item) for row in connection.execute(text("SELECT work, item FROM done"))]


@contextmanager
def running(hf: Holdfast, concurrency: int | None = None) -> Iterator[None]:
    thread = threading.Thread(target=lambda: hf.run(handle_signals=False, concurrency=concurrency))
    thread.start()
    try:
        yield
    finally:
        hf.stop()
        thread.join(60)
    assert not thread.is_alive()


@pytest.fixture(params=["postgres_url", "mariadb_url"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    found = Shop(request.getfixturevalue(request.param))
    with found.engine.begin() as connection:
        connection.execute(text("CREATE TABLE done (work VARCHAR(30) NOT NULL, item BIGINT NOT NULL)"))
    yield found
    found.close()


def url_of(shop: Shop) -> str:
    return shop.engine.url.render_as_string(hide_password=False)


@pytest.mark.parametrize("concurrency", [None, 12], ids=["default", "more than connections"])
def test_handlers_that_hold_every_transaction_and_enqueue_at_once_all_complete(
    shop: Shop, concurrency: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    hf = Holdfast(url_of(shop), max_connections=MOST)
    places = slots_of(hf.database)
    assert places is not None
    crowd = Crowd(hf, places._free)
    crowd.declare()
    crowd.ask(shop)
    shop.engine.dispose()  # the test's own connections do not count
    with caplog.at_level(logging.WARNING, "holdfast"), running(hf, concurrency):
        wait_until(lambda: set(crowd.done()) == crowd.expected(), "everything that was asked for", 60)
        wait_until(lambda: not any(sum(topic.jobs.values()) for topic in hf.jobs.stats()), "the last report")
    done = crowd.done()
    assert sorted(done) == sorted(crowd.expected())  # nothing twice: no lease was lost
    assert crowd.is_full.is_set()
    assert 0 < crowd.most_open <= MOST
    with hf.database.connect() as connection:
        ends = set(connection.execute(text("SELECT status FROM holdfast_history")).scalars())
        assert ends == {"Succeeded"}  # no attempt was charged
    assert [record.getMessage() for record in caplog.records if "lost" in record.getMessage()] == []
    hf._provider.dispose_all()


def test_an_idle_process_with_every_workload_holds_at_most_eight_connections(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        connection.execute(text("DROP TABLE done"))
        connection.execute(
            text(
                "CREATE TABLE done (app VARCHAR(9) NOT NULL, release_number INTEGER NOT NULL, "
                "work VARCHAR(9) NOT NULL, item BIGINT NOT NULL, status VARCHAR(20) NOT NULL)"
            )
        )
    shop.place(range(1, 4))
    hf = make(url_of(shop), "a", 1)
    with hf.database.begin() as connection:
        hf.outbox.append(connection, "OrderPlaced", {"item": 1}, correlation_id="order-1")
    shop.engine.dispose()
    with running(hf):
        wait_until(lambda: _works_done(hf) >= {"orders", "placed", "billed"}, "each workload has worked", 60)
        with hf.database.connect() as connection:
            assert 0 < open_on(connection) <= MOST
    hf._provider.dispose_all()


def _works_done(hf: Holdfast) -> set[str]:
    with hf.database.connect() as connection:
        return set(connection.execute(text("SELECT work FROM done")).scalars())
