"""Connections for reading and changing records, their errors in our words."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ..core.errors import Ambiguous, ConfigurationError, DbConnectionError, DbError, QueryError, Unavailable, WriteError
from ..database.deadlines import limited
from ..database.errors import Failure, Kind, connection_error, translating
from ..database.pools import writing


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
        with limited(engine.connect()) as own_connection:
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
    with translated(engine, writes=True), limited(writing(engine)) as connection:
        if engine.dialect.name in ("mysql", "mariadb"):  # locks the rows that are found, and no gaps between them
            connection.execution_options(isolation_level="READ COMMITTED")
        with connection.begin():
            yield connection


def translated(engine: Engine, *, writes: bool) -> AbstractContextManager[None]:
    """Turn the driver's errors into ours; ours pass through."""
    return translating(engine, functools.partial(_as_ours, writes))


def _as_ours(writes: bool, failure: Failure) -> DbError:
    where, why = failure.where, failure.why
    match failure.kind:
        case Kind.MISSING_TABLE if failure.is_ours:
            return ConfigurationError(f"Holdfast's tables are missing in {where}. Create them with 'holdfast migrate'.")
        case Kind.MISSING_COLUMN if failure.is_ours:
            return ConfigurationError(f"Holdfast's tables in {where} are older than it is. Run 'holdfast migrate'.")
        case Kind.BROKEN if writes and isinstance(failure.error, DBAPIError):  # a COMMIT may have landed, too
            return Ambiguous(
                f"The connection to {where} broke before a change was answered: {why}. Look whether it landed before "
                "you repeat it."
            )
        case Kind.CONTENTION | Kind.READ_ONLY | Kind.DISK_FULL:
            return Unavailable(failure.sentence)
        case Kind.NO_FREE_CONNECTION:
            return DbConnectionError(failure.sentence)
        case Kind.UNREACHABLE | Kind.BROKEN:
            return connection_error(failure.url, failure.error)
    refused = getattr(failure.error, "orig", None)
    if isinstance(refused, DbError):  # a value that a column of ours refused
        return refused
    kind = WriteError if writes else QueryError
    return kind(f"The records in {where} could not be used: {why}.")
