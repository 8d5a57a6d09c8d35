"""Letters and entries as rows of Azure tables: the standard's properties, and a few of ours.

A row of another program is read, too, as far as it goes: a letter without a status is Pending, a status that we do not
know is Unknown, a text that is missing is empty, and a time that is missing is the row's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

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


def letter_row(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter as a row.

    Raises:
        ConfigurationError: an id or the key cannot be one of a row, or the letter is too large for one.
    """
    check_letter_ids(letter)
    if not is_table_key(letter.row_key):
        raise ConfigurationError(
            f"{letter.row_key[:40]!r} cannot be a row key in an Azure table. Make it with 'dead_letter_key'."
        )
    short = {
        "PartitionKey": partition_of(letter.engine),
        "RowKey": letter.row_key,
        "Engine": letter.engine,
        "InstanceId": letter.instance_id,
        "OriginalQueue": letter.original_queue,
        "DequeueCount": min(letter.dequeue_count, _MOST_INT32),
        "FirstFailureAtUtc": table_moment(letter.first_failure_at),
        "LastFailureAtUtc": table_moment(letter.last_failure_at),
        "Status": letter.status.value,
        "ResolvedAtUtc": _moment_or_none(letter.resolved_at),
        "ResolvedBy": letter.resolved_by,
        "CorrelationId": letter.correlation_id,
        "ItemId": letter.item_id,
        "RetriedAs": letter.retried_as,
        "RetryMessageId": letter.retry_message_id,
        "RetryBegunAtUtc": _moment_or_none(letter.retry_begun_at),
        "RetryBegunBy": letter.retry_begun_by,
        "Application": letter.application,
    }
    texts = {
        "OriginalMessage": kept(letter.original_message),
        "ErrorMessage": legible(letter.error_message),
        "Traceback": None if letter.traceback is None else legible(letter.traceback),
        "ResolutionNotes": None if letter.resolution_notes is None else legible(letter.resolution_notes),
    }
    return with_texts(_without_none(short), texts, f"The dead letter '{letter.row_key}'")


def listed_letter_in(row: TableEntity) -> DeadLetter:
    """Return the letter in a row, for a listing, which no single row may spoil: what is left of a text is all of it."""
    return letter_in(row, text_left_in)


def letter_in(row: TableEntity, text_in: _TextIn = text_in) -> DeadLetter:
    """Return the letter in a row.

    Raises:
        ConfigurationError: a part of a text is missing.
    """
    last_failure_at = _moment(row, "LastFailureAtUtc") or _written_at(row)
    return DeadLetter(
        engine=_text(row, "Engine") or row["PartitionKey"],
        row_key=row["RowKey"],
        instance_id=_text(row, "InstanceId") or PUBLISHER,
        original_queue=_text(row, "OriginalQueue") or "",
        original_message=given(text_in(row, "OriginalMessage") or ""),
        error_message=text_in(row, "ErrorMessage") or "",
        traceback=text_in(row, "Traceback"),
        dequeue_count=_number(row, "DequeueCount") or 0,
        first_failure_at=_moment(row, "FirstFailureAtUtc") or last_failure_at,
        last_failure_at=last_failure_at,
        status=_letter_status(row),
        resolution_notes=text_in(row, "ResolutionNotes"),
        resolved_at=_moment(row, "ResolvedAtUtc"),
        resolved_by=_text(row, "ResolvedBy"),
        correlation_id=_text(row, "CorrelationId") or "",
        item_id=_text(row, "ItemId"),
        retried_as=_text(row, "RetriedAs"),
        retry_message_id=_text(row, "RetryMessageId"),
        retry_begun_at=_moment(row, "RetryBegunAtUtc"),
        retry_begun_by=_text(row, "RetryBegunBy"),
        application=_text(row, "Application"),
    )


