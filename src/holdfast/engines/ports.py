"""What the flow of an engine needs of the world around it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from ..records.dead_letters import DeadLetter
from .messages import EngineMessage
from .queues.protocol import EngineQueue, Received


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an execution ended, for the history. ``error`` is None when it succeeded."""

    message: EngineMessage
    attempt: int
    duration_ms: int
    output: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FailedBefore:
    """An earlier execution that failed."""

    at: datetime
    error: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What only one execution may have at a time, and the message that wants it.

    ``name`` is for people, ``key`` tells scopes apart. ``lock_seconds`` is how long the registry's lock lasts without
    being extended; None to leave the registry alone.
    """

    name: str
    key: str
    job_id: str
    lock_seconds: float | None = None


class EngineRecords(Protocol):
    """The history and the dead letters of engines."""

    def has_succeeded(self, message: EngineMessage) -> bool:
        """Return whether the history knows a success of this engine, operation and correlation id."""
        ...

    def failures(self, message: EngineMessage) -> list[FailedBefore]:
        """Return the executions of the same that failed, oldest first."""
        ...

    def record(self, ended: Ended) -> None:
        """Add an execution to the history."""
        ...

    def settle(self, ended: Ended, queue: EngineQueue, received: Received, reached: Callable[[str], None]) -> None:
        """Add a success to the history, then delete its message; both at once where that can be.

        Raises:
            LostLeaseError: the message is no longer ours, and nothing was recorded.
        """
        ...

    def is_buried(self, message: EngineMessage) -> bool:
        """Return whether a Pending dead letter is about this very message."""
        ...

    def withdraw(self, message: EngineMessage) -> None:
        """Resolve the Pending dead letter of a message whose success was recorded at the same time."""
        ...

    def bury(self, letter: DeadLetter) -> bool:
        """Add a dead letter if it is not there yet; return whether it was added."""
        ...


class Alone(Protocol):
    """What is held while an execution is the only one."""

    @property
    def registry(self) -> Any:
        """Return the locked registry; None when it is not locked."""
        ...

    @property
    def is_lost(self) -> bool:
        """Return whether another execution may have begun."""
        ...

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once that is known."""
        ...

    def let_go(self) -> None:
        """Free what is held at once, because the process ends."""
        ...


class Exclusive(Protocol):
    """Keeps two executions apart."""

    def alone(self, scope: Scope) -> AbstractContextManager[Alone]:
        """Be the only execution of a scope inside the block.

        Raises:
            Conflict: another one is at work, or the registry is locked: 409.
        """
        ...

    def give_up(self, scope: Scope) -> None:
        """Free what a dead execution of this very message may still hold: it will not be tried again."""
        ...
