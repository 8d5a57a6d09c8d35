"""``trigger adopt`` keeps the place after a restore or a move, and ``show`` says that nothing runs until then."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast, RowChange
from holdfast.core.errors import FingerprintMismatchError, RestoredSourceError
from holdfast.core.types import JsonObject
from holdfast.lease.document import TOKENS_LEFT_OUT
from tests.cli.desk import Desk


class Orders:
    """A file of orders, and what a trigger over it has delivered; its state is in the application's database."""

    def __init__(self, file: Path, seen: list[int]) -> None:
        self.url = f"sqlite:///{file}"
        self.seen = seen
        self._file = file
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT)")

    def place(self, ids: Iterable[int]) -> None:
        with closing(sqlite3.connect(self._file)) as connection, connection:
            connection.executemany("INSERT INTO orders VALUES (?)", [(each,) for each in ids])

    def declare(self, hf: Holdfast, where: str | None = None) -> None:
        def take(changes: list[RowChange]) -> None:
            self.seen.extend(int(str(change.pk["id"])) for change in changes)

        hf.trigger("orders", url=self.url, cursor="id", key="id", where=where)(take)


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path / "orders.db", [])


def restore_behind(desk: Desk) -> None:
    """Make the checkpoint look as one of a history of which the file has nothing, with no former place."""

    def changed(found: JsonObject) -> JsonObject:
        history = {**found["history"], "position": {"gone": 7}, "recent": []}
        return {**found, "history": history, "revision": found["revision"] + 1}

    document = desk.hf.state.document("orders")
    document.read()
    document.apply(lambda found, now: changed(found))


def test_a_restored_source_is_shown_and_adopted(desk: Desk, orders: Orders) -> None:
    orders.declare(desk.hf)
    orders.place([1, 2])
    desk.hf.runner("orders").tick()
    shown = desk("trigger", "show", "orders", "--json").json["source"]
    assert shown["refused_since_restore"] is None
    assert shown["capability"]["notices_restore"]
    desk.refused(2, "nothing to adopt", arguments=("trigger", "adopt", "orders", "--yes"))
    restore_behind(desk)
    orders.place([3])
    with pytest.raises(RestoredSourceError):
        desk.hf.runner("orders").tick()
    told = desk("trigger", "show", "orders")
    assert "holdfast trigger adopt orders" in " ".join(told.out.split())
    assert "not known" in told.out
    assert desk("trigger", "adopt", "orders", typed="something else").code == 3
    assert desk("trigger", "adopt", "orders", typed="orders").code == 0
    desk.hf.runner("orders").tick()
    assert orders.seen == [1, 2, 3]
    view = desk.hf.state.read("orders")
    assert view is not None
    assert view.document["lease"]["fencing_token"] > TOKENS_LEFT_OUT
    assert [row["action"] for row in desk("audit", "list", "--json").items] == ["trigger adopt"]


def test_the_same_rows_in_a_database_of_another_name_are_adopted(
    desk: Desk, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.declare(desk.hf)
    orders.place([1, 2])
    desk.hf.runner("orders").tick()
    moved = Orders(tmp_path / "moved.db", orders.seen)
    moved.place([1, 2, 3])
    hf = Holdfast(str(desk.hf.database.url.render_as_string(hide_password=False)), engine_provider=desk.hf._provider)
    moved.declare(hf)
    with pytest.raises(FingerprintMismatchError, match="holdfast trigger adopt orders"):
        hf.runner("orders").tick()
    monkeypatch.setattr(sys.modules["desk_application"], "hf", hf)
    assert desk("trigger", "adopt", "orders", "--yes").code == 0
    hf.runner("orders").tick()
    assert orders.seen == [1, 2, 3]


def test_other_rows_are_not_adopted(desk: Desk, orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.declare(desk.hf)
    orders.place([1, 2])
    desk.hf.runner("orders").tick()
    hf = Holdfast(str(desk.hf.database.url.render_as_string(hide_password=False)), engine_provider=desk.hf._provider)
    orders.declare(hf, where="id > 1")
    with pytest.raises(FingerprintMismatchError) as refused:
        hf.runner("orders").tick()
    assert "adopt" not in str(refused.value)
    monkeypatch.setattr(sys.modules["desk_application"], "hf", hf)
    answer = desk("trigger", "adopt", "orders", "--yes")
    assert answer.code != 0
    assert "other rows" in answer.err
