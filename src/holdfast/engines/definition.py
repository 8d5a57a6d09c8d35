"""An engine's operation as it was declared."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..core.errors import ConfigurationError, NotFoundError
from ..core.key_text import shown_key
from ..core.keywords import takes
from ..core.retry import RetryPolicy
from ..core.schedule import Schedule
from ..records.schema import ENGINE_LENGTH, ID_LENGTH
from .messages import ENGINE_NAME, EngineMessage, MessageIds
from .operations.protocol import Operation
from .registry_shape import DEFAULT_LOCK_SECONDS, checked_duration
from .timers import Missed

if TYPE_CHECKING:
    from typing import Unpack

    from .options import MessageOptions

_QUEUE = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")
LEAST_ATTEMPTS = 2
USUAL_RETRIES = RetryPolicy(max_delay_seconds=600.0)
_MOST_AT_ONCE = 1000
LONGEST_INVISIBLE_SECONDS = 7 * 86_400.0  # of a message in Azure Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How an engine works.

    ``max_attempts`` is what the standard calls ``max_retry_attempts``: a message whose dequeue count has reached it
    goes to the dead letters instead of being executed. So n means at most n - 1 executions.
    """

    queue: str
    operation: str
    singleton: bool
    max_attempts: int
    lease_seconds: float
    retry_policy: RetryPolicy
    conflict_seconds: float
    locks_registry: bool | Literal["application"]
    lock_seconds: float
    concurrency: int
    poll_seconds: float
    schedule: Schedule | None
    missed: Missed
    default_instance_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDeclaration:
    """An engine in the words in which people declare it, some of which are the standard's."""

    queue: str | None = None
    operation: str | None = None
    singleton: bool = False
    max_retry_attempts: int = 5
    schedule: str | None = None
    timezone: str = "UTC"
    missed: Missed = "newest"
    visibility_seconds: float = 30.0
    retry_policy: RetryPolicy = USUAL_RETRIES
    conflict_seconds: float = 5.0
    locks_registry: bool | Literal["application"] = True
    lock_seconds: float = DEFAULT_LOCK_SECONDS
    timeout_seconds: float | None = None
    concurrency: int = 4
    poll_seconds: float = 0.5

    def check(self, name: object) -> None:
        """Refuse kinds of things that nothing could be made of.

        Raises:
            ConfigurationError: the first of them.
        """
        policy: object = self.retry_policy
        schedule: object = self.schedule
        if callable(name):
            raise ConfigurationError('Write @hf.engine("name") with a name: its dead letters are kept under it.')
        if not isinstance(policy, RetryPolicy):
            raise ConfigurationError(f"Engine '{name}': retry_policy={policy!r:.80} must be a RetryPolicy(…).")
        if policy.retry_on is not Exception:
            raise ConfigurationError(
                f"Engine '{name}': its messages are tried again after every error, so leave out retry_on."
            )
        if schedule is not None and not isinstance(schedule, str):
            raise ConfigurationError(f"Engine '{name}': schedule={schedule!r:.80} must be a cron expression.")

    def settings(self, name: str, handler: Callable[..., Any], default_instance_id: str) -> EngineSettings:
        """Return how the engine works.

        Raises:
            ConfigurationError: the handler can be no operation, or the schedule is none.
        """
        given: object = handler
        if not callable(given) or inspect.isasyncgenfunction(given):
            raise ConfigurationError(f"Engine '{name}': {handler!r:.80} is no function that can be an operation.")
        return EngineSettings(
            queue=f"{name}-queue" if self.queue is None else self.queue,
            operation=getattr(handler, "__name__", "run") if self.operation is None else self.operation,
            singleton=self.singleton,
            max_attempts=self.max_retry_attempts,
            lease_seconds=self.visibility_seconds,
            retry_policy=self.retry_policy,
            conflict_seconds=self.conflict_seconds,
            locks_registry=self.locks_registry,
            lock_seconds=self.lock_seconds,
            concurrency=self.concurrency,
            poll_seconds=self.poll_seconds,
            schedule=None if self.schedule is None else Schedule(f"engine '{name}'", self.schedule, self.timezone),
            missed=self.missed,
            default_instance_id=default_instance_id,
        )


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

    @takes(MessageIds, delay_seconds=0.0, connection=None)
    def send(self, payload: Any = None, **options: Unpack[MessageOptions]) -> EngineMessage:
        """Ask for this operation. See ``Engines.send``."""
        if self._send is None:
            raise ConfigurationError(f"Engine '{self.name}' has no queue to send to.")
        return self._send(self.name, payload, operation=self.settings.operation, **options)


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
    if type(settings.max_attempts) is not int:
        raise ConfigurationError(
            f"Engine '{name}': max_retry_attempts={settings.max_attempts!r:.80} must be a whole number."
        )
    if settings.max_attempts < LEAST_ATTEMPTS:
        raise ConfigurationError(
            f"Engine '{name}': max_retry_attempts={settings.max_attempts!r} would never execute anything: a "
            f"message that was dequeued that often is dead, so n means n - 1 executions. Use {LEAST_ATTEMPTS} or more."
        )
    if type(settings.concurrency) is not int or not 1 <= settings.concurrency <= _MOST_AT_ONCE:
        raise ConfigurationError(
            f"Engine '{name}': concurrency={settings.concurrency!r:.80} must be from 1 to {_MOST_AT_ONCE}."
        )
    if not isinstance(settings.singleton, bool):
        raise ConfigurationError(f"Engine '{name}': singleton must be True or False.")
    if not isinstance(settings.locks_registry, bool) and settings.locks_registry != "application":
        raise ConfigurationError(f"Engine '{name}': locks_registry must be True, False or 'application'.")
    _check_missed(name, settings)
    _check_seconds(name, "visibility_seconds", settings.lease_seconds, least=1.0)
    _check_seconds(name, "conflict_seconds", settings.conflict_seconds, least=0.0)
    _check_seconds(name, "poll_seconds", settings.poll_seconds, least=0.001)
    try:
        checked_duration(settings.lock_seconds)
    except ConfigurationError as error:
        raise ConfigurationError(f"Engine '{name}': lock_seconds: {error}") from error


def _check_missed(name: str, settings: EngineSettings) -> None:
    if settings.missed not in get_args(Missed):
        raise ConfigurationError(
            f"Engine '{name}': missed={settings.missed!r:.80} must be one of {', '.join(map(repr, get_args(Missed)))}."
        )
    if settings.schedule is None and settings.missed != "newest":
        raise ConfigurationError(
            f"Engine '{name}': missed={settings.missed!r} is about the slots of a schedule: pass one, or leave it out."
        )


def _check_seconds(name: str, setting: str, value: object, *, least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= LONGEST_INVISIBLE_SECONDS:  # type: ignore[operator] # it is a number
        raise ConfigurationError(
            f"Engine '{name}': {setting}={shown_key(value)} must be a number of seconds from {least:g} to "
            f"{LONGEST_INVISIBLE_SECONDS:.0f} (7 days)."
        )
