"""Connections for reading and changing records, their errors in our words."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ..core.errors import Ambiguous, ConfigurationError, DbConnectionError, DbError, QueryError, Unavailable, WriteError
from ..database.deadlines import limited
from ..database.errors import Answer, Failure, Kind, connection_error, translating
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


_MISSING = {
    Kind.MISSING_TABLE: "Holdfast's tables are missing in {where}. Create them with 'holdfast migrate'.",
    Kind.MISSING_COLUMN: "Holdfast's tables in {where} are older than it is. Run 'holdfast migrate'.",
}
_ANSWERS: dict[Kind, Answer] = {
    **{kind: (ConfigurationError, words) for kind, words in _MISSING.items()},
    **dict.fromkeys((Kind.CONTENTION, Kind.NOT_READY, Kind.READ_ONLY, Kind.DISK_FULL), (Unavailable, "{sentence}")),
    Kind.NO_FREE_CONNECTION: (DbConnectionError, "{sentence}"),
}


def _as_ours(writes: bool, failure: Failure) -> DbError:
    refused = getattr(failure.error, "orig", None)
    if isinstance(refused, DbError):  # a value that a column of ours refused
        return refused
    if failure.kind is Kind.BROKEN and writes and isinstance(failure.error, DBAPIError):  # also by a COMMIT
        return Ambiguous(
            f"The connection to {failure.where} broke before a change was answered: {failure.why}. Look whether it "
            "landed before you repeat it."
        )
    if failure.kind in (Kind.UNREACHABLE, Kind.BROKEN):
        return connection_error(failure.url, failure.error)
    error = WriteError if writes else QueryError
    return failure.answered(_ANSWERS, (error, "The records in {where} could not be used: {why}."))
