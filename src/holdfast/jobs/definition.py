"""A job as its author sees it: the decorated handler, which can be called, and enqueued with checked arguments."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection

from ..core.errors import ConfigurationError, PayloadError
from ..core.handler_forms import is_async
from ..core.keywords import require_known, takes
from .correlation import current_correlation_id
from .model import Enqueued, NewJob
from .payload import MAX_PAYLOAD_BYTES, PayloadCodec
from .running import current_running
from .settings import (
    JobSettings,
    checked_key,
    checked_max_attempts,
    checked_moment,
    checked_priority,
    checked_seconds,
    checked_tags,
    checked_topic,
    limits_of,
    own_topic,
)
from .stores.base import SqlJobStore

if TYPE_CHECKING:
    from typing import Unpack

    from .options import EnqueueOptions

__all__ = ["BoundJob", "JobDefinition", "JobSettings", "limits_of"]

Arguments = Mapping[str, object]


class JobDefinition:
    """A handler that became a job. Calling it calls the handler; ``enqueue`` lets a worker do so.

    Args:
        function: the handler, ``def`` or ``async def``.
        topic: the queue its jobs wait in.
        store: gives the queue's store; asked when a job is enqueued, not before.
        operation: what tells this handler from others of the topic; the function's name when left out.
        settings: what holds for every job of it.
        max_payload_bytes: the largest payload.

    Raises:
        ConfigurationError: a name, a number or the handler's signature cannot be that of a job.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        topic: str,
        store: Callable[[], SqlJobStore],
        operation: str | None = None,
        settings: JobSettings | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.topic = own_topic(topic)
        self.operation = checked_topic("Operation", operation or getattr(function, "__name__", None))
        self.settings = settings or JobSettings()
        self.store = store
        self.codec = PayloadCodec(function, max_bytes=max_payload_bytes)
        self.takes_context = self.codec.takes_context
        self.is_async = is_async(function)
        self.delivering: None = None
        self.options = BoundJob(self).options
        if "connection" in self.codec.fields:
            raise ConfigurationError(
                f"Job '{self.codec.name}' has a parameter 'connection', which enqueue takes as the caller's "
                "transaction. Rename the parameter."
            )

    @property
    def max_seconds(self) -> float | None:
        """Return how long an attempt may run, None for as long as it takes."""
        return self.settings.max_seconds

    @property
    def is_transactional(self) -> bool:
        """Return whether it has no effects but those in ``context.transaction``."""
        return self.settings.transactional

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler here and now, as a test does."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"JobDefinition(topic={self.topic!r}, operation={self.operation!r})"

    def enqueue(self, /, *, connection: Any = None, **arguments: object) -> Enqueued:
        """Add a job, in the caller's transaction when a connection is given.

        Args:
            connection: a SQLAlchemy ``Connection``, or an ORM ``Session``, on the queue's database.
            arguments: the handler's.

        Raises:
            PayloadError: the arguments do not fit the handler.
            ConfigurationError: the connection cannot be used.
            Unavailable: nothing was added; a retry can help.
            Ambiguous: the answer was lost; the job may or may not be there. A unique key makes a retry safe.
        """
        return BoundJob(self).enqueue(connection=connection, **arguments)

    def enqueue_many(self, arguments: Iterable[Arguments], *, connection: Any = None) -> int:
        """Add a job for each set of arguments, all or none; return how many. Raises as ``enqueue`` does.

        Arguments from an iterator can be drawn once only: then what another transaction broke off is not tried again.
        """
        return BoundJob(self).enqueue_many(arguments, connection=connection)

    async def enqueue_async(self, /, *, connection: Any = None, **arguments: object) -> Enqueued:
        """Do as ``enqueue``, without holding up the event loop."""
        return await BoundJob(self).enqueue_async(connection=connection, **arguments)

    async def enqueue_many_async(self, arguments: Iterable[Arguments], *, connection: Any = None) -> int:
        """Do as ``enqueue_many``, without holding up the event loop."""
        return await BoundJob(self).enqueue_many_async(arguments, connection=connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueSettings:
    """What may be chosen for the jobs of one enqueue; None leaves it as it was, except of ``max_attempts``."""

    run_at: datetime | None = None
    delay_seconds: float | None = None
    priority: int | None = None
    unique_key: str | None = None
    unique_seconds: float | None = None
    key: str | None = None
    correlation_id: str | None = None
    instance_id: str | None = None
    tags: Sequence[str] | None = None
    max_attempts: int | EllipsisType | None = ...


_CHECKS: dict[str, tuple[str, Callable[[object], object]]] = {
    "priority": ("priority", checked_priority),
    "unique_key": ("unique_key", functools.partial(checked_key, "unique_key")),
    "unique_seconds": ("unique_seconds", functools.partial(checked_seconds, "unique_seconds")),
    "key": ("limit_key", functools.partial(checked_key, "key")),
    "correlation_id": ("correlation_id", functools.partial(checked_key, "correlation_id")),
    "instance_id": ("instance_id", functools.partial(checked_key, "instance_id")),
    "tags": ("tags", checked_tags),
}


@dataclass(frozen=True, slots=True)
class BoundJob:
    """A job with options. It never changes: ``options`` returns another one."""

    definition: JobDefinition
    run_at: datetime | None = None
    delay_seconds: float | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    @takes(EnqueueSettings)
    def options(self, **options: Unpack[EnqueueOptions]) -> BoundJob:
        """Return the job with these options for what is enqueued through it, on top of those it has.

        Args:
            run_at: not before this moment; aware.
            delay_seconds: not before so long from now, by the database's clock.
            priority: higher runs first.
            unique_key: adds nothing while another job of the topic has the same key and has not ended.
            unique_seconds: how long the key stays taken after the job is done.
            key: what the topic's limits per key count by.
            correlation_id: ties together what belongs to one piece of business; inside a handler, its own by default.
            instance_id: whose work it is, for people.
            tags: words to find it by.
            max_attempts: None for no maximum.

        Raises:
            ConfigurationError: an option cannot be used.
        """
        require_known("options", options, EnqueueSettings)
        columns = dict(self.columns)
        for name, (column, check) in _CHECKS.items():
            given = options.get(name)
            if given is not None:
                columns[column] = check(given)
        if (most := options.get("max_attempts", ...)) is not ...:
            columns["max_attempts"] = checked_max_attempts(most)
        return self._later(options.get("run_at"), options.get("delay_seconds"), columns)

    def _later(self, run_at: datetime | None, delay_seconds: float | None, columns: Mapping[str, Any]) -> BoundJob:
        if run_at is not None and delay_seconds is not None:
            raise ConfigurationError("run_at and delay_seconds both say when a job is to run. Give one of them.")
        if run_at is not None:
            return replace(self, run_at=checked_moment("run_at", run_at), delay_seconds=None, columns=columns)
        if delay_seconds is not None:
            delay_seconds = checked_seconds("delay_seconds", delay_seconds)
            return replace(self, run_at=None, delay_seconds=delay_seconds, columns=columns)
        return replace(self, columns=columns)

    def enqueue(self, /, *, connection: Any = None, **arguments: object) -> Enqueued:
        """Add a job with these options. See ``JobDefinition.enqueue``."""
        store = self.definition.store()
        joined = _joined(connection, store)
        return store.enqueue(self.new_job(arguments, run_at=self._run_at(store, joined)), joined)

    def enqueue_many(self, arguments: Iterable[Arguments], *, connection: Any = None) -> int:
        """Add jobs with these options. See ``JobDefinition.enqueue_many``.

        Raises:
            ConfigurationError: there is a unique key, which only one job at a time can hold.
        """
        store = self.definition.store()
        joined = _joined(connection, store)
        shared = self._shared(self._run_at(store, joined))
        if "unique_key" not in shared and joined is None:
            return store.enqueue_batch(NewJob(payload="", **shared), self._payloads_of(arguments))
        payloads = list(self._payloads(arguments))  # all of them first: an error must not spoil a transaction
        if "unique_key" not in shared:
            return store.enqueue_batch(NewJob(payload="", **shared), payloads, joined)
        if len(payloads) > 1:
            raise ConfigurationError(
                f"unique_key {shared['unique_key']!r} can be held by one job, and {len(payloads)} were to be enqueued "
                "with it. Enqueue each with a key of its own."
            )
        return store.enqueue_many([NewJob(payload=payload, **shared) for payload in payloads], joined)

    async def enqueue_async(self, /, *, connection: Any = None, **arguments: object) -> Enqueued:
        """Do as ``enqueue``, without holding up the event loop."""
        return await asyncio.to_thread(functools.partial(self.enqueue, connection=connection, **arguments))

    async def enqueue_many_async(self, arguments: Iterable[Arguments], *, connection: Any = None) -> int:
        """Do as ``enqueue_many``, without holding up the event loop."""
        return await asyncio.to_thread(self.enqueue_many, arguments, connection=connection)

    def new_job(self, arguments: Arguments, *, run_at: datetime | None = None) -> NewJob:
        """Return the job that would be added for these arguments.

        Raises:
            PayloadError: they do not fit the handler.
        """
        return NewJob(payload=self.definition.codec.encode(arguments), **self._shared(run_at))

    def _payloads_of(self, arguments: Iterable[Arguments]) -> Iterable[str]:
        """Return the payloads, to be drawn again where the arguments can be."""
        if isinstance(arguments, Iterator):
            return self._payloads(arguments)
        return _Drawn(functools.partial(self._payloads, arguments))

    def _payloads(self, arguments: Iterable[Arguments]) -> Iterator[str]:
        """Yield a payload for each set of arguments; an error tells the number of the set."""
        encode = self.definition.codec.encode
        number = 0
        try:
            for number, given in enumerate(arguments):  # noqa: B007 - named in the error
                yield encode(_checked_mapping(given))
        except PayloadError as error:
            raise PayloadError(f"Arguments [{number}] of many, none of which was enqueued: {error}") from error

    def _shared(self, run_at: datetime | None) -> dict[str, Any]:
        definition, settings = self.definition, self.definition.settings
        shared: dict[str, Any] = {
            "topic": definition.topic,
            "operation": definition.operation,
            "priority": settings.priority,
            "max_attempts": settings.max_attempts,
            "lease_seconds": settings.lease_seconds,
            "retry_base_seconds": settings.retry_base_seconds,
            "retry_max_seconds": settings.retry_max_seconds,
            "correlation_id": current_correlation_id.get(),
            "run_at": run_at,
            **self.columns,
        }
        if "unique_key" in shared:
            shared.setdefault("unique_seconds", settings.unique_seconds)
        elif "unique_seconds" in shared:
            raise ConfigurationError("unique_seconds is the window of a unique_key. Give a unique_key too.")
        return shared

    def _run_at(self, store: SqlJobStore, connection: Connection | None) -> datetime | None:
        if self.delay_seconds is None:
            return self.run_at
        return store.now(connection) + timedelta(seconds=self.delay_seconds)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Payloads that are made anew each time they are drawn."""

    make: Callable[[], Iterator[str]]

    def __iter__(self) -> Iterator[str]:
        return self.make()


def _checked_mapping(arguments: Arguments) -> Arguments:
    if type(arguments) is dict or isinstance(arguments, Mapping):
        return arguments
    raise PayloadError(f"arguments must be a dict of names and values, not {type(arguments).__name__}.")


def _joined(connection: object, store: SqlJobStore) -> Connection | None:
    """Return the connection of the caller's transaction, None when there is none."""
    if connection is None:
        _refuse_own_lock()
        return None
    orm = sys.modules.get("sqlalchemy.orm")  # nobody has a session of a module that was never imported
    if orm is not None and isinstance(connection, (orm.Session, orm.scoped_session)):
        connection = connection.connection()
    if not isinstance(connection, Connection):
        raise ConfigurationError(
            f"connection must be a SQLAlchemy Connection, Session or scoped_session, not {type(connection).__name__}. "
            "Inside an async session, connection or context.transaction, enqueue through its run_sync."
        )
    ours = store.engine.dialect
    if connection.dialect.driver != ours.driver:
        raise ConfigurationError(
            f"The connection uses the driver {connection.dialect.driver}, but the queue is reached with {ours.driver}. "
            "Pass a connection to the queue's database made with that driver."
        )
    return connection


def _refuse_own_lock() -> None:
    """Refuse at once what would wait for SQLite's write lock, which the job's own transaction holds."""
    running = current_running.get()
    if running is not None and running.locked_since is not None:
        raise ConfigurationError(
            "This handler's context.transaction holds SQLite's write lock, so a job cannot be enqueued beside it. Pass "
            "connection=context.transaction (in async def: await context.transaction.run_sync(…)), or enqueue first."
        )
