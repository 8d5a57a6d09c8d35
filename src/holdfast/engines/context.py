"""What an engine's handler learns about the execution it is part of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..runtime.context import HandlerContext

ELSEWHERE = (
    "context.transaction is not available here: the engine's queue and its tables must both be in the application's "
    "database, so that the handler's writes can commit together with the end of the message. Keep them there, or make "
    "the handler idempotent."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext(HandlerContext):
    """The context of one execution.

    ``attempt`` counts deliveries, from 1. ``registry`` is the locked registry of a singleton, None otherwise.
    """

    engine: str
    operation: str
    message_id: str
    instance_id: str
    causation_id: str | None = None
    registry: Any = None
