r"""Row keys: how one history entry or dead letter is named in an address, a command and an Azure Table.

The standard's form is ``{correlationId}-{timestamp}``. Ids come from users, and a key of an Azure Table may hold no
``/ \ # ?`` and no control characters, so those (and ``%``, which some clients decode) are written as ``~`` and two
hexadecimal digits. Two entries can end in one microsecond, so the key of a history entry ends with the row's id.
An id too long for a key is cut, and told apart by its hash behind ``~~``, which no encoded id holds.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import NamedTuple

from ..core.errors import ConfigurationError

LONGEST_KEY = 300
LONGEST_TABLE_KEY = 512  # of an Azure Table, in units of UTF-16: 1 KiB
_KEPT_OF_A_LONG_ID = 200
_LONGEST_NAME = 277  # with its timestamp it is as long as a key may be
_ILLEGAL = re.compile(r"[/\\#?%~\x00-\x1f\x7f-\x9f]")
_ILLEGAL_IN_A_TABLE = re.compile(r"[/\\#?\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPED = re.compile(r"~([0-9A-F]{2})")
_LARGEST_ID = 2**63 - 1  # what a column can hold
_TIMESTAMP = "%Y%m%dT%H%M%S%fZ"
_HISTORY_KEY = re.compile(r"(?s)(.*)-(\d{8}T\d{12}Z)-([1-9]\d{0,18})", re.ASCII)


class HistoryKey(NamedTuple):
    """What the row key of a history entry says."""

    correlation_id: str
    created_at: datetime
    id: int


def encoded(identifier: str) -> str:
    """Return an id as it may stand in a row key; ``decoded`` gives it back."""
    return _ILLEGAL.sub(lambda found: f"~{ord(found[0]):02X}", identifier)


def decoded(text: str) -> str:
    """Return the id that ``encoded`` was given.

    Raises:
        ConfigurationError: no id is encoded so.
    """
    identifier = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    if encoded(identifier) != text:
        raise _not_a_key(text)
    return identifier


def timestamp_of(moment: datetime) -> str:
    """Return a moment as it stands in a row key: UTC, to the microsecond."""
    utc = moment.astimezone(UTC)
    return f"{utc.year:04d}{utc:%m%dT%H%M%S%f}Z"  # %Y has leading zeros on some systems only


def is_table_key(key: str) -> bool:
    """Return whether an Azure Table takes the key."""
    return not _ILLEGAL_IN_A_TABLE.search(key) and 0 < len(key.encode("utf-16-le")) // 2 <= LONGEST_TABLE_KEY


def table_history_prefix(correlation_id: str) -> str:
    """Return how the keys of a correlation id's history begin in an Azure Table; those of other ids may, too."""
    return f"{_shortened(correlation_id)}-"


def table_history_key(correlation_id: str, created_at: datetime, entry_id: int) -> str:
    """Return the row key of a history entry in an Azure Table: ``history_key``, if that is short enough."""
    return f"{table_history_prefix(correlation_id)}{timestamp_of(created_at)}-{entry_id}"


def history_key(correlation_id: str, created_at: datetime, row_id: int) -> str:
    """Return the row key of a history entry."""
    return f"{encoded(correlation_id)}-{timestamp_of(created_at)}-{row_id}"


def parsed_history_key(row_key: str) -> HistoryKey:
    """Return what ``history_key`` was given.

    Raises:
        ConfigurationError: it is no row key of a history entry.
    """
    found = _HISTORY_KEY.fullmatch(row_key)
    if found is None:
        raise _not_a_key(row_key)
    correlation_id, timestamp, row_id = found.groups()
    try:
        created_at = datetime.strptime(timestamp, _TIMESTAMP).replace(tzinfo=UTC)
    except ValueError:
        raise _not_a_key(row_key) from None
    if int(row_id) > _LARGEST_ID:
        raise _not_a_key(row_key)
    return HistoryKey(decoded(correlation_id), created_at, int(row_id))


def check_history_key(row_key: str) -> None:
    """Check that a text can be the row key of a history entry, in a database or in an Azure Table.

    Raises:
        ConfigurationError: it cannot.
    """
    if _HISTORY_KEY.fullmatch(row_key) is None:
        raise _not_a_key(row_key)


def dead_letter_key(item: str, last_failure_at: datetime) -> str:
    """Return the row key of a dead letter: equal for equal item and moment, so that a repeated write is one row.

    An id too long for a key is cut and told apart by its hash: a letter is never refused for it.
    """
    return f"{_shortened(item)}-{timestamp_of(last_failure_at)}"


def key_beside(row_key: str, application: str) -> str:
    """Return the row key of a dead letter whose usual key is that of another application's letter."""
    digest = hashlib.sha256(f"{application}/{row_key}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{row_key[: LONGEST_KEY - len(digest) - 2]}~~{digest}"


def _shortened(identifier: str) -> str:
    """Return an id as it may stand in a key with a limit."""
    name = encoded(identifier)
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{name[:_KEPT_OF_A_LONG_ID]}~~{digest}"


def _not_a_key(text: str) -> ConfigurationError:
    return ConfigurationError(f"'{text[:100]}' is not a row key. Take it from a listing.")
