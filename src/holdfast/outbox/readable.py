"""Messages up to one that cannot be read: it was written past ``append``, or changed since.

It stops its processor, and takes no other with it: those before it are delivered, and nothing is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.engine import CursorResult

from ..core.errors import OutboxError
from ..database.fetching import fetched
from .message import Message

_OWN_COLUMNS = (
    *("transaction_id", "position", "message_id", "message_type", "data", "headers", "message_key"),
    *("correlation_id", "causation_id", "appended_at"),
)
_MESSAGE_ID = _OWN_COLUMNS.index("message_id")
_POSITION = _OWN_COLUMNS.index("position")
_decode = json.JSONDecoder().raw_decode  # what we wrote ourselves has no space around it


@dataclass(frozen=True, slots=True)
class ReadMessages:
    """The first row, None where there was none; the messages; and whether one that cannot be read comes behind them."""

    head: Sequence[Any] | None
    messages: list[Message]
    are_cut: bool


def read_messages(execute: Callable[[], CursorResult[Any]], before: int = 0) -> ReadMessages:
    """Return the messages that a statement reads; ``before`` is how many columns come before a message's own.

    Raises:
        OutboxError: the first one cannot be read.
    """
    found = fetched(execute(), lambda result: result.fetchall(), again=execute)
    messages: list[Message] = []
    unreadable = None
    if found.bad is not None:
        why = found.bad.problem(["?"] * before + list(_OWN_COLUMNS))
        unreadable = _unreadable(found.bad.values[before + _POSITION], why)
    for row in found.rows:
        if before and row[before + _MESSAGE_ID] is None:  # it only tells how far was looked
            continue
        try:
            messages.append(_message(row[before:]))
        except (ArithmeticError, AttributeError, TypeError, ValueError, RecursionError) as error:
            unreadable = _unreadable(row[before + _POSITION], f"data, headers or time are not as written: {error}")
            break
    if unreadable is not None and not messages:
        raise unreadable
    return ReadMessages(found.rows[0] if found.rows else None, messages, unreadable is not None)


def _unreadable(position: object, why: str) -> OutboxError:
    return OutboxError(
        f"The message at position {position} of the outbox cannot be read, and nothing behind it is delivered: its "
        f"{why}. It was not written by hf.outbox.append, or was changed since: mend it, or delete it."
    )


def _message(row: Sequence[Any]) -> Message:
    transaction_id, position, message_id, kind, data, headers, key, correlation_id, causation_id, appended_at = row
    return Message(
        message_id,
        kind,
        _decode(data)[0],
        int(transaction_id),
        position,
        _moment(appended_at),
        key,
        correlation_id,
        causation_id,
        {} if headers is None else _decode(headers)[0],
    )


def _moment(value: Any) -> datetime:
    """Return a moment in UTC, which is also what the database means where it keeps no zone."""
    found: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
