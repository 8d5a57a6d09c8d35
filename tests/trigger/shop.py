"""A small shop database for trigger tests: orders whose ``updated_at`` the database fills."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast import Holdfast, RowChange

_ORDERS = {
    "sqlite": "CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT NOT NULL, "
    "updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')))",
    "postgresql": "CREATE TABLE orders (id BIGINT PRIMARY KEY, status TEXT NOT NULL, "
    "updated_at TIMESTAMPTZ NOT NULL DEFAULT now())",
    "mysql": "CREATE TABLE orders (id BIGINT PRIMARY KEY, status VARCHAR(20) NOT NULL, "
    "updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6))",
}
_EFFECTS = "CREATE TABLE effects (order_id BIGINT NOT NULL, token BIGINT NOT NULL, batch VARCHAR(80) NOT NULL)"


class Shop:
    """An application on a fresh database, its orders and its ledger of effects."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.hf = Holdfast(url, **settings)
        self.hf.migrate()
        with self.engine.begin() as connection:
            connection.execute(text(_ORDERS[self.engine.dialect.name]))
            connection.execute(text("CREATE INDEX orders_updated ON orders (updated_at, id)"))
            connection.execute(text(_EFFECTS))

    @property
    def engine(self) -> Engine:
        return self.hf.database

    def place(self, ids: Iterable[int]) -> None:
        with self.engine.begin() as connection:
            connection.execute(
                text("INSERT INTO orders (id, status) VALUES (:id, 'new')"), [{"id": each} for each in ids]
            )

    def effects(self) -> list[int]:
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT order_id FROM effects ORDER BY order_id")).scalars())

    def close(self) -> None:
        self.hf._provider.dispose_all()


def order_ids(changes: Iterable[RowChange]) -> list[int]:
    return [int(str(change.pk["id"])) for change in changes]


RECORD_EFFECT = text("INSERT INTO effects (order_id, token, batch) VALUES (:order_id, :token, :batch)")


def effect_rows(changes: Iterable[RowChange], context: Any) -> list[dict[str, object]]:
    return [
        {"order_id": each, "token": context.fencing_token, "batch": context.batch_id} for each in order_ids(changes)
    ]
