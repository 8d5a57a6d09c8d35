"""Letters and entries as rows of Azure tables: the standard's properties, and a few of ours.

A row of another program is read, too, as far as it goes: a letter without a status is Pending, a status that we do not
know is Unknown, a text that is missing is empty, and a time that is missing is the row's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ...core.errors import ConfigurationError
from ...core.extras import needed
from ...records.dead_letters import DeadLetter, LetterStatus, check_letter_ids
from ...records.history import HistoryEntry, HistoryStatus, check_entry_ids
from ...records.row_keys import encoded, is_table_key
from ...records.schema import PUBLISHER
from ...records.storable_text import given, kept, legible
from ...records.times import utc_moment
from .azure_table import EARLIEST
from .long_texts import text_in, text_left_in, with_texts

with needed("Engine tables in Azure need azure-data-tables", "azure"):
    from azure.data.tables import EdmType, EntityProperty, TableEntity

_TextIn = Callable[[TableEntity, str], str | None]
_Status = TypeVar("_Status", bound=StrEnum)
_MOST_INT32 = 2**31 - 1
_MOST_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedEntry(HistoryEntry):
    """A history entry whose row key is stored."""

    key: str

    @property
    def row_key(self) -> str:
        """Return the entry's key within its engine."""
        return self.key


def partition_of(engine: str) -> str:
    """Return the partition key of an engine."""
    return encoded(engine)


def letter_row(letter: DeadLetter) -> dict[str, object]:
    """Return a letter as a row.

    Raises:
        ConfigurationError: an id or the key cannot be one of a row, or the letter is too large for one.
    """
    check_letter_ids(letter)
    if not is_table_key(letter.row_key):
        raise ConfigurationError(
            f"{letter.row_key[:40]!r} cannot be a row key in an Azure table. Make it with 'dead_letter_key'."
        )
    return _row_of(letter, LETTER_FIELDS, f"The dead letter '{letter.row_key}'")


def listed_letter_in(row: TableEntity) -> DeadLetter:
    """Return the letter in a row, for a listing, which no single row may spoil: what is left of a text is all of it."""
    return letter_in(row, text_left_in)


def letter_in(row: TableEntity, text_in: _TextIn = text_in) -> DeadLetter:
    """Return the letter in a row.

    Raises:
        ConfigurationError: a part of a text is missing.
    """
    last_failure_at = _moment(row, "LastFailureAtUtc") or _written_at(row)
    missing = {"original_queue": "", "original_message": "", "error_message": "", "dequeue_count": 0}
    moments = {"first_failure_at": last_failure_at, "last_failure_at": last_failure_at}
    return DeadLetter(row_key=row["RowKey"], **_fields_in(row, LETTER_FIELDS, text_in, missing | moments))


def entry_row(entry: KeyedEntry) -> dict[str, object]:
    """Return an entry as a row.

    Raises:
        ConfigurationError: an id cannot be one of a row, or the entry is too large for one.
    """
    check_entry_ids(entry)
    return _row_of(entry, _ENTRY_FIELDS, f"The history entry '{entry.key}'")


def listed_entry_in(row: TableEntity) -> KeyedEntry:
    """Return the entry in a row, for a listing, which no single row may spoil: what is left of a text is all of it."""
    return entry_in(row, text_left_in)


def entry_in(row: TableEntity, text_in: _TextIn = text_in) -> KeyedEntry:
    """Return the entry in a row.

    Raises:
        ConfigurationError: a part of a text is missing.
    """
    missing = {"id": 0, "operation": "", "duration_ms": 0, "created_at": _written_at(row)}
    return KeyedEntry(key=row["RowKey"], **_fields_in(row, _ENTRY_FIELDS, text_in, missing))


def _row_of(record: DeadLetter | KeyedEntry, fields: _Fields, what: str) -> dict[str, object]:
    values = {name: getattr(record, field) for name, (field, _) in fields.items()}
    written = {name: fields[name][1].write(value) for name, value in values.items() if value is not None}
    texts = {name: str(written.pop(name)) for name, (_, form) in fields.items() if form.is_long and name in written}
    keys = {"PartitionKey": partition_of(record.engine), "RowKey": record.row_key}
    return with_texts(keys | written, texts, what)


