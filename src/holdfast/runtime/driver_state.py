"""What a driver knows of its connection by itself, without asking the server: looking costs nothing.

Nothing is known of other drivers: then only the proof at the end of a transaction shows it.
"""

from __future__ import annotations

import sqlite3
from typing import Any

_PSYCOPG_IDLE = 0
_PYMYSQL_IN_TRANSACTION = 1


def is_idle(kind: str, driver: Any) -> bool:
    """Return whether a connection is in no transaction, as far as the last answer showed.

    Args:
        kind: the driver, as SQLAlchemy names it.
        driver: its connection.
    """
    match kind:
        case "psycopg":
            return bool(driver.pgconn.transaction_status == _PSYCOPG_IDLE)
        case "pymysql":
            return not driver.server_status & _PYMYSQL_IN_TRANSACTION
        case "pysqlite":
            return not (is_closed(kind, driver) or driver.in_transaction)
    return False


def is_closed(kind: str, driver: Any) -> bool:
    """Return whether a connection was closed on this side: neither by its server nor by the network."""
    match kind:
        case "psycopg":
            return bool(driver.closed and not driver.broken)
        case "pymysql":
            return bool(driver._closed)
        case "pysqlite":
            try:
                return driver.in_transaction is None
            except sqlite3.ProgrammingError:
                return True
    return False
