"""Changes that people make to engines: a message that is sent, the registry and its lock. Each has an audit row.

Where what is changed is in the application's database, the row is in the transaction of the change. Elsewhere it is
written before: a change without a row cannot be, and a change that was refused after all has a second row that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Engine

from ..core.keywords import picked
from ..lease.stores.sql_transaction import TransactionDocuments, are_in
from ..records.audited_change import audited_change
from .definition import operation_of
from .engines import Engines
from .messages import EngineMessage, MessageIds
from .queues.embedded import EmbeddedQueue
from .registry import Registry
from .retrying import new_message_id

if TYPE_CHECKING:
    from typing import Unpack

    from .options import SendOptions


def send_audited(
    engines: Engines,
    database: Engine,
    actor: str,
    engine: str,
    payload: Any,
    **options: Unpack[SendOptions],
) -> EngineMessage:
    """Send an engine a message as ``Engines.send`` does, written down as what ``actor`` did: never its payload.

    Raises:
        NotFoundError: there is no such engine or operation; nothing was sent.
        MessageError: the message cannot be sent as it is; nothing was sent.
        Conflict: a message with this id waits already, where the queue can tell; nothing was sent.
        Unavailable: the queue did not take it; nothing was sent.
        Ambiguous: the answer was lost; the message may have been sent.
    """
    settings = operation_of(engines.declared, engine, options.get("operation")).settings
    given = picked(MessageIds, options)
    options["operation"] = settings.operation
    options["message_id"] = new_message_id() if given.message_id is None else given.message_id
    options["correlation_id"] = new_message_id() if given.correlation_id is None else given.correlation_id
    options["instance_id"] = engines.default_instance_id if given.instance_id is None else given.instance_id
    details = {"queue": settings.queue, "delay_seconds": options.get("delay_seconds", 0.0)}
    details |= {name: options[name] for name in ("operation", "correlation_id", "instance_id")}
    target = f"{engine}/{options['message_id']}"
    is_in_database = isinstance(engines.queue(engine), EmbeddedQueue)
    with audited_change(database, actor, "engine send", target, details, is_in_database=is_in_database) as connection:
        return engines.send(engine, payload, connection=connection, **options)


def drain_poison_audited(engines: Engines, database: Engine, actor: str, engine: str) -> int:
    """Do what ``Engines.drain_poison`` does, written down as what ``actor`` did before the first message is touched."""

    def write_down() -> None:
        with audited_change(database, actor, "engine drain-poison", engine, {}, is_in_database=False):
            pass

    return engines.drain_poison(engine, write_down)


@contextmanager
def audited_registry(
    registry: Registry, database: Engine, actor: str, action: str, details: Mapping[str, object]
) -> Iterator[Registry]:
    """Yield the registry to change, written down as what ``actor`` did: never the values of its fields."""
    documents, name = registry.documents, registry.name
    in_database = are_in(documents, database)
    with audited_change(database, actor, action, name, details, is_in_database=in_database) as connection:
        yield registry.over(TransactionDocuments.of(documents, connection))
