"""Messages as a relay hands them to a sink."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast.outbox.message import Message

APPENDED_AT = datetime(2026, 3, 4, 5, 6, 7, 80_000, tzinfo=UTC)
SOURCE = "/shop"


def message(number: int, **changes: Any) -> Message:
    """Return message ``m<number>``; whatever is not named is the same for all."""
    values: dict[str, Any] = {
        "message_id": f"m{number}",
        "type": "OrderPlaced",
        "data": {"order": number, "note": "zwölf Äpfel"},
        "transaction_id": 700 + number,
        "position": number,
        "appended_at": APPENDED_AT,
        "correlation_id": f"c{number}",
    }
    return Message(**{**values, **changes})


def messages(count: int, **changes: Any) -> list[Message]:
    """Return messages ``m1`` to ``m<count>``."""
    return [message(number, **changes) for number in range(1, count + 1)]
