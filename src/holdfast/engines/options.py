"""The keywords of engines, for type checkers and for completion; nobody imports this at run time.

The values that they become, with their defaults, are in ``definition.py`` and ``messages.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from sqlalchemy.engine import Connection

from ..core.retry import RetryPolicy
from .timers import Missed


class EngineOptions(TypedDict, total=False):
    """What ``hf.engine`` takes beside the name."""

    queue: str | None
    operation: str | None
    singleton: bool
    max_retry_attempts: int
    schedule: str | None
    timezone: str
    missed: Missed
    visibility_seconds: float
    retry_policy: RetryPolicy
    conflict_seconds: float
    locks_registry: bool | Literal["application"]
    lock_seconds: float
    timeout_seconds: float | None
    concurrency: int
    poll_seconds: float


class IdOptions(TypedDict, total=False):
    """What a message may be called, and what it is about."""

    message_id: str | None
    correlation_id: str | None
    instance_id: str | None
    causation_id: str | None


class MessageOptions(IdOptions, total=False):
    """What an operation's ``send`` takes beside the payload."""

    delay_seconds: float
    connection: Connection | None


class SendOptions(IdOptions, total=False):
    """What ``send_audited`` takes beside the engine and the payload."""

    operation: str | None
    others: Mapping[str, Any] | None
    delay_seconds: float
