"""History in an Azure table."""

from __future__ import annotations

from datetime import datetime

from ...core.clock import Clock, new_id
from ...core.errors import MissingDependencyError, Unavailable
from ...records.exact import legible
from ...records.history import HistoryEntry, HistoryFilter, HistoryStatus
from ...records.matching import can_match, is_entry_wanted
from ...records.paging import DEFAULT_LIMIT, Page
from ...records.protocol import EVERY_ENTRY
from ...records.retention import RETENTION_DAYS, check_days
from ...records.row_keys import is_table_key, table_history_key, table_history_prefix
from ...records.schema import PUBLISHER
from ...records.times import days_before
from .azure_rows import KeyedEntry, entry_in, entry_row, listed_entry_in, partition_of, table_moment
from .azure_table import EARLIEST, AzureTable, Comparison, Condition
from .listing import Listing, between

try:
    from azure.data.tables import TableClient
except ImportError as error:
    raise MissingDependencyError(
        "Engine tables in Azure need azure-data-tables: run \"pip install 'holdfast[azure]'\"."
    ) from error

_MOST_OF_ONE_CORRELATION = 1000


class AzureHistoryTable:
    """A ``HistoryTable`` in an Azure table. An entry larger than a row, packed, is refused: nothing is ever cut."""

    def __init__(self, table: AzureTable) -> None:
        self._table = table

    @classmethod
    def of(cls, client: TableClient, *, timeout_seconds: float = 10.0, clock: Clock | None = None) -> AzureHistoryTable:
        """Return the history in a table that exists."""
        return cls(AzureTable(client, timeout_seconds=timeout_seconds, clock=clock))

    def add(
        self,
        *,
        engine: str,
        operation: str,
        status: HistoryStatus,
        duration_ms: int,
        correlation_id: str,
        instance_id: str = PUBLISHER,
        input: str | None = None,
        output: str | None = None,
        error: str | None = None,
        item_id: str | None = None,
        attempt: int | None = None,
        created_at: datetime | None = None,
    ) -> HistoryEntry:
        """Add an entry and return it."""
        moment = table_moment(self._table.now() if created_at is None else created_at)
        entry_id = int(new_id(15), 16) + 1  # what an Azure table cannot count out is drawn at random
        entry = KeyedEntry(
            key=table_history_key(correlation_id, moment, entry_id),
            id=entry_id,
            engine=engine,
            instance_id=instance_id,
            operation=operation,
            status=HistoryStatus(status),
            duration_ms=max(0, duration_ms),
            input=input,
            output=output,
            error=None if error is None else legible(error),
            created_at=moment,
            correlation_id=correlation_id,
            item_id=item_id,
            attempt=attempt,
        )
        if not self._table.add(entry_row(entry)):
            raise Unavailable(f"The key '{entry.key}' is another entry's already; nothing was written. Try again.")
        return entry

    def get(self, engine: str, row_key: str) -> HistoryEntry | None:
        """Return one entry; None when no entry has that key."""
        partition = partition_of(engine)
        if not is_table_key(partition) or not is_table_key(row_key):
            return None
        row = self._table.get(partition, row_key)
        return None if row is None else entry_in(row)

    def page(
        self, wanted: HistoryFilter = EVERY_ENTRY, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[HistoryEntry]:
        """Return entries, in the order of engine and row key."""
        if not can_match(wanted):
            return Page([], None)
        listing: Listing[HistoryEntry] = Listing(
            kind="history",
            partition=None if wanted.engine is None else partition_of(wanted.engine),
            comparisons=_comparisons(wanted),
            item_in=listed_entry_in,
            is_wanted=lambda entry: is_entry_wanted(entry, wanted),
            is_sparse=wanted.error is not None or wanted.status is HistoryStatus.UNKNOWN,
        )
        return listing.page(self._table, limit, after)

    def succeeded(self, engine: str, operation: str, correlation_id: str) -> HistoryEntry | None:
        """Return the last success of an operation for one piece of business."""
        found = self._in_order(
            HistoryFilter(
                engine=engine, operation=operation, correlation_id=correlation_id, status=HistoryStatus.SUCCEEDED
            )
        )
        return found[-1] if found else None

    def of_correlation(self, engine: str, correlation_id: str, operation: str | None = None) -> list[HistoryEntry]:
        """Return what an engine did for one piece of business, oldest first."""
        wanted = HistoryFilter(engine=engine, operation=operation, correlation_id=correlation_id)
        return self._in_order(wanted)[:_MOST_OF_ONE_CORRELATION]

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
            if is_entry_wanted(entry, wanted):
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
