"""State documents in a table of the team's own database (SQLite, PostgreSQL, MariaDB/MySQL, any SQLAlchemy dialect).

Expiry is decided with the database's time, and a commit can join the handler's transaction (``replace_on``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Column,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.mysql import LONGBLOB
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.sql.elements import ColumnElement

from ...core.clock import SystemClock, new_id
from ...core.config import safe_url
from ...core.driver_errors import reason
from ...core.engine import autocommit
from ...core.errors import Ambiguous, Conflict, StateStoreError, Unavailable
from ..documents import ETag, Snapshot, Written
from ._names import checked_document_name

metadata = MetaData()
state_table = Table(
    "holdfast_state",
    metadata,
    Column("name", String(300), primary_key=True),
    Column("etag", String(32), nullable=False),
    Column("content", LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb"), nullable=False),
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
    mysql_engine="InnoDB",
)

_DATABASE_TIME: dict[str, str] = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')",
    "postgresql": "clock_timestamp()",
    "mysql": "UTC_TIMESTAMP(6)",
    "mariadb": "UTC_TIMESTAMP(6)",
    "mssql": "SYSUTCDATETIME()",
}

_TIME_EVERY_SECONDS = 60.0


class SqlDocumentStore:
    """Documents in the table ``holdfast_state``; they survive whatever the database itself survives."""

    skew_margin_seconds: float | None = None

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        time = _DATABASE_TIME.get(engine.dialect.name)
        self._time: ColumnElement[Any] = literal_column(time) if time else func.current_timestamp()
        table = state_table
        self._read = select(table.c.content, table.c.etag, self._time).where(table.c.name == bindparam("doc_name"))
        self._insert = insert(table)
        self._time_query = select(self._time)
        self._clock = SystemClock()
        self._time_told_at = float("-inf")
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
            row = connection.execute(self._read, {"doc_name": checked_document_name(name)}).one_or_none()
        return None if row is None else Snapshot(_as_bytes(row[0]), ETag(row[1]), _aware(row[2]))

    def create(self, name: str, content: bytes) -> Written:
        """Insert the document; ``Conflict`` when it exists."""
        etag = ETag(new_id())
        with _translated(self.engine, writes=True), autocommit(self.engine) as connection:
            connection.execute(self._insert, {"name": checked_document_name(name), "content": content, "etag": etag})
            return Written(etag, self._present_time(connection))

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Update the document in its own transaction: one round trip."""
        with _translated(self.engine, writes=True), autocommit(self.engine) as connection:
            return self._replace_with(connection, name, content, if_match)

    def read_on(self, connection: Connection, name: str) -> bytes | None:
        """Return the document as the caller's transaction sees it."""
        with _translated(self.engine):
            row = connection.execute(self._read, {"doc_name": checked_document_name(name)}).one_or_none()
        return None if row is None else _as_bytes(row[0])

    def replace_on(self, connection: Connection, name: str, content: bytes, if_match: ETag) -> Written:
        """Update the document inside the caller's transaction; it counts once the caller commits."""
        with _translated(self.engine):
            return self._replace_with(connection, name, content, if_match)

    def _replace_with(self, connection: Connection, name: str, content: bytes, if_match: ETag) -> Written:
        etag = ETag(new_id())
        result = connection.execute(
            self._replace,
            {"doc_name": checked_document_name(name), "if_match": if_match, "new_content": content, "new_etag": etag},
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
        if self._clock.monotonic() - self._time_told_at < _TIME_EVERY_SECONDS:
            return None
        return self._present_time(connection)

    def _present_time(self, connection: Connection) -> datetime:
        self._time_told_at = self._clock.monotonic()
        return _aware(connection.execute(self._time_query).scalar_one())

    def delete(self, name: str, if_match: ETag) -> None:
        """Delete the document read with ``if_match``."""
        with _translated(self.engine, writes=True), autocommit(self.engine) as connection:
            named = {"doc_name": checked_document_name(name), "if_match": if_match}
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


@contextmanager
def _translated(engine: Engine, *, writes: bool = False) -> Iterator[None]:
    """Turn driver errors into the store's vocabulary; a write whose answer was lost is ``Ambiguous``."""
    try:
        yield
    except IntegrityError as error:
        raise Conflict("The state document exists already.") from error
    except PoolTimeoutError as error:
        raise Unavailable(f"No free connection to {safe_url(engine.url)}: raise pool_size.") from error
    except DBAPIError as error:
        raise _state_error(engine, error, writes) from error
    except engine.dialect.loaded_dbapi.Error as error:  # from preparing a pooled connection: nothing was sent
        raise Unavailable(f"{safe_url(engine.url)} does not answer: {error}. Check that it runs.") from error
    except SQLAlchemyError as error:
        raise StateStoreError(f"The state in {safe_url(engine.url)} could not be used: {error}") from error


def _state_error(engine: Engine, error: DBAPIError, writes: bool) -> StateStoreError:
    where, why = safe_url(engine.url), reason(error)
    if _is_missing_table(error):
        return StateStoreError(
            f"The table holdfast_state does not exist in {where}. Create it with 'holdfast migrate' or hf.migrate()."
        )
    if writes and error.connection_invalidated:
        return Ambiguous(f"The connection to {where} broke before a write was answered: {why}")
    if error.connection_invalidated or isinstance(error, (OperationalError, InterfaceError)):
        if "locked" in why:
            return Unavailable(f"{where} is locked by another writer: {why}. It is tried again.")
        return Unavailable(f"{where} does not answer: {why}. Check that it runs and can be reached.")
    return StateStoreError(f"The state in {where} could not be used: {why}")


def _is_missing_table(error: DBAPIError) -> bool:
    said = str(error.orig)
    return "holdfast_state" in said and any(
        hint in said for hint in ("no such table", "does not exist", "doesn't exist", "Invalid object name")
    )


def _as_bytes(content: bytes | memoryview | str) -> bytes:
    """Return the content, also when someone has put text there by hand: SQLite keeps whatever it is given."""
    return content.encode() if isinstance(content, str) else bytes(content)


def _aware(moment: Any) -> datetime:
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    aware: datetime = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC)
