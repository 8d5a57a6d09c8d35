"""What a careful person would write by hand: a keyset loop on psycopg, without lease, horizon or checkpoint."""

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.rows import dict_row, tuple_row

from bench.orders import Orders

_FIRST = "SELECT * FROM orders ORDER BY updated_at, id LIMIT %s"
_NEXT = "SELECT * FROM orders WHERE (updated_at, id) > (%s, %s) ORDER BY updated_at, id LIMIT %s"
_ID, _UPDATED_AT = 0, 5


def tuple_loop(orders: Orders, batch_size: int) -> Callable[[], None]:
    """Return a loop over tuples."""
    return _loop(orders, batch_size, tuple_row, _ID, _UPDATED_AT)


def dict_loop(orders: Orders, batch_size: int) -> Callable[[], None]:
    """Return a loop over dictionaries: what Holdfast's ``event.after`` is compared with."""
    return _loop(orders, batch_size, dict_row, "id", "updated_at")


def _loop(orders: Orders, batch_size: int, row_factory: Any, key: int | str, cursor: int | str) -> Callable[[], None]:
    connection = psycopg.connect(orders.dsn, autocommit=True, row_factory=row_factory)

    def run() -> None:
        total = 0
        rows: list[Any] = connection.execute(_FIRST, [batch_size]).fetchall()
        while rows:
            for row in rows:
                total += row[key]
            last = rows[-1]
            rows = connection.execute(_NEXT, [last[cursor], last[key], batch_size]).fetchall()
        assert total == orders.checksum

    return run
