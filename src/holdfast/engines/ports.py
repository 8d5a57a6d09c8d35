"""What the flow of an engine needs of the world around it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from .messages import EngineMessage

if TYPE_CHECKING:
    from .claimed import ClaimedDelivery
    from .queue_delivery import QueuedDelivery


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an execution ended, for the history. ``error`` is None when it succeeded, why when it was skipped."""

    message: EngineMessage
    attempt: int
    duration_ms: int
    output: str | None = None
    error: str | None = None
    traceback: str | None = None
    is_skipped: bool = False


@dataclass(frozen=True, slots=True)
class FailedBefore:
    """An earlier execution that failed: when, why, and at which delivery (0: unknown)."""

    at: datetime
    error: str
    attempt: int = 0
    traceback: str | None = None


def worker_lost_before(count: int) -> str:
    """Return the error of a message whose delivery number ``count`` finds no error of those before it."""
    return f"worker lost during attempt {max(1, count - 1)}"


@dataclass(frozen=True, slots=True)
class Scope:
    """What only one execution may have at a time, and the message that wants it.

    ``name`` is for people, ``key`` tells scopes apart. ``lock_seconds`` is how long the registry's lock lasts without
    being extended; None to leave the registry alone. ``instance_id`` is whose registry it is; None, the application's.
    """

    name: str
    key: str
    job_id: str
    lock_seconds: float | None = None
    instance_id: str | None = None


Delivery: TypeAlias = "ClaimedDelivery | QueuedDelivery"
"""One delivery of a message: how it is held while it is worked on, and how it ends.

It ends once, by ``succeed``, ``retry``, ``bury``, ``forget`` or ``put_back``; what is lost does not end at all. An end
that does not get through lets the message come again.
"""
