"""Keys that are rotated, and a health check every minute: two engines on SQLite."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

from holdfast import EngineContext, EngineMessage, Holdfast

hf = Holdfast("sqlite:///engines.db")


@hf.engine(
    "hmac", queue="hmac-rotation-queue", operation="rotate", singleton=True, max_retry_attempts=3, conflict_seconds=1
)
def rotate(context: EngineContext, message: EngineMessage) -> dict[str, str]:
    """Make a new key for an instance and keep the one before, so that both are good for a while."""
    instance = context.instance_id
    if message.payload and message.payload.get("fail"):
        raise RuntimeError("the key vault did not answer")
    registry = context.registry.registry
    keys: dict[str, Any] = registry.get("keys", {})
    if keys.get(instance, {}).get("rotatedBy") != context.correlation_id:  # this rotation was not done yet
        new = {"current": secrets.token_hex(8), "rotatedBy": context.correlation_id}
        keys[instance] = {**new, "previous": keys.get(instance, {}).get("current")}
        context.registry.change({"keys": keys})
    return {"instance": instance, "rotatedBy": context.correlation_id}


@hf.engine("health", queue="health-notifications-queue", operation="check", schedule="* * * * *")
def check(context: EngineContext, message: EngineMessage) -> dict[str, str]:
    """Look whether the registry can be read."""
    view = hf.registry.read()
    state = "healthy" if view is not None else "no registry yet"
    return {"at": datetime.now(UTC).isoformat(), "state": state}
