"""History in an Azure table."""

from __future__ import annotations

from ...core.clock import new_id
from ...core.errors import Unavailable
from ...records.filters import can_match
from ...records.history import (
    ENTRIES,
    HistoryEntry,
    HistoryFilter,
    HistoryStatus,
    NewEntry,
)
from ...records.paging import DEFAULT_LIMIT, Page
from ...records.protocol import EVERY_ENTRY, HistoryTable
from ...records.retention import RETENTION_DAYS, check_days
from ...records.row_keys import table_history_key, table_history_prefix
from ...records.storable_text import legible
from ...records.times import days_before
from .azure_rows import KeyedEntry, entry_in, entry_row, listed_entry_in, partition_of, table_moment
from .azure_table import EARLIEST, AzureTable, Comparison, Condition
from .listing import Listing, between

_MOST_OF_ONE_CORRELATION = 1000


class AzureHistoryTable(HistoryTable):
    """A ``HistoryTable`` in an Azure table. An entry larger than a row, packed, is refused: nothing is ever cut."""

    def __init__(self, table: AzureTable) -> None:
        self._table = table

    def add(self, entry: NewEntry) -> HistoryEntry:
        """Add an entry and return it."""
        moment = table_moment(self._table.now() if entry.created_at is None else entry.created_at)
        entry_id = int(new_id(15), 16) + 1  # what an Azure table cannot count out is drawn at random
        changed = {
            "status": HistoryStatus(entry.status),
            "duration_ms": max(0, entry.duration_ms),
            "error": None if entry.error is None else legible(entry.error),
            "created_at": moment,
        }
        added = KeyedEntry(
            **(entry._asdict() | changed),
            key=table_history_key(entry.correlation_id, moment, entry_id),
            id=entry_id,
        )
        if not self._table.add(entry_row(added)):
            raise Unavailable(f"The key '{added.key}' is another entry's already; nothing was written. Try again.")
        return added

    def get(self, engine: str, row_key: str) -> HistoryEntry | None:
        """Return one entry; None when no entry has that key."""
        row = self._table.get(partition_of(engine), row_key)
        return None if row is None else entry_in(row)

    def page(
        self, wanted: HistoryFilter = EVERY_ENTRY, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[HistoryEntry]:
        """Return entries, in the order of engine and row key."""
        if not can_match(wanted):
            return Page([], None)
        listing: Listing[HistoryEntry, HistoryFilter] = Listing(
            "history", wanted, _comparisons(wanted), listed_entry_in, ENTRIES.is_wanted
        )
        return listing.page(self._table, limit, after)

    def in_order(self, wanted: HistoryFilter) -> list[HistoryEntry]:
        """Return what one engine did for one piece of business, oldest first."""
        return self._in_order(wanted)[:_MOST_OF_ONE_CORRELATION]

    def last(self, wanted: HistoryFilter) -> HistoryEntry | None:
        """Return the last entry that is wanted."""
        return next(reversed(self._in_order(wanted)), None)

    def prune(self, retention_days: float = RETENTION_DAYS) -> int:
        """Forget old entries."""
        check_days(retention_days)
        return self._table.forget([], "CreatedAtUtc", days_before(self._table.now(), retention_days))

    def _in_order(self, wanted: HistoryFilter) -> list[HistoryEntry]:
        """Return the entries of one piece of business in the order in which the service got them."""
        if not can_match(wanted):
            return []
        found = []
        partition = ("PartitionKey", "eq", partition_of(wanted.engine or ""))
        for row in self._table.rows(Condition.all_of([partition, *_comparisons(wanted)])):
            entry = listed_entry_in(row)
            if ENTRIES.is_wanted(entry, wanted):
                found.append((row.metadata["timestamp"] or EARLIEST, entry.created_at, entry.key, entry))
        return [entry for *_, entry in sorted(found, key=lambda each: each[:3])]


def _comparisons(wanted: HistoryFilter) -> list[Comparison]:
    status = wanted.status  # what Unknown stands for, the service cannot ask for
    asked = [
        ("InstanceId", "eq", wanted.instance_id),
        ("Status", "eq", None if status is None or status is HistoryStatus.UNKNOWN else status.value),
        ("Operation", "eq", wanted.operation),
        ("CorrelationId", "eq", wanted.correlation_id),
    ]
    comparisons = [each for each in asked if each[2] is not None] + between("CreatedAtUtc", wanted)
    return comparisons if wanted.engine is None else _keys_of(wanted.correlation_id) + comparisons


def _keys_of(correlation_id: str | None) -> list[Comparison]:
    """Return the range of keys of a correlation id: within a partition it saves reading the rest."""
    if correlation_id is None:
        return []
    prefix = table_history_prefix(correlation_id)
    return [("RowKey", "ge", f"{prefix}0"), ("RowKey", "lt", f"{prefix}:")]  # a digit comes next, and ':' comes after 9
