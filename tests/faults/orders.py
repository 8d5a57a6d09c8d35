"""The database side of crash tests: orders that come in, effects that were recorded, and the account of both."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from holdfast import Holdfast

_TABLES = {
    "postgresql": (
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, updated_at TIMESTAMPTZ NOT NULL DEFAULT now())",
        "CREATE TABLE effects (number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, trigger_name TEXT NOT NULL, "
        "order_id BIGINT NOT NULL, token BIGINT NOT NULL)",
    ),
    "sqlite": (
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, "
        "updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')))",
        "CREATE TABLE effects (number INTEGER PRIMARY KEY, trigger_name TEXT NOT NULL, order_id INTEGER NOT NULL, "
        "token INTEGER NOT NULL)",
    ),
}


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the accepted orders in one trigger."""

    accepted: int
    delivered: int
    duplicated: int
    lost: int

    def __str__(self) -> str:
        return f"accepted {self.accepted}, delivered {self.delivered}, duplicated {self.duplicated}, lost {self.lost}"


class OrderBook:
    """A fresh database with orders and effects, and a record of every order whose commit was answered."""

    def __init__(self, url: str) -> None:
        self.hf = Holdfast(url, app_name="faults")
        self.hf.migrate()
        with self.hf.database.begin() as connection:
            for statement in _TABLES[self.hf.database.dialect.name]:
                connection.execute(text(statement))
            connection.execute(text("CREATE INDEX orders_updated ON orders (updated_at, id)"))
        self.accepted: set[int] = set()
        self._unsure: set[int] = set()
        self._next = 0

    def place(self, count: int) -> None:
        """Insert orders in one transaction; an order counts as accepted once its commit was answered or is found."""
        ids = range(self._next, self._next + count)
        self._next += count
        try:
            with self.hf.database.begin() as connection:
                connection.execute(text("INSERT INTO orders (id) VALUES (:id)"), [{"id": each} for each in ids])
        except DBAPIError:
            self._unsure.update(ids)
        else:
            self.accepted.update(ids)

    def keep_placing(self, stop: threading.Event, pause_seconds: float = 0.05) -> None:
        """Place small batches until told to stop."""
        while not stop.wait(pause_seconds):
            self.place(1 + self._next % 7)

    def settle(self) -> None:
        """Learn which orders of unanswered commits are there after all."""
        with self.hf.database.connect() as connection:
            present = set(connection.execute(text("SELECT id FROM orders")).scalars())
        self.accepted |= self._unsure & present

    def account(self, trigger_name: str) -> Account:
        """Compare the accepted orders with a trigger's effects."""
        with self.hf.database.connect() as connection:
            found = connection.execute(
                text("SELECT order_id FROM effects WHERE trigger_name = :name"), {"name": trigger_name}
            ).scalars()
            times = Counter(found)
        lost = self.accepted - set(times)
        return Account(len(self.accepted), len(times), sum(count - 1 for count in times.values()), len(lost))

    def holder_pid(self, trigger_name: str) -> int | None:
        """Return the process that holds a trigger's lease."""
        view = self.hf.state.read(trigger_name)
        if view is None or view.lease is None or view.lease.owner_id is None:
            return None
        return int(view.lease.owner_id.split("/")[1])

    def close(self) -> None:
        self.hf._provider.dispose_all()
