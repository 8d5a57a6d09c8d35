"""What the flow of an engine needs of the world around it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from ..records.dead_letters import DeadLetter
from .messages import EngineMessage


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

    def bury(self, letter: DeadLetter) -> bool:
        """Add a dead letter if it is not there yet; return whether it was added."""
        ...


class Exclusive(Protocol):
    """Keeps two executions of one singleton apart."""

    def alone(self, engine: str, message: EngineMessage) -> AbstractContextManager[Any]:
        """Be the only execution for the message's instance inside the block.

        Raises:
            Conflict: another one is at work, or the registry is locked: 409.
        """
        ...
