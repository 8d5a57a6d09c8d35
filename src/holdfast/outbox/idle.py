"""How long a transaction may stand open while its process says nothing: one that froze must not hold up the others."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection

_LIMIT = "holdfast_idle_seconds"


def limit_idle_time(connection: Connection, seconds: float) -> None:
    """Have MariaDB or MySQL end a transaction nothing is said on; said once per connection.

    On PostgreSQL this comes with the first statement of each transaction, for no round trip of its own.
    """
    if connection.dialect.name not in ("mysql", "mariadb"):
        return
    limit = max(1, int(seconds))
    if connection.info.get(_LIMIT) != limit:
        setting = "idle_transaction_timeout" if getattr(connection.dialect, "is_mariadb", False) else "wait_timeout"
        connection.execute(text(f"SET SESSION {setting} = :seconds"), {"seconds": limit})
        connection.info[_LIMIT] = limit


def limit_idle_time_of_transaction(connection: Connection, seconds: float) -> None:
    """Have the server end this transaction when nothing is said on it; a statement of its own where that is needed."""
    if connection.dialect.name == "postgresql":
        limit = {"limit": str(int(1000 * seconds))}
        connection.execute(text("SELECT set_config('idle_in_transaction_session_timeout', :limit, true)"), limit)
    else:
        limit_idle_time(connection, seconds)


def count_idle_time_again(
    _connection: Connection, cursor: Any, _statement: str, _parameters: object, _context: object, executemany: bool
) -> None:
    """Say something after several statements in one go: psycopg ends them so that PostgreSQL counts no idle time."""
    if executemany:
        cursor.connection.execute("SELECT 1")
