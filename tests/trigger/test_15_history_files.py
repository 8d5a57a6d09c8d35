"""A SQLite file that is restored from a copy: nothing that is written since is lost."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest
from sqlalchemy import inspect

from holdfast import EngineProvider, Holdfast, RowChange, SqlAlchemySource
from holdfast.core.errors import RestoredSourceError
from holdfast.database.history import READS_TABLE
from holdfast.lease.store import StateStore
from holdfast.lease.stores.file import FileDocumentStore
from holdfast.trigger.history_watch import HistoryWatch
from holdfast.trigger.runner import PollRunner

KEPT, LOST, ADDED = range(1, 6), range(6, 11), range(106, 114)


class Shop:
    """A file of orders whose ids the application hands out, and a trigger whose state is kept beside it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "orders.db"
        self.copy = folder / "copy.db"
        self.seen: list[int] = []
        self.store = StateStore(FileDocumentStore(folder / "state"), app_name="shop")
        self._run("CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER)")

    def place(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._run(f"INSERT INTO orders (number) VALUES ({number})")

    def backup(self) -> None:
        shutil.copy(self.file, self.copy)

    def restore(self) -> None:
        shutil.copy(self.copy, self.file)

    def run(self, url: str | None = None) -> None:
        """Deliver what there is, in a process of its own."""
        provider = EngineProvider()
        source = SqlAlchemySource(
            url=url or f"sqlite:///{self.file}",
            table="orders",
            cursor_column="id",
            pk_columns=["id"],
            horizon="auto",
            engine_provider=provider,
        )
        runner = PollRunner(
            name="orders",
            source=source,
            state_store=self.store,
            handler=self._take,
            batch_size=2,
            max_batches_per_tick=100,
        )
        runner.tick()
        provider.dispose_all()

    def _take(self, changes: list[RowChange]) -> None:
        self.seen += [int(str(change.after["number"])) for change in changes if change.after is not None]

    def _run(self, sql: str) -> None:
        connection = sqlite3.connect(self.file)
        with connection:
            connection.execute(sql)
        connection.close()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def lose_five(shop: Shop) -> None:
    """Deliver ten orders, go back to a copy with five, and place eight more: their ids begin at six again."""
    shop.place(KEPT)
    shop.run()
    shop.backup()
    shop.place(LOST)
    shop.run()
    shop.restore()
    shop.place(ADDED)
    shop.run()


def test_a_file_restored_from_a_copy_hides_nothing(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    lose_five(shop)
    assert shop.seen == [*KEPT, *LOST, *ADDED]
    assert "taken back" in caplog.text


def test_a_copy_made_between_two_batches_of_a_lease_is_noticed(shop: Shop) -> None:
    """Every batch is marked, not only every lease: a worker keeps its lease for days."""
    shop.place(KEPT)

    def take(changes: list[RowChange]) -> None:
        Shop._take(shop, changes)
        if len(shop.seen) == 4:
            shop.backup()
            shop.place(LOST)

    shop._take = take  # type: ignore[method-assign]  # makes a copy within the second batch
    shop.run()
    assert shop.seen == [*KEPT, *LOST]
    shop.restore()
    shop.place(ADDED)
    shop.run()
    assert shop.seen == [*KEPT, *LOST, 5, *ADDED]


def test_without_the_guard_rows_of_the_file_are_lost(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HistoryWatch, "read", lambda self, lease, fetch: fetch())
    lose_five(shop)
    assert not set(ADDED) <= set(shop.seen)


def test_a_checkpoint_without_a_place_to_go_back_to_is_refused(shop: Shop) -> None:
    """The release before has left it, so that nothing is known of the time before it."""
    shop.place(KEPT)
    shop.run()
    shop.backup()
    document = shop.store.document("orders")
    document.read()
    document.apply(lambda found, now: {key: found[key] for key in found if key != "history"} | {"revision": 99})
    shop.run()
    shop.place(LOST)
    shop.run()
    shop.restore()
    shop.place(ADDED)
    for _ in range(2):
        with pytest.raises(RestoredSourceError, match=r"restored to before that.*holdfast trigger adopt orders"):
            shop.run()
    assert shop.seen == [*KEPT, *LOST]


def test_a_file_that_cannot_be_written_is_read_and_says_so(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.place(KEPT)
    read_only = f"sqlite:///file:{shop.file}?mode=ro&uri=true"
    shop.run(read_only)
    assert shop.seen == [*KEPT]
    assert "A restore of the source of trigger 'orders' is not noticed: the file cannot be written" in caplog.text
    source = SqlAlchemySource(url=read_only, table="orders", cursor_column="id", pk_columns=["id"])
    assert not source.capability().notices_restore
    source.database.dispose()


def test_state_in_the_same_file_needs_no_mark(shop: Shop) -> None:
    shop.place(KEPT)
    hf = Holdfast(f"sqlite:///{shop.file}", engine_provider=EngineProvider())
    hf.migrate()
    shop.store = hf.state
    shop.run()
    assert shop.seen == [*KEPT]
    assert READS_TABLE not in inspect(hf.database).get_table_names()
    hf._provider.dispose_all()
