"""What a database driver's error means, in one sentence that names the database and never its password."""

from __future__ import annotations

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from .config import safe_url
from .errors import DbConnectionError


def reason(error: SQLAlchemyError) -> str:
    """Return the first line of what the driver said: the rest may hold the statement and its values."""
    return str(getattr(error, "orig", None) or error).strip().split("\n", 1)[0].rstrip(".")


def is_connection_failure(error: DBAPIError) -> bool:
    """Return whether no connection could be made, or the one there was broke."""
    never_sent = error.statement is None and isinstance(error, (OperationalError, InterfaceError))
    return error.connection_invalidated or never_sent


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
