"""Two applications on one database, one of them deployed anew beside its old release: nothing starves or is skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from holdfast import Holdfast
from tests.components.prepared import mariadb_url as mariadb_url
from tests.components.prepared import postgres_url as postgres_url
from tests.components.prepared import sqlite_url as sqlite_url
from tests.components.processes import PythonWorker, wait_until
from tests.runtime.release_app import TOPIC
from tests.trigger.shop import Shop

_DONE = (
    "CREATE TABLE done (app VARCHAR(9) NOT NULL, release_number INTEGER NOT NULL, work VARCHAR(9) NOT NULL, "
    "item BIGINT NOT NULL, status VARCHAR(20) NOT NULL)"
)
_NOW = {"sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')", "postgresql": "clock_timestamp()", "mysql": "NOW(6)"}
Done = tuple[str, str, int, str]


class Town:
    """The database that applications 'a' and 'b' share, and what they did there."""

    def __init__(self, shop: Shop, url: str) -> None:
        self.shop, self.url = shop, url
        with shop.engine.begin() as connection:
            connection.execute(text(_DONE))

    @contextmanager
    def release(self, app: str, number: int) -> Iterator[PythonWorker]:
        environment = {"WORKER_URL": self.url, "WORKER_APP": app, "WORKER_RELEASE": str(number)}
        with PythonWorker("-m", "tests.runtime.release_app", environment=environment) as started:
            yield started

    def enqueue(self, app: str, job: str, items: Iterable[int]) -> None:
        hf = Holdfast(self.url, engine_provider=self.shop.hf._provider)
        asked: Callable[[int], None] = lambda item: None  # noqa: E731 - the handler is the worker's
        hf.job(TOPIC, name=f"{app}.{job}")(asked).enqueue_many({"item": item} for item in items)

    def place_messages(self, items: Iterable[int]) -> None:
        """Tell every application of orders, under one correlation id each."""
        with self.shop.engine.begin() as connection:
            for item in items:
                self.shop.hf.outbox.append(connection, "OrderPlaced", {"item": item}, correlation_id=f"order-{item}")

    def pay(self, last: int) -> None:
        now = _NOW[self.shop.engine.dialect.name]
        with self.shop.engine.begin() as connection:
            connection.execute(
                text(f"UPDATE orders SET status = 'paid', updated_at = {now} WHERE id <= :last"), {"last": last}
            )

    def done(self) -> Counter[Done]:
        with self.shop.engine.connect() as connection:
            rows = connection.execute(text("SELECT app, work, item, status FROM done")).all()
        return Counter((row.app, row.work, int(row.item), row.status) for row in rows)

    def wait_for(self, expected: set[Done]) -> None:
        wait_until(lambda: expected <= set(self.done()), "all that was asked for")

    def releases(self, work: str) -> set[int]:
        with self.shop.engine.connect() as connection:
            found = connection.execute(text("SELECT release_number FROM done WHERE work = :work"), {"work": work})
            return {int(each) for each in found.scalars()}


@pytest.fixture(params=["sqlite_url", "postgres_url", "mariadb_url"])
def town(request: pytest.FixtureRequest) -> Iterator[Town]:
    url = request.getfixturevalue(request.param)
    shop = Shop(url)
    yield Town(shop, url)
    shop.close()


def seen(app: str, work: str, items: Iterable[int], status: str) -> set[Done]:
    return {(app, work, item, status) for item in items}


def placed_and_billed(app: str, items: range) -> set[Done]:
    return seen(app, "placed", items, "ran") | seen(app, "billed", items, "ran")


def test_13_must_show_two_applications_are_deployed_side_by_side_and_nothing_starves_or_is_skipped(town: Town) -> None:
    expected = set[Done]()
    with town.release("a", 1) as old, town.release("b", 1) as neighbour:
        town.shop.place(range(1, 21))
        town.enqueue("a", "old", range(10))
        town.enqueue("b", "old", range(10))
        town.place_messages(range(5))
        for app in ("a", "b"):
            expected |= placed_and_billed(app, range(5))
            expected |= seen(app, "orders", range(1, 21), "new") | seen(app, "old", range(10), "ran")
        town.wait_for(expected)

        with town.release("a", 2) as new:
            town.enqueue("a", "new", range(20))  # the old release has no handler for these, and leaves them alone
            town.pay(10)
            town.shop.place(range(21, 41))
            town.enqueue("a", "old", range(10, 30))
            town.enqueue("b", "old", range(10, 30))
            town.place_messages(range(5, 15))
            expected |= seen("a", "new", range(20), "ran")
            for app in ("a", "b"):
                expected |= seen(app, "orders", range(1, 11), "paid") | seen(app, "orders", range(21, 41), "new")
                expected |= seen(app, "old", range(10, 30), "ran") | placed_and_billed(app, range(15))
            expected |= seen("a", "audit", range(1, 11), "paid") | seen("a", "audit", range(11, 41), "new")
            town.wait_for(expected)
            assert old.running

            old.terminate()
            town.shop.place(range(41, 61))
            town.place_messages(range(15, 20))
            town.enqueue("a", "old", range(30, 40))
            assert old.wait() == 0
            expected |= seen("a", "old", range(30, 40), "ran") | seen("a", "audit", range(41, 61), "new")
            for app in ("a", "b"):
                expected |= seen(app, "orders", range(41, 61), "new") | placed_and_billed(app, range(20))
            town.wait_for(expected)
            for worker in (new, neighbour):
                worker.terminate()
            assert (new.wait(), neighbour.wait()) == (0, 0)
    done = town.done()
    assert set(done.values()) == {1}, "every effect is kept once"
    early = seen("a", "audit", range(1, 11), "new")  # the new trigger may have begun before these were paid
    assert expected <= set(done) <= expected | early
    assert (town.releases("new"), town.releases("audit")) == ({2}, {2})
    documents = town.shop.hf.state.documents
    assert sorted([*documents.list("state/a/"), *documents.list("state/b/")]) == [
        "state/a/audit.json",
        "state/a/orders.json",
        "state/b/orders.json",
    ]
