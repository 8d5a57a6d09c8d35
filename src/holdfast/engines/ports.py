"""What the flow of an engine needs of the world around it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from ..core.types import JsonValue
from ..records.dead_letters import DeadLetter
from ..runtime.transaction import HandlerTransaction
from .messages import EngineMessage
from .queues.protocol import Received


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
    """The history and the dead letters of engines, as the flow looks at them."""

    def has_succeeded(self, message: EngineMessage) -> bool:
        """Return whether the history knows a success of this engine, operation and correlation id."""
        ...

    def failures(self, message: EngineMessage) -> list[FailedBefore]:
        """Return the executions of the same that failed, oldest first."""
        ...

    def is_buried(self, message: EngineMessage) -> bool:
        """Return whether a Pending dead letter is about this very message."""
        ...


class Delivery(Protocol):
    """One delivery of a message: how it is held while it is worked on, and how it ends.

    It ends once, by ``succeed``, ``retry``, ``bury``, ``forget`` or ``put_back``; what is lost does not end at all. An
    end that does not get through lets the message come again.
    """

    @property
    def received(self) -> Received:
        """Return the message as it was handed out."""
        ...

    @property
    def message(self) -> EngineMessage | None:
        """Return the message if it was read before."""
        ...

    @property
    def fencing_token(self) -> int:
        """Return a number that grows with every holder of the message."""
        ...

    @property
    def transaction(self) -> HandlerTransaction | None:
        """Return the transaction that commits together with ``succeed`` and ``record``; None where there is none."""
        ...

    @property
    def lost(self) -> threading.Event:
        """Return what is set once the message is, or may be, someone else's."""
        ...

    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once the message is lost; return what takes that back."""
        ...

    def mark_lost(self) -> None:
        """Take the message for someone else's from now on."""
        ...

    def held(self, seconds: float) -> AbstractContextManager[None]:
        """Keep the message from others inside the block; ``seconds`` is for queues that do not know for how long."""
        ...

    def holds_also(self, let_go: Callable[[], None]) -> None:
        """Learn how to free what the execution holds besides, for a process that ends before it."""
        ...

    def beat(self, progress: JsonValue) -> None:
        """Keep the message for its whole time from now on, and say how far the work is where that is kept.

        Raises:
            LostLeaseError: it is no longer ours.
        """
        ...

    def has_succeeded(self, message: EngineMessage) -> bool:
        """Return whether the history knows a success of this engine, operation and correlation id [ENGINE-2].

        Raises:
            Conflict: another message about the same is at work in this process.
        """
        ...

    def undo(self, error: Exception) -> Exception:
        """Undo what the handler wrote in its transaction before it raised; return the error to go on with."""
        ...

    def succeed(self, ended: Ended) -> None:
        """Record a success and delete its message.

        Raises:
            LostLeaseError: the message is no longer ours, and nothing was recorded.
            TransactionEndedError: the handler ended its transaction itself; nothing was recorded.
            HandlerError: the handler's writes could not be committed; nothing was kept.
        """
        ...

    def record(self, ended: Ended) -> None:
        """Record a success whose message is deleted later, by ``forget``. Raises as ``succeed`` does."""
        ...

    def retry(self, ended: Ended, delay_seconds: float) -> None:
        """Record a failure, and let the message come again after a while, counted."""
        ...

    def bury(self, letter: DeadLetter, message: EngineMessage | None, ended: Ended | None = None) -> None:
        """Add a dead letter, record the execution that led to it if there was one, and delete the message."""
        ...

    def forget(self, recorded: EngineMessage | None = None) -> None:
        """Delete a message that needs no execution any more; ``recorded`` is given after ``record``."""
        ...

    def put_back(self, delay_seconds: float, reason: str) -> None:
        """Let the message come again after a while with its count as it was."""
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
