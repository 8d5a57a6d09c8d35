"""Another MariaDB server that takes over with fewer rows is noticed by its binary log: its GTIDs are its own."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence

import pytest
from sqlalchemy import text
from sqlalchemy.engine import create_engine

from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.trigger.history_watch import HistoryWatch
from tests.components.mariadb import MariadbServer
from tests.components.processes import wait_until
from tests.trigger.failing_over import Reader

pytestmark = pytest.mark.component("mariadb")
SERVER_IDS = itertools.count(100)
KEPT, LOST, ADDED = range(5), range(5), range(8)


class Server(MariadbServer):
    """A server that can come back under another number."""

    extra: Sequence[str] = ()

    def _command(self) -> Sequence[str]:
        return [*super()._command(), *self.extra]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as own:
        yield own


def place(url: str, rows: Iterable[int]) -> None:
    engine = create_engine(url)
    for _ in rows:
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO orders () VALUES ()"))
    engine.dispose()


def lose_five(server: Server) -> list[int]:
    """Deliver ten orders, have another server go on from five of them, place eight more; return what was delivered."""
    url = server.url(server.create_database())
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY)"))
    engine.dispose()
    reader = Reader(url, MemoryDocumentStore(), cursor="id")
    place(url, KEPT)
    run_until(reader, 5)
    copy = server.data.with_name("copy")
    server.stop(immediate=False)
    subprocess.run(["cp", "-a", server.data, copy], check=True)
    server.start()
    place(url, LOST)
    run_until(reader, 10)
    assert reader.seen == [*range(1, 11)]
    server.stop(immediate=False)
    shutil.rmtree(server.data)
    copy.rename(server.data)
    server.extra = (f"--server-id={next(SERVER_IDS)}",)
    server.start()
    place(url, ADDED)
    run_until(reader, 13)
    reader.close()
    return reader.seen


def run_until(reader: Reader, order: int) -> None:
    """Deliver until an order comes: a row is read once everybody who was at work then has ended."""

    def has_come() -> bool:
        reader.run_after_death()
        return order in reader.seen

    wait_until(has_come, f"order {order} was delivered")


def test_a_server_that_went_back_hides_nothing(server: Server) -> None:
    assert lose_five(server) == [*range(1, 11), *range(6, 14)]


def test_without_the_guard_rows_are_lost(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HistoryWatch, "read", lambda self, lease, fetch: fetch())
    assert lose_five(server) == [*range(1, 11), 11, 12, 13]
