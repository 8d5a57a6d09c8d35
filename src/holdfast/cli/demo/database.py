"""The demo's shop database: made from ``shop.sql``, written by customers, read by the checker."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from importlib import resources
from pathlib import Path

from ...core.private_files import create_private
from .ledger import Change

_BUSY_SECONDS = 10.0
_CUSTOMERS = 5
_UPDATE_EVERY = 5
_REGULARS = 40

# Expected rows: one, the new order.
_PLACE = "INSERT INTO orders (customer_id, quantity) VALUES (?, 1) RETURNING id, version"
# Expected rows: one, the changed order.
_CHANGE = "UPDATE orders SET quantity = quantity + 1, version = version + 1 WHERE id = ? RETURNING id, version"
# Expected rows: one. What the workers have recorded so far, and by whom.
_PROGRESS = """
    SELECT (SELECT count(*) FROM deliveries),
           (SELECT count(*) FROM shipments),
           (SELECT count(*) FROM orders AS o
             WHERE NOT EXISTS (SELECT 1 FROM shipments AS s WHERE s.order_id = o.id AND s.version = o.version)),
           (SELECT process_id FROM deliveries ORDER BY rowid DESC LIMIT 1)
"""


class Shop:
    """The database file, and what the checker asks of it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        schema = resources.files(__package__).joinpath("shop.sql").read_text(encoding="utf-8")
        create_private(file)
        with closing(self.connect()) as connection:
            connection.executescript(schema)

    @property
    def url(self) -> str:
        """Return the database's URL."""
        return f"sqlite:///{self.file}"

    def connect(self) -> sqlite3.Connection:
        """Return a connection on which every statement is its own transaction."""
        return sqlite3.connect(self.file, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def records(self, table: str) -> list[tuple[int, int]]:
        """Return what a worker wrote into ``deliveries`` or ``shipments``, in order."""
        with closing(self.connect()) as connection:
            return list(connection.execute(f"SELECT order_id, version FROM {table} ORDER BY rowid"))

    def tokens(self) -> list[tuple[int, int]]:
        """Return each fencing token that was seen, with the process that held it."""
        with closing(self.connect()) as connection:
            return list(connection.execute("SELECT DISTINCT fencing_token, process_id FROM deliveries ORDER BY 1, 2"))


class Progress:
    """How far the workers are. Cheap to ask many times."""

    def __init__(self, shop: Shop) -> None:
        self._connection = shop.connect()
        self.delivered = self.shipped = self.open = 0
        self.last_process: int | None = None

    def look(self) -> None:
        """Read the present figures."""
        self.delivered, self.shipped, self.open, self.last_process = self._connection.execute(_PROGRESS).fetchone()

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()


class Customers:
    """Place and change orders until it is asked to stop. ``accepted`` holds every change the database has committed."""

    def __init__(self, shop: Shop, pause_seconds: float) -> None:
        self._connection = shop.connect()
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-customers", daemon=True)
        self.accepted: list[Change] = []

    def place(self, count: int) -> None:
        """Place ``count`` orders now."""
        for _ in range(count):
            self._write(_PLACE, len(self.accepted) % _CUSTOMERS + 1)

    def start(self) -> None:
        """Keep writing, beside whatever else happens."""
        self._thread.start()

    def stop(self) -> None:
        """Stop writing; each change is in ``accepted`` or was never made. May be called again."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_seconds):
            turn = len(self.accepted)
            if turn % _UPDATE_EVERY:
                self.place(1)
            else:
                self._write(_CHANGE, self.accepted[turn // _UPDATE_EVERY % _REGULARS][0])

    def _write(self, statement: str, parameter: int) -> None:
        order, version = self._connection.execute(statement, (parameter,)).fetchone()
        self.accepted.append((order, version))
