"""Keys that are rotated, and a health check every minute: two engines on SQLite."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from holdfast import EngineContext, EngineMessage, Holdfast

hf = Holdfast("sqlite:///engines.db")


@hf.engine(
    "hmac", queue="hmac-rotation-queue", operation="rotate", singleton=True, max_retry_attempts=3, conflict_seconds=1
)
def rotate(context: EngineContext, message: EngineMessage) -> dict[str, str]:
    """Make a new key for an instance and keep the one before, so that both are good for a while."""
    if message.payload and message.payload.get("fail"):
        raise RuntimeError("the key vault did not answer")
    registry = context.registry.registry  # of this instance alone
    if registry.get("rotatedBy") != context.correlation_id:  # this rotation was not done yet
        new = {"current": secrets.token_hex(8), "previous": registry.get("current")}
        context.registry.change({**new, "rotatedBy": context.correlation_id})
    return {"instance": context.instance_id, "rotatedBy": context.correlation_id}


@hf.engine("health", queue="health-notifications-queue", operation="check", schedule="* * * * *")
def check(context: EngineContext, message: EngineMessage) -> dict[str, str]:
    """Look whether the registry can be read."""
    view = hf.registry.read()
    state = "healthy" if view is not None else "no registry yet"
    return {"at": datetime.now(UTC).isoformat(), "state": state}
