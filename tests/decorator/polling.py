"""Triggers for decorator tests: orders read by their id, so that what is committed is delivered at once."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast, SqlAlchemySource, StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.binding.databases import Database


def make_orders(database: Database) -> None:
    """Create the table that is polled and one to write to."""
    database.execute("CREATE TABLE orders (id integer PRIMARY KEY, status varchar(20) NOT NULL)")
    database.execute("CREATE TABLE effects (order_id integer PRIMARY KEY, note varchar(40))")


def place(database: Database, *ids: int) -> None:
    """Place new orders."""
    for each in ids:
        database.execute("INSERT INTO orders VALUES (:id, 'new')", id=each)


def effects(database: Database) -> list[int]:
    """Return the ids of orders that a handler has dealt with."""
    return [row[0] for row in database.rows("SELECT order_id FROM effects ORDER BY order_id")]


def polling(database: Database, state: StateStore | None = None) -> dict[str, Any]:
    """Return a source and a store for a trigger."""
    source = SqlAlchemySource(
        url=database.url,
        table="orders",
        cursor_column="id",
        pk_columns=["id"],
        horizon="none",
        engine_provider=database.provider,
    )
    return {"source": source, "checkpoint_store": state or StateStore(MemoryDocumentStore())}


def state_in(database: Database) -> tuple[Holdfast, StateStore]:
    """Return state that is kept in the database, and the application to close after the test."""
    app = Holdfast(database.url)
    app.migrate()
    return app, app.state
