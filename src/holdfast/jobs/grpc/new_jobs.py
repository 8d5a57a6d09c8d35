"""Jobs to be added, on the wire and off it.

What the server's application declares for a handler holds for jobs that come in from outside too: its settings are the
defaults, and its signature is what the payload must fit. A handler it does not declare is somebody else's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from ...core.errors import PayloadError
from ..definition import JobDefinition
from ..model import NewJob
from ..payload import MAX_PAYLOAD_BYTES
from ..settings import (
    JobSettings,
    checked_key,
    checked_lease,
    checked_max_attempts,
    checked_moment,
    checked_priority,
    checked_seconds,
    checked_tags,
    checked_topic,
    own_topic,
)
from . import holdfast_jobs_pb2 as wire
from .moments import moment_of, timestamp_of
from .texts import checked_json

_KEYS = ("unique_key", "limit_key", "correlation_id", "instance_id")
_SETTINGS = ("priority", "max_attempts", "lease_seconds", "retry_base_seconds", "retry_max_seconds")


class NewJobReader:
    """Turns messages into jobs.

    Args:
        definitions: what the server's application declares.
        now: the database's time, asked for only when a job is to be delayed.
        most_bytes: the largest payload of a handler that is not declared here.
    """

    def __init__(
        self,
        definitions: Mapping[tuple[str, str], JobDefinition],
        now: Callable[[], datetime],
        most_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self._definitions = definitions
        self._now = now
        self._most_bytes = most_bytes

    def read(self, what: str, message: wire.NewJob) -> NewJob:
        """Return the job of a message.

        Raises:
            ConfigurationError: a name or a number cannot be used.
            PayloadError: the payload is not a JSON object, too large, or does not fit the declared handler.
        """
        topic = own_topic(message.topic, f"{what}: topic")
        operation = checked_topic(f"{what}: operation", message.operation)
        declared = self._definitions.get((topic, operation))
        return NewJob(
            topic=topic,
            operation=operation,
            payload=self._payload(f"{what} for '{operation}': its payload", message.payload or "{}", declared),
            run_at=self._run_at(what, message),
            **_settings(what, message, declared.settings if declared else JobSettings()),
            **_keys(what, message),
        )

    def _payload(self, what: str, payload: str, declared: JobDefinition | None) -> str:
        most_bytes = declared.codec.max_bytes if declared else self._most_bytes
        found = checked_json(what, payload, most_bytes=most_bytes)
        if not isinstance(found, dict):
            raise PayloadError(f"{what} is a JSON {type(found).__name__}, not an object of argument names and values.")
        if declared is not None:
            declared.codec.require_exact(payload)
        return payload

    def _run_at(self, what: str, message: wire.NewJob) -> datetime | None:
        match message.WhichOneof("when"):
            case "run_at":
                return checked_moment(f"{what}: run_at", moment_of(f"{what}: run_at", message.run_at))
            case "delay_seconds":
                seconds = checked_seconds(f"{what}: delay_seconds", message.delay_seconds)
                return self._now() + timedelta(seconds=seconds)
        return None


def _settings(what: str, message: wire.NewJob, defaults: JobSettings) -> dict[str, Any]:
    given: dict[str, Any] = {name: getattr(message, name) for name in _SETTINGS if message.HasField(name)}
    if "priority" in given:
        checked_priority(given["priority"])
    if "max_attempts" in given:
        given["max_attempts"] = checked_max_attempts(given["max_attempts"] or None)
    for name in ("lease_seconds", "retry_base_seconds", "retry_max_seconds"):
        if name in given:
            (checked_lease if name == "lease_seconds" else checked_seconds)(f"{what}: {name}", given[name])
    return {**{name: getattr(defaults, name) for name in _SETTINGS}, **given, **_window(what, message, defaults)}


def _window(what: str, message: wire.NewJob, defaults: JobSettings) -> dict[str, Any]:
    if not message.HasField("unique_key"):
        return {}
    if message.HasField("unique_seconds"):
        return {"unique_seconds": checked_seconds(f"{what}: unique_seconds", message.unique_seconds)}
    return {"unique_seconds": defaults.unique_seconds}


def _keys(what: str, message: wire.NewJob) -> dict[str, Any]:
    keys: dict[str, Any] = {
        name: checked_key(f"{what}: {name}", getattr(message, name)) for name in _KEYS if message.HasField(name)
    }
    if message.tags:
        keys["tags"] = checked_tags(list(message.tags))
    return keys


def new_job_message(
    topic: str, operation: str, arguments: Mapping[str, object], options: Mapping[str, Any]
) -> wire.NewJob:
    """Return the message that adds a job.

    Raises:
        PayloadError: the arguments are not JSON.
    """
    try:
        payload = json.dumps(dict(arguments), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"The arguments of '{operation}' cannot be kept as JSON: {error}.") from error
    given = {name: value for name, value in options.items() if value is not None}
    if "run_at" in given:
        given["run_at"] = timestamp_of(given["run_at"])
    try:
        return wire.NewJob(topic=topic, operation=operation, payload=payload, **given)
    except (TypeError, ValueError) as error:
        raise PayloadError(f"A job for '{operation}' cannot be sent: {error}.") from error
