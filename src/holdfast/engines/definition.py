"""An engine's operation as it was declared."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection

from ..core.errors import ConfigurationError, NotFoundError
from ..core.retry import RetryPolicy
from ..core.schedule import Schedule
from ..records.schema import ENGINE_LENGTH, ID_LENGTH
from .messages import ENGINE_NAME, EngineMessage
from .operations.protocol import Operation
from .registry_shape import DEFAULT_LOCK_SECONDS, checked_duration

_QUEUE = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")
LEAST_ATTEMPTS = 2
USUAL_RETRIES = RetryPolicy(max_delay_seconds=600.0)
_MOST_AT_ONCE = 1000
LONGEST_INVISIBLE_SECONDS = 7 * 86_400.0  # of a message in Azure Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How an engine works.

    ``max_retry_attempts`` is the standard's: a message whose dequeue count has reached it goes to the dead letters
    instead of being executed. So n means at most n - 1 executions.
    """

    queue: str
    operation: str
    singleton: bool = False
    max_retry_attempts: int = 5
    visibility_seconds: float = 30.0
    retry_policy: RetryPolicy = USUAL_RETRIES
    conflict_seconds: float = 5.0
    locks_registry: bool = True
    lock_seconds: float = DEFAULT_LOCK_SECONDS
    concurrency: int = 4
    poll_seconds: float = 0.5
    schedule: Schedule | None = None


class EngineDefinition:
    """An operation of an engine: its settings, checked, and what runs it.

    Calling it calls the handler as it is, for tests of the handler.
    """

    def __init__(
        self,
        name: str,
        handler: Callable[..., Any],
        settings: EngineSettings,
        operation: Operation,
        send: Callable[..., EngineMessage] | None = None,
    ) -> None:
        self.name = checked_engine(name)
        self.settings = settings
        self.handler = handler
        self.operation = operation
        self._send = send
        _check(self.name, settings)

    def __repr__(self) -> str:
        return f"EngineDefinition({self.name!r}, operation={self.settings.operation!r}, queue={self.settings.queue!r})"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the handler, outside of any flow."""
        return self.handler(*arguments, **named)

    def send(
        self,
        payload: Any = None,
        *,
        message_id: str | None = None,
        correlation_id: str | None = None,
        instance_id: str | None = None,
        causation_id: str | None = None,
        delay_seconds: float = 0.0,
        connection: Connection | None = None,
    ) -> EngineMessage:
        """Ask for this operation. See ``Engines.send``."""
        if self._send is None:
            raise ConfigurationError(f"Engine '{self.name}' has no queue to send to.")
        return self._send(
            self.name,
            payload,
            operation=self.settings.operation,
            message_id=message_id,
            correlation_id=correlation_id,
            instance_id=instance_id,
            causation_id=causation_id,
            delay_seconds=delay_seconds,
            connection=connection,
        )


def operation_of(
    declared: Mapping[str, Mapping[str, EngineDefinition]], engine: str, operation: str | None = None
) -> EngineDefinition:
    """Return an operation of an engine; its first when none is named.

    Raises:
        NotFoundError: there is no such engine or operation; the message says which there are.
    """
    operations = declared.get(engine)
    if not operations:
        raise NotFoundError(f"There is no engine '{engine!s:.80}'. Declared: {', '.join(declared) or 'none'}.")
    found = next(iter(operations.values())) if operation is None else operations.get(operation)
    if found is None:
        raise NotFoundError(f"Engine '{engine}' has no operation '{operation!s:.80}'. It has: {', '.join(operations)}.")
    return found


def checked_engine(name: object) -> str:
    """Return the name of an engine when it can be one.

    Raises:
        ConfigurationError: it cannot be the partition of its dead letters.
    """
    if isinstance(name, str) and ENGINE_NAME.fullmatch(name) and len(name) <= ENGINE_LENGTH:
        return name
    raise ConfigurationError(
        f"The engine name {name!r:.80} cannot be used: it is the partition of its dead letters, so use 1 to "
        f"{ENGINE_LENGTH} of a-z, 0-9 and '-'."
    )


def _check(name: str, settings: EngineSettings) -> None:
    if not _QUEUE.fullmatch(str(settings.queue)):
        raise ConfigurationError(
            f"Engine '{name}': queue={settings.queue!r:.80} is no name for a queue: use 3 to 63 of a-z, 0-9 and single "
            "'-', as Azure Storage asks for."
        )
    operation: object = settings.operation
    if not isinstance(operation, str) or not 0 < len(operation) <= ID_LENGTH or not operation.isprintable():
        raise ConfigurationError(
            f"Engine '{name}': operation={operation!r:.80} must be a text of 1 to {ID_LENGTH} printable characters."
        )
    if type(settings.max_retry_attempts) is not int:
        raise ConfigurationError(
            f"Engine '{name}': max_retry_attempts={settings.max_retry_attempts!r:.80} must be a whole number."
        )
    if settings.max_retry_attempts < LEAST_ATTEMPTS:
        raise ConfigurationError(
            f"Engine '{name}': max_retry_attempts={settings.max_retry_attempts!r} would never execute anything: a "
            f"message that was dequeued that often is dead, so n means n - 1 executions. Use {LEAST_ATTEMPTS} or more."
        )
    if type(settings.concurrency) is not int or not 1 <= settings.concurrency <= _MOST_AT_ONCE:
        raise ConfigurationError(
            f"Engine '{name}': concurrency={settings.concurrency!r:.80} must be from 1 to {_MOST_AT_ONCE}."
        )
    for setting in ("singleton", "locks_registry"):
        if not isinstance(getattr(settings, setting), bool):
            raise ConfigurationError(f"Engine '{name}': {setting} must be True or False.")
    _check_seconds(name, "visibility_seconds", settings.visibility_seconds, least=1.0)
    _check_seconds(name, "conflict_seconds", settings.conflict_seconds, least=0.0)
    _check_seconds(name, "poll_seconds", settings.poll_seconds, least=0.001)
    try:
        checked_duration(settings.lock_seconds)
    except ConfigurationError as error:
        raise ConfigurationError(f"Engine '{name}': lock_seconds: {error}") from error


def _check_seconds(name: str, setting: str, value: object, *, least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not least <= float(str(value)) <= LONGEST_INVISIBLE_SECONDS:
        raise ConfigurationError(
            f"Engine '{name}': {setting}={value!r:.80} must be a number of seconds from {least:g} to "
            f"{LONGEST_INVISIBLE_SECONDS:.0f} (7 days)."
        )
