"""Messages: what is appended, what is delivered, and where in the outbox's order each one stands."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..core.clock import new_id
from ..core.errors import ConfigurationError, MessageError
from ..core.key_text import key_problem, shown_key

MAX_MESSAGE_BYTES = 1024 * 1024
LONGEST_NAME = 200
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_CHECKPOINT = re.compile(r"(\d{1,20}):(-?\d{1,19})")


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A place in the outbox: the last message that was passed. Compared as a pair.

    On PostgreSQL ``transaction_id`` is the id of the transaction that wrote the message; elsewhere, and for processors
    that read in the order of positions, it is 0.
    """

    transaction_id: int
    position: int

    def __str__(self) -> str:
        return f"{self.transaction_id}:{self.position}"

    @classmethod
    def parse(cls, text: object) -> Checkpoint:
        """Return the checkpoint written as ``transaction:position``.

        Raises:
            ConfigurationError: it is not written like that.
        """
        found = _CHECKPOINT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ConfigurationError(
                f"{text!r} is not a checkpoint. Write it as 'holdfast processor list' shows it: transaction:position."
            )
        return cls(int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it is delivered. ``message_id`` is the same at every delivery: deduplicate by it."""

    message_id: str
    type: str
    data: Any
    transaction_id: int
    position: int
    appended_at: datetime
    key: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Checkpoint:
        """Return where it stands."""
        return Checkpoint(self.transaction_id, self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to append.

    Args:
        type: what happened, such as ``OrderPlaced``; processors choose by it.
        data: anything that is JSON.
        message_id: made up when left out. Appending the same id again changes nothing and is reported.
        key: messages with the same key go to the same partition, in order.
        correlation_id: what the message belongs to; its own id when left out.
        causation_id: the message or request that led to this one.
        headers: what else consumers should know; JSON.
    """

    type: str
    data: Any
    message_id: str | None = None
    key: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    headers: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of an append: ``is_new`` is False when a message with this id was there already."""

    message_id: str
    is_new: bool


def columns_of(message: NewMessage, most_bytes: int = MAX_MESSAGE_BYTES) -> dict[str, object]:
    """Return a message as its row holds it.

    Raises:
        MessageError: it is not JSON, is too large, or a name cannot be stored; nothing was appended.
    """
    kind = _checked_text("type", message.type)
    message_id = new_id() if message.message_id is None else _checked_text("message_id", message.message_id)
    key = None if message.key is None else _checked_text("key", message.key)
    return {
        "message_id": message_id,
        "message_type": kind,
        "data": _as_json(kind, "data", message.data, most_bytes),
        "headers": None
        if message.headers is None
        else _as_json(kind, "headers", _mapping(message.headers), most_bytes),
        "message_key": key,
        "key_hash": key_hash(key or message_id),
        "correlation_id": _checked_text("correlation_id", message.correlation_id or message_id),
        "causation_id": None if message.causation_id is None else _checked_text("causation_id", message.causation_id),
    }


def _mapping(headers: object) -> dict[str, Any]:
    if not isinstance(headers, Mapping):
        raise MessageError(f"A message's headers must be a mapping of names to values, not {headers!r:.80}.")
    return dict(headers)


def key_hash(text: str) -> int:
    """Return a number below 2**31 that is the same for equal texts, in every process and version."""
    return zlib.crc32(text.encode()) & 0x7FFFFFFF


def _as_json(kind: str, part: str, value: object, most_bytes: int) -> str:
    try:
        rendered = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(rendered.encode())
    except UnicodeEncodeError as error:
        raise MessageError(
            f"The {part} of '{kind}' has half of a surrogate pair, which is no text: {error}."
        ) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(
            f"The {part} of '{kind}' is not JSON: {error}. Pass dicts, lists, texts, numbers, booleans and None."
        ) from error
    if size > most_bytes:
        raise MessageError(
            f"The {part} of '{kind}' has {size:,} bytes, and at most {most_bytes:,} are taken. Store it elsewhere and "
            "append where it can be found, or raise hf.outbox.max_message_bytes."
        )
    if _NUL.search(rendered):
        raise MessageError(f"The {part} of '{kind}' has a NUL character, which databases do not take. Remove it.")
    return rendered


def _checked_text(part: str, value: object) -> str:
    problem = key_problem(value, LONGEST_NAME)
    if problem is None and isinstance(value, str):
        return value
    raise MessageError(f"A message's {part} {shown_key(value)} cannot be used: {problem}.")
