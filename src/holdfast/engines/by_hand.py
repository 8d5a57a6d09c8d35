"""Changes that people make to engines: a message that is sent, the registry and its lock. Each has an audit row.

Where what is changed is in the application's database, the row is in the transaction of the change. Elsewhere it is
written before: a change without a row cannot be, and a change that was refused after all has a second row that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from ..core.clock import new_id
from ..core.errors import Ambiguous, Conflict, DbError
from ..records import audit
from ..records.database import changing
from ..records.exact import legible
from ..records.schema import PUBLISHER
from ..state.documents import ETag, Written
from ..state.stores.sql import SqlDocumentStore
from .definition import EngineDefinition, operation_of
from .messages import EngineMessage
from .queues.embedded import EmbeddedQueue
from .queues.protocol import SendingQueue
from .registry import Registry
from .retrying import new_message_id

NOT_DONE = "(not done)"


class SendsMessages(Protocol):
    """An application's engines, such as ``Engines``."""

    @property
    def declared(self) -> Mapping[str, Mapping[str, EngineDefinition]]:
        """Return the declared operations, by engine and operation."""
        ...

    def queue(self, engine: str) -> SendingQueue:
        """Return the queue of a declared engine."""
        ...

    def send(
        self,
        engine: str,
        payload: Any = None,
        *,
        operation: str | None = None,
        message_id: str | None = None,
        correlation_id: str | None = None,
        instance_id: str | None = None,
        causation_id: str | None = None,
        others: Mapping[str, Any] | None = None,
        delay_seconds: float = 0.0,
        connection: Connection | None = None,
    ) -> EngineMessage:
        """Send an engine a message, in the caller's transaction when there is one."""
        ...


def send_by_hand(
    engines: SendsMessages,
    database: Engine,
    actor: str,
    engine: str,
    payload: Any,
    *,
    operation: str | None = None,
    message_id: str | None = None,
    correlation_id: str | None = None,
    instance_id: str | None = None,
    causation_id: str | None = None,
    others: Mapping[str, Any] | None = None,
    delay_seconds: float = 0.0,
) -> EngineMessage:
    """Send an engine a message, written down as what ``actor`` did: never its payload.

    Raises:
        NotFoundError: there is no such engine or operation; nothing was sent.
        MessageError: the message cannot be sent as it is; nothing was sent.
        Conflict: a message with this id waits already, where the queue can tell; nothing was sent.
        Unavailable: the queue did not take it; nothing was sent.
        Ambiguous: the answer was lost; the message may have been sent.
    """
    settings = operation_of(engines.declared, engine, operation).settings
    fields: dict[str, Any] = {
        "operation": settings.operation,
        "message_id": new_message_id() if message_id is None else message_id,
        "correlation_id": new_message_id() if correlation_id is None else correlation_id,
        "instance_id": PUBLISHER if instance_id is None else instance_id,
    }
    told = {"queue": settings.queue, "delay_seconds": delay_seconds, **fields}
    target = f"{engine}/{told.pop('message_id')}"
    is_in_database = isinstance(engines.queue(engine), EmbeddedQueue)
    with _audited(database, actor, "engine send", target, told, is_in_database=is_in_database) as connection:
        return engines.send(
            engine,
            payload,
            **fields,
            causation_id=causation_id,
            others=others,
            delay_seconds=delay_seconds,
            connection=connection,
        )


@contextmanager
def registry_by_hand(
    registry: Registry, database: Engine, actor: str, action: str, details: Mapping[str, object]
) -> Iterator[Registry]:
    """Yield the registry to change, written down as what ``actor`` did: never the values of its fields."""
    documents = registry.documents
    is_in_database = isinstance(documents, SqlDocumentStore) and documents.engine.url == database.url
    with _audited(database, actor, action, registry.name, details, is_in_database=is_in_database) as connection:
        if connection is not None and isinstance(documents, SqlDocumentStore):
            yield registry.over(_InTransaction(documents.engine, connection))
        else:
            yield registry


@contextmanager
def _audited(
    database: Engine,
    actor: str,
    action: str,
    target: str,
    details: Mapping[str, object],
    *,
    is_in_database: bool,
) -> Iterator[Connection | None]:
    """Yield the transaction that the change is to be made in; None when it is made elsewhere.

    If the process dies here, a change in the database has a row or was not made; elsewhere it may have a row although
    it was not made.
    """
    target, details = legible(target), {name: _legible(value) for name, value in details.items()}
    with changing(database) as connection:
        audit.record(connection, actor, action, target, details)
        if is_in_database:
            yield connection
            return
    try:
        yield None
    except Ambiguous:
        raise
    except DbError:
        with changing(database) as connection:
            audit.record(connection, actor, f"{action} {NOT_DONE}", target, details)
        raise


def _legible(value: object) -> object:
    return legible(value) if isinstance(value, str) else value


class _InTransaction(SqlDocumentStore):
    """The state documents of the application's database, written on a connection whose transaction is open."""

    def __init__(self, engine: Engine, connection: Connection) -> None:
        super().__init__(engine)
        self._connection = connection

    def create(self, name: str, content: bytes) -> Written:
        """Insert the document; it counts once the transaction commits.

        Raises:
            Conflict: there is one; the transaction is of no use any more.
        """
        etag = ETag(new_id())
        if self.read(name) is not None:
            raise Conflict(f"The state document '{name}' exists already.")
        try:
            self._connection.execute(self._insert, {"name": name, "content": content, "etag": etag})
        except IntegrityError as error:  # another was faster
            raise Conflict(f"The state document '{name}' exists already.") from error
        return Written(etag, self._present_time(self._connection))

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Replace the document; it counts once the transaction commits."""
        return self.replace_on(self._connection, name, content, if_match)
