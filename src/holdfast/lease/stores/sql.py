"""State documents in a table of the team's own database (SQLite, PostgreSQL, MariaDB/MySQL, any SQLAlchemy dialect).

Expiry is decided with the database's time, and a commit can join the handler's transaction (``replace_on``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Column,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    column,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
    values,
)
from sqlalchemy.dialects.mysql import LONGBLOB
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ColumnElement

from ...core.clock import SystemClock, new_id
from ...core.errors import Ambiguous, Conflict, DbError, StateStoreError
from ...database.errors import ANSWERS_WHEN_PASSING, Answer, Failure, Kind, translating
from ...database.key_collation import KEY_TABLE
from ...database.pools import autocommit
from ..documents import ETag, Snapshot, Written
from ._names import name_of_at_most

_LONGEST_NAME = 300
metadata = MetaData()
state_table = Table(
    "holdfast_state",
    metadata,
    Column("name", String(_LONGEST_NAME), primary_key=True),
    Column("etag", String(32), nullable=False),
    Column("content", LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb"), nullable=False),
    **KEY_TABLE,
)

_DATABASE_TIME: dict[str, str] = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')",
    "postgresql": "clock_timestamp()",
    "mysql": "UTC_TIMESTAMP(6)",
    "mariadb": "UTC_TIMESTAMP(6)",
    "mssql": "SYSUTCDATETIME()",
}

_TIME_EVERY_SECONDS = 60.0
_TRANSACTION_ID = {"postgresql": "CAST(pg_current_xact_id() AS text)"}
_ANSWERS: dict[Kind, Answer] = ANSWERS_WHEN_PASSING | {
    Kind.CONSTRAINT: (Conflict, "The state document exists already."),
    Kind.MISSING_TABLE: (
        StateStoreError,
        "The table holdfast_state does not exist in {where}. Create it with 'holdfast migrate' or hf.migrate().",
    ),
    Kind.DENIED: (StateStoreError, "{sentence}"),
}


class SqlDocumentStore:
    """Documents in the table ``holdfast_state``; they survive whatever the database itself survives."""

    skew_margin_seconds: float | None = None

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        time = _DATABASE_TIME.get(engine.dialect.name)
        self._time: ColumnElement[Any] = literal_column(time) if time else func.current_timestamp()
        table = state_table
        is_named = table.c.name == bindparam("doc_name")
        self._read = select(table.c.content, table.c.etag, self._time).where(is_named)
        transaction_id = _TRANSACTION_ID.get(engine.dialect.name, "NULL")
        self._read_on = select(table.c.content, literal_column(transaction_id)).where(is_named)
        self._insert = insert(table)
        self._time_query = select(self._time)
        self._clock = SystemClock()
        self._time_asked_at = float("-inf")
        self._replace = (
            update(table)
            .where(table.c.name == bindparam("doc_name"), table.c.etag == bindparam("if_match"))
            .values(content=bindparam("new_content"), etag=bindparam("new_etag"))
        )
        self._returns_time = engine.dialect.update_returning
        if self._returns_time:
            self._replace = self._replace.returning(self._time)
        self._delete = delete(table).where(table.c.name == bindparam("doc_name"), table.c.etag == bindparam("if_match"))

    def create_table(self) -> None:
        """Create the table when it is missing."""
        with _translated(self.engine, writes=True), self.engine.begin() as connection:
            metadata.create_all(connection)

    def read(self, name: str) -> Snapshot | None:
        """Return the document with the database's time."""
        with _translated(self.engine), autocommit(self.engine) as connection:
            row = connection.execute(self._read, {"doc_name": _checked(name)}).one_or_none()
        return None if row is None else Snapshot(_as_bytes(row[0]), ETag(row[1]), _aware(row[2]))

    def create(self, name: str, content: bytes) -> Written:
        """Insert the document; ``Conflict`` when it exists."""
        etag = ETag(new_id())
        with _translated(self.engine, writes=True), autocommit(self.engine) as connection:
            connection.execute(self._insert, {"name": _checked(name), "content": content, "etag": etag})
            return Written(etag, self._present_time(connection))

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Update the document in its own transaction: one round trip."""
        with _translated(self.engine, writes=True), autocommit(self.engine) as connection:
            return self._replace_with(connection, name, content, if_match)

    @property
    def replaces_many(self) -> bool:
        """Return whether ``replace_many`` is one statement here."""
        return self.engine.dialect.name == "postgresql"

    def replace_many(self, writes: Sequence[tuple[str, bytes, ETag]]) -> dict[str, Written]:
        """Update documents by one statement on PostgreSQL; return those that had not changed, by name.

        One that is locked by someone is left out: it must not hold up the others.
        """
        etags = {_checked(name): ETag(new_id()) for name, _, _ in writes}
        given = values(
            column("name", String), column("if_match", String), column("content", LargeBinary), column("etag", String)
        )
        rows = given.data([(name, etag, content, etags[name]) for name, content, etag in writes]).alias("given")
        locked = state_table.alias("locked")
        free = select(locked.c.name).where(locked.c.name.in_(etags)).with_for_update(skip_locked=True)
        statement = (
            update(state_table)
            .where(state_table.c.name == rows.c.name, state_table.c.etag == rows.c.if_match)
            .where(state_table.c.name.in_(free))
            .values(content=rows.c.content, etag=rows.c.etag)
            .returning(state_table.c.name, self._time)
        )
        with _translated(self.engine, writes=True), autocommit(self.engine) as connection:
            return {row[0]: Written(etags[row[0]], _aware(row[1])) for row in connection.execute(statement)}

    def read_on(self, connection: Connection, name: str) -> tuple[bytes, str | None] | None:
        """Return the document as the caller's transaction sees it and, on PostgreSQL, that transaction's id."""
        with _translated(self.engine):
            row = connection.execute(self._read_on, {"doc_name": _checked(name)}).one_or_none()
        return None if row is None else (_as_bytes(row[0]), row[1])

    def replace_on(self, connection: Connection, name: str, content: bytes, if_match: ETag) -> Written:
        """Update the document inside the caller's transaction; it counts once the caller commits."""
        with _translated(self.engine):
            return self._replace_with(connection, name, content, if_match)

    def _replace_with(self, connection: Connection, name: str, content: bytes, if_match: ETag) -> Written:
        etag = ETag(new_id())
        result = connection.execute(
            self._replace,
            {"doc_name": _checked(name), "if_match": if_match, "new_content": content, "new_etag": etag},
        )
        if self._returns_time:
            row = result.one_or_none()
            changed, time = row is not None, None if row is None else _aware(row[0])
        else:
            changed, time = result.rowcount == 1, None
        if not changed:
            raise Conflict(f"The state document '{name}' changed since it was read.")
        return Written(etag, time if self._returns_time else self._time_now_and_then(connection))

    def _time_now_and_then(self, connection: Connection) -> datetime | None:
        """Return the database's time once a minute where writes cannot tell it; the machine's clock does in between."""
        if self._clock.monotonic() - self._time_asked_at < _TIME_EVERY_SECONDS:
            return None
        return self._present_time(connection)

    def _present_time(self, connection: Connection) -> datetime:
        self._time_asked_at = self._clock.monotonic()
        return _aware(connection.execute(self._time_query).scalar_one())

    def delete(self, name: str, if_match: ETag) -> None:
        """Delete the document read with ``if_match``."""
        with _translated(self.engine, writes=True), autocommit(self.engine) as connection:
            named = {"doc_name": _checked(name), "if_match": if_match}
            if connection.execute(self._delete, named).rowcount != 1:
                raise Conflict(f"The state document '{name}' changed since it was read.")

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with ``prefix``, in order."""
        table = state_table
        query = select(table.c.name)
        if self.engine.dialect.name not in ("mysql", "mariadb"):  # there, LIKE over the index misses some characters
            query = query.where(table.c.name.startswith(prefix, autoescape=True))
        with _translated(self.engine), autocommit(self.engine) as connection:
            names = connection.execute(query).scalars().all()
        yield from sorted(name for name in names if name.startswith(prefix))


def _translated(engine: Engine, *, writes: bool = False) -> AbstractContextManager[None]:
    """Turn driver errors into the store's vocabulary; a write whose answer was lost is ``Ambiguous``."""
    return translating(engine, functools.partial(_as_ours, writes))


def _as_ours(writes: bool, failure: Failure) -> DbError:
    if failure.kind is Kind.BROKEN and writes and isinstance(failure.error, DBAPIError):
        return Ambiguous(f"The connection to {failure.where} broke before a write was answered: {failure.why}")
    return failure.answered(_ANSWERS, (StateStoreError, "The state in {where} could not be used: {why}"))


def _checked(name: str) -> str:
    return name_of_at_most(_LONGEST_NAME, name, "a table of a database")


def _as_bytes(content: bytes | memoryview | str) -> bytes:
    """Return the content, also when someone has put text there by hand: SQLite keeps whatever it is given."""
    return content.encode() if isinstance(content, str) else bytes(content)


def _aware(moment: Any) -> datetime:
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    aware: datetime = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC)