def _fields_in(row: TableEntity, fields: _Fields, text_in: _TextIn, missing: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of a record, and what stands for those that its row does not have."""
    found = {field: _read(row, name, form, text_in) for name, (field, form) in fields.items()}
    missing = {"engine": row["PartitionKey"], "instance_id": PUBLISHER, "correlation_id": "", **missing}
    return {**found, **{field: found[field] or value for field, value in missing.items()}}


def _read(row: TableEntity, name: str, form: _Form, text_in: _TextIn) -> object:
    if not form.is_long:
        return form.read(row, name)
    text = text_in(row, name)
    return None if text is None else form.read(text)


def table_moment(moment: datetime) -> datetime:
    """Return a moment as a table keeps it.

    Raises:
        ConfigurationError: it has no time zone, or is before 1601, where the calendar of Azure's tables begins.
    """
    in_utc = utc_moment(moment)
    if in_utc < EARLIEST:
        raise ConfigurationError(f"The time {moment.isoformat()} is before 1601, and Azure tables keep none such.")
    return in_utc


def _long(number: int) -> EntityProperty:
    return EntityProperty(min(max(0, number), _MOST_INT64), EdmType.INT64)


def _text(row: Mapping[str, object], name: str) -> str | None:
    value = _plain(row.get(name))
    return None if value is None else str(value)


def _number(row: Mapping[str, object], name: str) -> int | None:
    value = _plain(row.get(name))
    with suppress(ValueError, OverflowError):  # not a number, or infinite
        return int(value) if isinstance(value, int | float) else None
    return None


def _moment(row: Mapping[str, object], name: str) -> datetime | None:
    """Return a moment; other programs write some as texts."""
    value = _plain(row.get(name))
    with suppress(ValueError, OverflowError):
        if isinstance(value, datetime):
            value = value.isoformat()  # not the SDK's own class
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return None


def _plain(value: object) -> object:
    return value.value if isinstance(value, EntityProperty) else value


def _written_at(row: TableEntity) -> datetime:
    return _moment(row.metadata, "timestamp") or EARLIEST


def _letter_status(row: TableEntity, name: str) -> LetterStatus:
    """Return a letter's status. One that we do not know is not taken for Pending: nobody here may change it."""
    return LetterStatus.PENDING if _text(row, name) is None else _status(LetterStatus, row, name)


def _status(statuses: type[_Status], row: TableEntity, name: str) -> _Status:
    written = _text(row, name)
    return statuses(written if written in set(statuses) else "Unknown")


class _Form(NamedTuple):
    """How a property is written and read; ``read`` takes a long text itself, of anything else row and name."""

    write: Callable[[Any], object]
    read: Callable[..., object]
    is_long: bool = False


_TEXT = _Form(str, _text)
_INT32 = _Form(lambda number: min(number, _MOST_INT32), _number)
_INT64 = _Form(_long, _number)
_MOMENT = _Form(table_moment, _moment)
_EXACT = _Form(kept, given, is_long=True)
_LEGIBLE = _Form(legible, str, is_long=True)

_Fields = dict[str, tuple[str, _Form]]
_OF_BOTH: _Fields = {
    "Engine": ("engine", _TEXT),
    "InstanceId": ("instance_id", _TEXT),
    "CorrelationId": ("correlation_id", _TEXT),
    "ItemId": ("item_id", _TEXT),
    "Application": ("application", _TEXT),
    "Traceback": ("traceback", _LEGIBLE),
}
LETTER_FIELDS: _Fields = _OF_BOTH | {
    "OriginalQueue": ("original_queue", _TEXT),
    "OriginalMessage": ("original_message", _EXACT),
    "ErrorMessage": ("error_message", _LEGIBLE),
    "DequeueCount": ("dequeue_count", _INT32),
    "FirstFailureAtUtc": ("first_failure_at", _MOMENT),
    "LastFailureAtUtc": ("last_failure_at", _MOMENT),
    "Status": ("status", _Form(str, _letter_status)),
    "ResolutionNotes": ("resolution_notes", _LEGIBLE),
    "ResolvedAtUtc": ("resolved_at", _MOMENT),
    "ResolvedBy": ("resolved_by", _TEXT),
    "RetriedAs": ("retried_as", _TEXT),
    "RetryMessageId": ("retry_message_id", _TEXT),
    "RetryBegunAtUtc": ("retry_begun_at", _MOMENT),
    "RetryBegunBy": ("retry_begun_by", _TEXT),
}
_ENTRY_FIELDS: _Fields = _OF_BOTH | {
    "EntryId": ("id", _INT64),
    "Operation": ("operation", _TEXT),
    "Status": ("status", _Form(str, partial(_status, HistoryStatus))),
    "DurationMs": ("duration_ms", _INT64),
    "CreatedAtUtc": ("created_at", _MOMENT),
    "Attempt": ("attempt", _INT32),
    "Input": ("input", _EXACT),
    "Output": ("output", _EXACT),
    "Error": ("error", _LEGIBLE),
}
