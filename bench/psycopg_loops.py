"""What a careful person would write by hand: keyset loops on psycopg, without lease, fence or horizon."""

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.rows import dict_row

from bench.orders import Orders

_FIRST = "SELECT * FROM orders ORDER BY updated_at, id LIMIT %s"
_NEXT = "SELECT * FROM orders WHERE (updated_at, id) > (%s, %s) ORDER BY updated_at, id LIMIT %s"
_CHECKPOINTS = "CREATE TABLE IF NOT EXISTS checkpoint_by_hand (updated_at timestamptz, id bigint)"
_START = "INSERT INTO checkpoint_by_hand SELECT NULL, NULL WHERE NOT EXISTS (SELECT FROM checkpoint_by_hand)"
_COMMIT = "UPDATE checkpoint_by_hand SET updated_at = %s, id = %s"
_ID, _UPDATED_AT = 0, 5

Keep = Callable[[Any, Any], object]


def tuple_loop(orders: Orders, batch_size: int) -> Callable[[], None]:
    """Return a loop over tuples that remembers nothing."""
    connection = psycopg.connect(orders.dsn, autocommit=True)
    return _loop(orders, batch_size, connection, _ID, _UPDATED_AT, _forget)


def dict_loop(orders: Orders, batch_size: int) -> Callable[[], None]:
    """Return a loop over dictionaries that remembers nothing: what Holdfast's ``event.after`` is compared with."""
    return _loop(orders, batch_size, _dict_connection(orders), "id", "updated_at", _forget)


def dict_loop_with_checkpoint(orders: Orders, batch_size: int) -> Callable[[], None]:
    """Return a loop over dictionaries that commits where it stands after each batch, as anything durable must."""
    connection = _dict_connection(orders)
    connection.execute(_CHECKPOINTS)
    connection.execute(_START)
    return _loop(
        orders,
        batch_size,
        connection,
        "id",
        "updated_at",
        lambda cursor, key: connection.execute(_COMMIT, [cursor, key]),
    )


def _dict_connection(orders: Orders) -> psycopg.Connection[Any]:
    return psycopg.connect(orders.dsn, autocommit=True, row_factory=dict_row)


def _forget(cursor: object, key: object) -> None:
    """Remember nothing."""


def _loop(
    orders: Orders, batch_size: int, connection: psycopg.Connection[Any], key: int | str, cursor: int | str, keep: Keep
) -> Callable[[], None]:
    def run() -> None:
        total = 0
        rows = connection.execute(_FIRST, [batch_size]).fetchall()
        while rows:
            for row in rows:
                total += row[key]
            last = rows[-1]
            keep(last[cursor], last[key])
            rows = connection.execute(_NEXT, [last[cursor], last[key], batch_size]).fetchall()
        assert total == orders.checksum

    return run
