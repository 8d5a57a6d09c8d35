"""Which orchestration belongs to which message: pure, for every backend."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ...core.errors import ConfigurationError
from ..context import EngineContext
from ..messages import EngineMessage

ID_LENGTH = 100  # as much as Azure Durable Functions takes
_DIGEST_LENGTH = 32
_SAFE = re.compile(r"[A-Za-z0-9._:-]+")  # no / \ # ? and no @ in front: legal in every backend
_UNSAFE = re.compile(r"[^A-Za-z0-9._:-]+")
_OWNER_FIELDS = ("engine", "operation", "correlationId")


class Phase(StrEnum):
    """How far an instance is, as far as a delivery needs to know."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom an instance works for: an execution of the history is known by the same three."""

    engine: str
    operation: str
    correlation_id: str

    @classmethod
    def of(cls, message: EngineMessage) -> Owner:
        """Return the owner of what is started for a message."""
        return cls(message.engine, message.operation, message.correlation_id)

    @classmethod
    def in_input(cls, found: object) -> Owner | None:
        """Return the owner that an instance's input tells, None when it was not started for a message."""
        if not isinstance(found, dict):
            return None
        values = [found.get(name) for name in _OWNER_FIELDS]
        return cls(*map(str, values)) if all(isinstance(value, str) for value in values) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance as a backend shows it. ``created_at`` tells one that was started anew from the one before."""

    phase: Phase
    owner: Owner | None
    created_at: datetime | None
    output: object = None
    error: str = ""


def instance_id(message: EngineMessage, *, is_singleton: bool) -> str:
    """Return the id of the orchestration for a message: the same at every delivery.

    What is too long or has characters that a backend refuses is shortened and told apart by a digest.
    """
    parts = [message.engine, message.instance_id]
    if not is_singleton:
        parts = [message.engine, message.operation, message.correlation_id]
    plain = "-".join(parts)
    if _SAFE.fullmatch(plain) and len(plain) <= ID_LENGTH:
        return plain
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{_UNSAFE.sub('_', plain)[: ID_LENGTH - _DIGEST_LENGTH - 1]}-{digest}"


def input_of(message: EngineMessage, context: EngineContext) -> dict[str, Any]:
    """Return what the orchestrator gets: the message as a JSON object.

    That of a singleton has ``registryLock``, with the job that the registry is locked for, and the instance whose
    registry that is (null: the application's). Activities change it under that name, whichever worker holds the lock
    by then: ``hf.registry.instance(lock["instanceId"]).change(lock["jobId"], …)``.
    """
    given: dict[str, Any] = json.loads(message.rendered())
    if context.registry is not None:
        given["registryLock"] = {"jobId": context.registry.job_id, "instanceId": context.registry.instance_id}
    return given


def continued_input(before: object, new_input: object) -> object:
    """Return the input with which an orchestration continues as new: it still tells whom it works for.

    Raises:
        ConfigurationError: the new input is no object, so it cannot.
    """
    if Owner.in_input(before) is None:
        return new_input
    assert isinstance(before, dict)
    if not isinstance(new_input, dict):
        raise ConfigurationError(
            f"An engine's orchestration continues as new with a JSON object, not with {type(new_input).__name__}: it "
            "must still tell whom it works for. Use continue_as_new({**input, …})."
        )
    return {**new_input, **{name: before[name] for name in _OWNER_FIELDS}}
