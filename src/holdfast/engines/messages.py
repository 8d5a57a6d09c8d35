"""Engine messages: one JSON form for every queue, in which fields we do not know survive."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from ..core.errors import ConfigurationError, MessageError
from ..core.key_text import is_plain, key_problem, shown_key
from ..core.strict_json import strictly_loaded
from ..records.history import HistoryFilter, SuccessKey
from ..records.schema import ENGINE_LENGTH, ID_LENGTH, PUBLISHER

_DERIVED = uuid.UUID("6b3f3c1e-6f0e-5c0e-9a53-3a1d6f0c7d11")  # correlation ids made from message ids
ENGINE_NAME = re.compile(r"[a-z0-9-]+")
_KNOWN = (
    "messageId",
    "correlationId",
    "engine",
    "operation",
    "instanceId",
    "payload",
    "enqueuedAtUtc",
    "causationId",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMessage:
    """A message that asks an engine for an operation.

    ``application`` is whose queue has it; the body does not tell that.
    """

    message_id: str
    correlation_id: str
    engine: str
    operation: str
    payload: Any
    instance_id: str = PUBLISHER
    enqueued_at: datetime | None = None
    causation_id: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    application: str | None = None

    @property
    def key(self) -> SuccessKey:
        """Return what a success of it is looked up by [ENGINE-2]."""
        return SuccessKey(self.engine, self.operation, self.correlation_id, self.application)

    @property
    def business(self) -> HistoryFilter:
        """Return what the history is asked for all that was done about it."""
        return HistoryFilter(**self.key._asdict())

    def rendered(self) -> str:
        """Return the message as JSON, with every field it came with."""
        known = {
            "messageId": self.message_id,
            "correlationId": self.correlation_id,
            "engine": self.engine,
            "operation": self.operation,
            "instanceId": self.instance_id,
            "payload": self.payload,
            "enqueuedAtUtc": None if self.enqueued_at is None else utc_text(self.enqueued_at),
            "causationId": self.causation_id,
        }
        present = {name: value for name, value in known.items() if value is not None or name == "payload"}
        return json_text({**self.others, **present})


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageIds:
    """What a message is called and what it is about, as far as its sender says so."""

    message_id: str | None = None
    correlation_id: str | None = None
    instance_id: str | None = None
    causation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a message that leaves something out is taken to say, and whose queue it is in."""

    message_id: str
    engine: str
    operation: str
    instance_id: str = PUBLISHER
    application: str | None = None


def parse(body: str, defaults: Defaults) -> EngineMessage:
    """Return the message in a queue's body.

    A correlation id that is left out is derived from engine, operation and message id: the same for every delivery.

    Raises:
        MessageError: it is not JSON, not an object, or a field has the wrong type; the message says which.
    """
    found = _object_in(body)
    engine = _text(found, "engine", defaults.engine, ENGINE_LENGTH)
    if not ENGINE_NAME.fullmatch(engine):
        raise MessageError(f"The message's engine {engine!r:.80} may hold a-z, 0-9 and '-' only.")
    message_id = _text(found, "messageId", defaults.message_id, ID_LENGTH)
    operation = _text(found, "operation", defaults.operation, ID_LENGTH)
    derived = str(uuid.uuid5(_DERIVED, f"{engine}/{operation}/{message_id}"))
    return EngineMessage(
        message_id=message_id,
        correlation_id=_text(found, "correlationId", derived, ID_LENGTH),
        engine=engine,
        operation=operation,
        payload=found.get("payload"),
        instance_id=_text(found, "instanceId", defaults.instance_id, ID_LENGTH),
        enqueued_at=_moment(found.get("enqueuedAtUtc")),
        causation_id=_text(found, "causationId", "", ID_LENGTH) or None,
        others={name: value for name, value in found.items() if name not in _KNOWN},
        application=defaults.application,
    )


def checked_instance(instance_id: object) -> str:
    """Return the instance of messages that name none; ``publisher`` when the application has none either.

    Raises:
        ConfigurationError: no message could name it.
    """
    if instance_id is None:
        return PUBLISHER
    try:
        return _text({"instanceId": instance_id}, "instanceId", "", ID_LENGTH)
    except MessageError as error:
        raise ConfigurationError(
            f"The application's instance_id={instance_id!r:.80} must be a text of 1 to {ID_LENGTH} plain characters."
        ) from error


def readable_ids(body: str) -> dict[str, str]:
    """Return the ids that can be read in a body which as a whole is no message: people look for them."""
    try:
        found = _object_in(body)
    except MessageError:
        return {}
    ids: dict[str, str] = {}
    for name in ("messageId", "correlationId", "instanceId"):
        with suppress(MessageError):
            value = _text(found, name, "", ID_LENGTH)
            if value:
                ids[name] = value
    return ids


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of engine messages."""
    text = resources.files(__package__).joinpath("schemas", "message.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def json_text(fields: Mapping[str, Any]) -> str:
    """Return JSON that is as short as its letters allow: escaped only where half a character would not be encoded."""
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return text if is_plain(text) else json.dumps(fields, separators=(",", ":"))


def utc_text(moment: datetime) -> str:
    """Return a moment as the standard writes it: ISO 8601, UTC."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _object_in(body: str) -> dict[str, Any]:
    try:
        found = strictly_loaded(body)
    except RecursionError as error:
        raise MessageError("The message is nested too deeply to be read.") from error
    except ValueError as error:
        raise MessageError(f"The message is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise MessageError(f"The message is a JSON {type(found).__name__}, not an object with a payload.")
    return found


def _text(found: Mapping[str, Any], name: str, otherwise: str, most: int) -> str:
    value = found.get(name)
    if value is None:
        return otherwise
    problem = key_problem(value, most)
    if problem is None and isinstance(value, str):
        return value
    raise MessageError(f"The message's {name} {shown_key(value)} cannot be used: {problem}.")


def _moment(value: object) -> datetime | None:
    if value is None:
        return None
    try:
        if not isinstance(value, str):
            raise ValueError("not a text")
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise MessageError(
            f"The message's enqueuedAtUtc {value!r:.80} is not a time such as 2026-01-31T12:00:00Z."
        ) from error
