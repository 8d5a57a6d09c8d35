"""Whether a letter or an entry is wanted, decided here and not in a database: for tables that filter less well."""

from __future__ import annotations

from datetime import datetime

from .dead_letters import DeadLetter, LetterFilter
from .exact import is_plain
from .history import HistoryEntry, HistoryFilter
from .times import utc_moment

_TEXTS = ("engine", "instance_id", "operation", "correlation_id", "error")


def can_match(wanted: LetterFilter | HistoryFilter) -> bool:
    """Return whether anything could be wanted: not between dates the wrong way round, nor with an impossible id.

    Raises:
        ConfigurationError: a date has no time zone.
    """
    since, until = (None if moment is None else utc_moment(moment) for moment in (wanted.since, wanted.until))
    if since is not None and until is not None and since >= until:
        return False
    return all(is_plain(getattr(wanted, name, None) or "") for name in _TEXTS)


def is_letter_wanted(letter: DeadLetter, wanted: LetterFilter) -> bool:
    """Return whether a letter fits everything that is asked for."""
    pairs = [
        (wanted.engine, letter.engine),
        (wanted.status, letter.status),
        (wanted.instance_id, letter.instance_id),
        (wanted.correlation_id, letter.correlation_id),
        (wanted.is_retry_begun, letter.retry_message_id is not None),
    ]
    return (
        all(asked is None or asked == found for asked, found in pairs)
        and _is_between(letter.last_failure_at, wanted)
        and _has_error(letter.error_message, wanted)
    )


def is_entry_wanted(entry: HistoryEntry, wanted: HistoryFilter) -> bool:
    """Return whether an entry fits everything that is asked for."""
    pairs = [
        (wanted.engine, entry.engine),
        (wanted.instance_id, entry.instance_id),
        (wanted.status, entry.status),
        (wanted.operation, entry.operation),
        (wanted.correlation_id, entry.correlation_id),
    ]
    return (
        all(asked is None or asked == found for asked, found in pairs)
        and _is_between(entry.created_at, wanted)
        and _has_error(entry.error, wanted)
    )


def _is_between(moment: datetime, wanted: LetterFilter | HistoryFilter) -> bool:
    return (wanted.since is None or moment >= wanted.since) and (wanted.until is None or moment < wanted.until)


def _has_error(text: str | None, wanted: LetterFilter | HistoryFilter) -> bool:
    return wanted.error is None or wanted.error.casefold() in (text or "").casefold()
