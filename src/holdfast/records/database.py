"""Connections for reading and changing records, their errors in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from ..core.config import safe_url
from ..core.driver_errors import connection_error, is_connection_failure, reason
from ..core.engine import writing
from ..core.errors import Ambiguous, ConfigurationError, DbConnectionError, DbError, QueryError, Unavailable, WriteError

_MISSING_TABLE = ("no such table", "does not exist", "doesn't exist")
_MISSING_COLUMN = ("no such column", "unknown column", "has no column")
_CONTENTION = ("deadlock", "locked", "lock wait timeout", "could not serialize", "lock timeout")


@contextmanager
def reading(engine: Engine, connection: Connection | None = None) -> Iterator[Connection]:
    """Yield a connection to read on: the caller's, to see what its transaction sees, or one of our own.

    Raises:
        ConfigurationError: the tables are missing.
        DbConnectionError: the database does not answer.
        QueryError: it does not take the query.
    """
    with translated(engine, writes=False):
        if connection is not None:
            yield connection
            return
        with engine.connect() as own_connection:
            yield own_connection


@contextmanager
def changing(engine: Engine) -> Iterator[Connection]:
    """Yield a connection inside one transaction: everything done on it lands together, or nothing does.

    Raises:
        ConfigurationError: the tables are missing.
        DbConnectionError: the database does not answer; nothing was written.
        Unavailable: another transaction was in the way; nothing was written.
        Ambiguous: the connection broke; the change may or may not have landed.
        WriteError: the database does not take the change; nothing was written.
    """
    with translated(engine, writes=True), writing(engine) as connection:
        if engine.dialect.name in ("mysql", "mariadb"):  # locks the rows that are found, and no gaps between them
            connection.execution_options(isolation_level="READ COMMITTED")
        with connection.begin():
            yield connection


@contextmanager
def translated(engine: Engine, *, writes: bool) -> Iterator[None]:
    """Turn the driver's errors into ours; ours pass through."""
    try:
        yield
    except PoolTimeoutError as error:
        raise DbConnectionError(f"No free connection to {safe_url(engine.url)}: raise pool_size.") from error
    except DBAPIError as error:
        raise _as_ours(engine, error, writes) from error
    except engine.dialect.loaded_dbapi.Error as error:  # from preparing a pooled connection: nothing was sent
        raise DbConnectionError(f"{safe_url(engine.url)} does not answer: {error}. Check that it runs.") from error
    except SQLAlchemyError as error:
        ours = getattr(error, "orig", None)
        if isinstance(ours, DbError):  # a value that a column of ours refused
            raise ours from None
        raise _unusable(engine, reason(error), writes) from error


def _as_ours(engine: Engine, error: DBAPIError, writes: bool) -> DbError:
    why, where = reason(error), safe_url(engine.url)
    if "holdfast_" in why and any(hint in why for hint in _MISSING_TABLE):
        return ConfigurationError(f"Holdfast's tables are missing in {where}. Create them with 'holdfast migrate'.")
    if "holdfast_" in why and any(hint in why.lower() for hint in _MISSING_COLUMN):
        return ConfigurationError(f"Holdfast's tables in {where} are older than it is. Run 'holdfast migrate'.")
    if writes and error.connection_invalidated:  # a COMMIT has no statement, and may have landed like any other
        return Ambiguous(
            f"The connection to {where} broke before a change was answered: {why}. Look whether it landed before you "
            "repeat it."
        )
    if any(hint in why.lower() for hint in _CONTENTION):
        return Unavailable(f"{where} was busy: {why}. Nothing was changed; try again.")
    if is_connection_failure(error):
        return connection_error(engine.url, error)
    return _unusable(engine, why, writes)


def _unusable(engine: Engine, why: str, writes: bool) -> DbError:
    kind = WriteError if writes else QueryError
    return kind(f"The records in {safe_url(engine.url)} could not be used: {why}.")
