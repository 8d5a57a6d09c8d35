"""An engine as it was declared."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.errors import ConfigurationError
from ..core.invocation import HandlerInvoker
from ..core.retry import RetryPolicy
from ..records.schema import ENGINE_LENGTH, ID_LENGTH

_NAME = re.compile(r"[a-z0-9-]+")
_QUEUE = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")
LEAST_ATTEMPTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How an engine works.

    ``max_retry_attempts`` is the standard's: a message whose dequeue count has reached it goes to the dead letters
    instead of being executed. So n means at most n - 1 executions.
    """

    queue: str
    operation: str
    singleton: bool
    max_retry_attempts: int
    visibility_seconds: float
    retry_policy: RetryPolicy
    conflict_seconds: float


class EngineDefinition:
    """A handler with its settings, checked. The handler gets the context and the message."""

    def __init__(self, name: str, handler: Callable[..., Any], settings: EngineSettings) -> None:
        self.name = _checked_name(name)
        self.settings = settings
        self.handler = handler
        _check(self.name, settings)
        self.invoker = HandlerInvoker(lambda messages, context: handler(context, messages[0]))

    def __repr__(self) -> str:
        return f"EngineDefinition({self.name!r}, queue={self.settings.queue!r})"


def _checked_name(name: object) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name) and len(name) <= ENGINE_LENGTH:
        return name
    raise ConfigurationError(
        f"The engine name {name!r:.80} cannot be used: it is the partition of its dead letters, so use 1 to "
        f"{ENGINE_LENGTH} of a-z, 0-9 and '-'."
    )


def _check(name: str, settings: EngineSettings) -> None:
    if not _QUEUE.fullmatch(settings.queue):
        raise ConfigurationError(
            f"Engine '{name}': queue={settings.queue!r:.80} is no name for a queue: use 3 to 63 of a-z, 0-9 and single "
            "'-', as Azure Storage asks for."
        )
    if not settings.operation or len(settings.operation) > ID_LENGTH:
        raise ConfigurationError(f"Engine '{name}': operation must be a text of 1 to {ID_LENGTH} characters.")
    if type(settings.max_retry_attempts) is not int or settings.max_retry_attempts < LEAST_ATTEMPTS:
        raise ConfigurationError(
            f"Engine '{name}': max_retry_attempts={settings.max_retry_attempts!r} would never execute anything: a "
            f"message that was dequeued that often is dead, so n means n - 1 executions. Use {LEAST_ATTEMPTS} or more."
        )
    if settings.visibility_seconds < 1 or settings.conflict_seconds < 0:
        raise ConfigurationError(
            f"Engine '{name}': visibility_seconds must be 1 or more, and conflict_seconds 0 or more."
        )
