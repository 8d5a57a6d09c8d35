"""Copies of a message: what they carry, so that they count and are buried as the one message they are.

A queue tells how often it delivered a message and since when it has it. A copy starts from nothing, so it says in
fields of its own what it goes on with. A message that has a copy may have a twin: whoever made the copy may have died
before the original was gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..messages import json_text, utc_text
from .protocol import Received

OURS = "holdfast"
CARRIED_COUNT = "holdfastDequeueCount"
CARRIED_TIME = "holdfastInsertedAtUtc"
RETRY_OF = "holdfastRetryOf"
COPIED = "holdfastCopied"
_MOST_CARRIED = 10_000
_EARLIEST, _LATEST = 2000, 9000


def carried_count(body: str) -> int:
    """Return how often the message was delivered before this copy was made."""
    count = (_fields(body) or {}).get(CARRIED_COUNT, 0)
    return count if type(count) is int and 0 < count <= _MOST_CARRIED else 0


def first_inserted(body: str) -> datetime | None:
    """Return since when the queue has the message that this is a copy of; None when it is no copy."""
    try:
        moment = datetime.fromisoformat((_fields(body) or {})[CARRIED_TIME])
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    return moment if _EARLIEST <= moment.year <= _LATEST else None


def put_back_copy(message: Received) -> str:
    """Return the body of a copy whose next delivery counts as this one did."""
    found = _fields(message.body)
    if found is None:
        return message.body
    carried = {CARRIED_COUNT: message.dequeue_count - 1, CARRIED_TIME: utc_text(message.inserted_at)}
    return json_text({**found, "messageId": found.get("messageId") or message.id, **carried})


def retried_copy(body: str, *, message_id: str, correlation_id: str, row_key: str, begun_at: datetime) -> str:
    """Return the body that a dead letter is put back as: a new message about the same business, counted afresh.

    What is no message comes back as it was.
    """
    found = _fields(body)
    if found is None:
        return body
    kept = {name: value for name, value in found.items() if not name.startswith(OURS)}
    new = {
        "messageId": message_id,
        "correlationId": correlation_id,
        "causationId": found.get("messageId") or found.get("causationId"),
        RETRY_OF: row_key,
        CARRIED_TIME: utc_text(begun_at),
    }
    return json_text({**kept, **{name: value for name, value in new.items() if value is not None}})


def marked_as_copied(body: str) -> str:
    """Return the body of a message of which a copy is about to be made."""
    found = _fields(body)
    return body if found is None else json_text({**found, COPIED: True})


def as_sent(body: str) -> str:
    """Return the body as its producer sent it: byte for byte, or for a copy without the fields that we added."""
    found = _fields(body)
    if found is None or not any(name.startswith(OURS) for name in found):
        return body
    return json_text({name: value for name, value in found.items() if not name.startswith(OURS)})


def may_have_twin(fields: Mapping[str, Any]) -> bool:
    """Return whether the same message may be in the queue twice: a copy, its original, a dead letter put back."""
    return any(name in fields for name in (RETRY_OF, CARRIED_COUNT, COPIED))


def _fields(body: str) -> dict[str, Any] | None:
    """Return the fields of a message; None for what is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
