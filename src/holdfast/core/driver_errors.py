"""What a database driver's error means, in one sentence that names the database and never its password."""

from __future__ import annotations

import re

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from .config import safe_url
from .errors import DbConnectionError

# PostgreSQL: undefined column, table or operator; a value that does not fit the type we know. ODBC: the first two.
_STALE_STATES = frozenset({"42703", "42P01", "42883", "42804", "22003", "22P02", "42S22", "42S02"})
_STALE_MYSQL = frozenset({1054, 1146})
_STALE_SQLITE = ("no such column", "has no column", "no such table")
_OUTDATED_PLAN = "cached plan must not change result type"
_BACKGROUND = re.compile(r" ?\(Background on this error at: [^)]*\)")
MOST_SESSIONS = 1000
"""More than a pool holds: how many sessions with outdated plans are thrown away before giving up."""


def reason(error: SQLAlchemyError) -> str:
    """Return the first line of what the driver said: the rest may hold the statement and its values."""
    first = str(getattr(error, "orig", None) or error).strip().split("\n", 1)[0]
    return _BACKGROUND.sub("", first).rstrip(".")


def advice(error: SQLAlchemyError) -> str:
    """Return what to do about an error that says little by itself, as a sentence to append; mostly nothing."""
    if "database is locked" in str(getattr(error, "orig", None)):
        return (
            " Another connection was writing all the while: keep transactions short, or wait longer with "
            'connect_args={"timeout": 30} in DbConfig.'
        )
    return ""


def is_connection_failure(error: DBAPIError) -> bool:
    """Return whether no connection could be made, or the one there was broke."""
    never_sent = error.statement is None and isinstance(error, (OperationalError, InterfaceError))
    return error.connection_invalidated or never_sent


def is_outdated_plan(error: BaseException | None) -> bool:
    """Return whether PostgreSQL refused a plan that the session keeps from before a column's type changed.

    The session goes on refusing it, so throw it away and try another one.
    """
    return _OUTDATED_PLAN in str(getattr(error, "orig", None))


def is_schema_change(error: BaseException | None) -> bool:
    """Return whether the database's error is what a table that changed since it was looked up gives rise to."""
    original = getattr(error, "orig", None)
    code = next(iter(getattr(original, "args", ())), None)  # pymysql and pyodbc put it first
    return (
        getattr(original, "sqlstate", None) in _STALE_STATES
        or (isinstance(code, str) and code in _STALE_STATES)
        or (isinstance(code, int) and code in _STALE_MYSQL)
        or any(words in str(original).lower() for words in _STALE_SQLITE)
        or is_outdated_plan(error)
    )


def connection_error(url: URL, error: SQLAlchemyError) -> DbConnectionError:
    """Return the error to raise when a database does not answer."""
    if url.get_backend_name() == "sqlite":
        return DbConnectionError(
            f"The SQLite file {safe_url(url)} cannot be used: {reason(error)}. Check that the path is right, that it "
            "is a database, and that no other process holds it locked."
        )
    return DbConnectionError(
        f"The database {safe_url(url)} does not answer: {reason(error)}. Check that it runs, its address and the "
        "credentials."
    )
