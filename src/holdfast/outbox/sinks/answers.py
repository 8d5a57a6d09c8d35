"""What an HTTP answer that is no success says: whether to try again, and when [decision 0053]."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

PASSING_4XX = frozenset({401, 403, 407, 408, 409, 421, 423, 424, 425, 429})
"""Of the answers 4xx those that may change by themselves, or when people mend something that is not the message."""
_TELLS_WHEN = (429, 503)


def is_permanent(status: int) -> bool:
    """Return whether the same request will get the same answer: redirects, and 4xx but for a few."""
    return 300 <= status < 500 and status not in PASSING_4XX


def asked_to_wait(status: int, headers: Mapping[str, str], now: datetime) -> float | None:
    """Return how many seconds a 429 or 503 asks to wait by ``Retry-After``, None when it does not.

    A date is taken by the clock of the answer, when that tells its own, else by ``now``.
    """
    if status not in _TELLS_WHEN:
        return None
    header = headers.get("retry-after", "").strip()
    if header.isascii() and header.isdigit() and len(header) <= 9:
        return float(header)
    until = _date(header)
    if until is None:
        return None
    return max(0.0, (until - (_date(headers.get("date", "")) or now)).total_seconds())


def _date(header: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(header)
    except (ValueError, TypeError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