def entry_row(entry: KeyedEntry) -> dict[str, Any]:
    """Return an entry as a row.

    Raises:
        ConfigurationError: an id cannot be one of a row, or the entry is too large for one.
    """
    check_entry_ids(entry)
    short = {
        "PartitionKey": partition_of(entry.engine),
        "RowKey": entry.key,
        "Engine": entry.engine,
        "InstanceId": entry.instance_id,
        "Operation": entry.operation,
        "Status": entry.status.value,
        "DurationMs": _long(entry.duration_ms),
        "CreatedAtUtc": table_moment(entry.created_at),
        "CorrelationId": entry.correlation_id,
        "EntryId": _long(entry.id),
        "ItemId": entry.item_id,
        "Attempt": None if entry.attempt is None else min(entry.attempt, _MOST_INT32),
        "Application": entry.application,
    }
    texts = {
        "Input": None if entry.input is None else kept(entry.input),
        "Output": None if entry.output is None else kept(entry.output),
        "Error": None if entry.error is None else legible(entry.error),
        "Traceback": None if entry.traceback is None else legible(entry.traceback),
    }
    return with_texts(_without_none(short), texts, f"The history entry '{entry.key}'")


def listed_entry_in(row: TableEntity) -> KeyedEntry:
    """Return the entry in a row, for a listing, which no single row may spoil: what is left of a text is all of it."""
    return entry_in(row, text_left_in)


def entry_in(row: TableEntity, text_in: _TextIn = text_in) -> KeyedEntry:
    """Return the entry in a row.

    Raises:
        ConfigurationError: a part of a text is missing.
    """
    put_in, put_out = text_in(row, "Input"), text_in(row, "Output")
    return KeyedEntry(
        key=row["RowKey"],
        id=_number(row, "EntryId") or 0,
        engine=_text(row, "Engine") or row["PartitionKey"],
        instance_id=_text(row, "InstanceId") or PUBLISHER,
        operation=_text(row, "Operation") or "",
        status=_entry_status(row),
        duration_ms=_number(row, "DurationMs") or 0,
        input=None if put_in is None else given(put_in),
        output=None if put_out is None else given(put_out),
        error=text_in(row, "Error"),
        traceback=text_in(row, "Traceback"),
        created_at=_moment(row, "CreatedAtUtc") or _written_at(row),
        correlation_id=_text(row, "CorrelationId") or "",
        item_id=_text(row, "ItemId"),
        attempt=_number(row, "Attempt"),
        application=_text(row, "Application"),
    )


def table_moment(moment: datetime) -> datetime:
    """Return a moment as a table keeps it.

    Raises:
        ConfigurationError: it has no time zone, or is before 1601, where the calendar of Azure's tables begins.
    """
    in_utc = utc_moment(moment)
    if in_utc < EARLIEST:
        raise ConfigurationError(f"The time {moment.isoformat()} is before 1601, and Azure tables keep none such.")
    return in_utc


def _moment_or_none(moment: datetime | None) -> datetime | None:
    return None if moment is None else table_moment(moment)


def _without_none(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if value is not None}


def _long(number: int) -> EntityProperty:
    return EntityProperty(min(max(0, number), _MOST_INT64), EdmType.INT64)


def _text(row: Mapping[str, Any], name: str) -> str | None:
    value = _plain(row.get(name))
    return None if value is None else str(value)


def _number(row: Mapping[str, Any], name: str) -> int | None:
    value = _plain(row.get(name))
    with suppress(ValueError, OverflowError):  # not a number, or infinite
        return int(value) if isinstance(value, int | float) else None
    return None


def _moment(row: Mapping[str, Any], name: str) -> datetime | None:
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


def _letter_status(row: TableEntity) -> LetterStatus:
    """Return a letter's status. One that we do not know is not taken for Pending: nobody here may change it."""
    written = _text(row, "Status")
    if written is None:
        return LetterStatus.PENDING
    return LetterStatus(written) if written in set(LetterStatus) else LetterStatus.UNKNOWN


def _entry_status(row: TableEntity) -> HistoryStatus:
    written = _text(row, "Status")
    return HistoryStatus(written) if written in set(HistoryStatus) else HistoryStatus.UNKNOWN
