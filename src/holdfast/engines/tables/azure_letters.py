"""Dead letters in an Azure table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from ...core.errors import Conflict
from ...core.extras import needed
from ...records.column_limits import check_fits
from ...records.dead_letters import (
    RETRIED,
    SETTLED_FIELDS,
    DeadLetter,
    Decision,
    LetterFilter,
    LetterStatus,
    NewLetter,
    check_age,
    expiry_notes,
    has_begun_retry,
    has_finished_retry,
    is_letter_wanted,
    is_retried_as,
    kept_apart,
    no_such_letter,
    pending,
    state_of,
)
from ...records.filters import can_match
from ...records.paging import DEFAULT_LIMIT, Page
from ...records.protocol import EVERY_LETTER, LetterTable
from ...records.retention import RETENTION_DAYS, check_days
from ...records.schema import ID_LENGTH
from ...records.storable_text import legible, legible_notes
from ...records.times import days_before
from .azure_rows import LETTER_FIELDS, letter_in, letter_row, listed_letter_in, partition_of
from .azure_table import EARLIEST, IS_NOT, AzureTable, Comparison, Condition, is_before
from .listing import Listing, between
from .long_texts import properties_of, with_texts

with needed("Engine tables in Azure need azure-data-tables", "azure"):
    from azure.data.tables import TableEntity

_SETTLED_PROPERTIES = [name for name, (field, _) in LETTER_FIELDS.items() if field in SETTLED_FIELDS]


class AzureLetterTable(LetterTable):
    """A ``LetterTable`` in an Azure table. A letter larger than a row, packed, is refused: nothing is ever cut.

    Every change has the etag of what was read as its condition. Who made it is in the row; there is no other audit.
    """

    def __init__(self, table: AzureTable) -> None:
        self._table = table

    def now(self) -> datetime:
        """Return the present time as the table sees it."""
        return self._table.now()

    def add(self, letter: NewLetter) -> bool:
        """Add a letter; False when its key is there already."""
        if self._table.add(letter_row(pending(letter))):
            return True
        there = self.get(letter.engine, letter.row_key)
        apart = None if there is None else kept_apart(letter, there)
        return apart is not None and self.add(apart)

    def get(self, engine: str, row_key: str) -> DeadLetter | None:
        """Return one letter."""
        row = self._table.get(partition_of(engine), row_key)
        return None if row is None else letter_in(row)

    def page(
        self, wanted: LetterFilter = EVERY_LETTER, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[DeadLetter]:
        """Return letters, in the order of engine and row key."""
        if not can_match(wanted):
            return Page([], None)
        listing = Listing("dead letters", wanted, _comparisons(wanted), listed_letter_in, is_letter_wanted)
        return listing.page(self._table, limit, after)

    def count(self, wanted: LetterFilter = EVERY_LETTER) -> int | None:
        """Return None: an Azure table can only be counted by reading it."""
        return None

    def decide(self, decision: Decision) -> DeadLetter:
        """Do with a letter what an operator decided. Who reopened one is not in its row: only an audit tells it."""
        row, letter = self._there(decision.engine, decision.row_key)
        decision.check(letter)
        notes = legible_notes(decision.notes)
        if not decision.is_reopening:
            return self._settled(row, decision.status, notes, decision.actor)
        without = [name for text in _SETTLED_PROPERTIES for name in properties_of(row, text)]
        with self._refusing(row):
            return letter_in(self._table.change_without(row, {"Status": LetterStatus.PENDING.value}, without))

    def expire(self, older_than_days: float, engine: str | None = None, *, actor: str) -> int:
        """Give up on old Pending letters, one by one; what changes meanwhile is left alone.

        So are rows of other programs that do not say in the standard's fields that they are Pending, and since when.
        """
        check_age(older_than_days)
        now = self._table.now()
        until = days_before(now, older_than_days)
        if until <= EARLIEST:
            return 0
        partition: list[Comparison] = [] if engine is None else [("PartitionKey", "eq", partition_of(engine))]
        pending = Condition.all_of(
            [*partition, ("Status", "eq", LetterStatus.PENDING.value), ("LastFailureAtUtc", "le", until)]
        )
        changes = {
            "Status": LetterStatus.EXPIRED.value,
            "ResolutionNotes": expiry_notes(older_than_days),
            "ResolvedAtUtc": now,
            "ResolvedBy": _actor(actor),
        }
        rows = self._table.rows(pending, select=["PartitionKey", "RowKey", "LastFailureAtUtc", "RetryMessageId"])
        return sum(
            self._expired(row, changes)
            for row in rows
            if row.get("RetryMessageId") is None and is_before(row, "LastFailureAtUtc", until)
        )

    def begin_retry(self, engine: str, row_key: str, actor: str, new_message_id: str) -> DeadLetter:
        """Write down who retries a letter and under which id. Of two who begin in one moment, one gets ``Conflict``."""
        check_fits(engine, message_id=new_message_id)
        row, letter = self._there(engine, row_key)
        if has_begun_retry(letter):
            return letter
        changes = {
            "RetryMessageId": new_message_id,
            "RetryBegunAtUtc": self._table.now(),
            "RetryBegunBy": _actor(actor),
        }
        return self._changed(row, changes)

    def finish_retry(self, engine: str, row_key: str, message_id: str) -> DeadLetter:
        """Mark a letter as retried."""
        row, letter = self._there(engine, row_key)
        if has_finished_retry(letter, message_id):
            return letter
        try:
            return self._settled(row, LetterStatus.RESOLVED, RETRIED, letter.retry_begun_by or "", RetriedAs=message_id)
        except Conflict:
            _, letter = self._there(engine, row_key)
            if not is_retried_as(letter, message_id):
                raise
            return letter

    def prune(self, retention_days: float = RETENTION_DAYS) -> int:
        """Forget settled letters."""
        check_days(retention_days)
        before = days_before(self._table.now(), retention_days)
        resolved, expired = (
            [("Status", "eq", status.value)] for status in (LetterStatus.RESOLVED, LetterStatus.EXPIRED)
        )
        forgotten = sum(self._table.forget(wanted, "ResolvedAtUtc", before) for wanted in (resolved, expired))
        return forgotten + self._table.forget(expired, "LastFailureAtUtc", before, unless="ResolvedAtUtc")

    def _there(self, engine: str, row_key: str) -> tuple[TableEntity, DeadLetter]:
        row = self._table.get(partition_of(engine), row_key)
        if row is None:
            raise no_such_letter(engine, row_key)
        return row, letter_in(row)

    def _settled(self, row: TableEntity, status: LetterStatus, notes: str, actor: str, **others: str) -> DeadLetter:
        short = {
            "PartitionKey": row["PartitionKey"],
            "RowKey": row["RowKey"],
            "Status": status.value,
            "ResolvedAtUtc": self._table.now(),
            "ResolvedBy": _actor(actor),
            **others,
        }
        what = f"The dead letter '{row['RowKey']}' with these notes"
        return self._changed(row, with_texts(short, {"ResolutionNotes": notes}, what, beside=row, reserved_bytes=0))

    def _changed(self, row: TableEntity, changes: Mapping[str, object]) -> DeadLetter:
        with self._refusing(row):
            return letter_in(self._table.change(row, changes))

    @contextmanager
    def _refusing(self, row: TableEntity) -> Iterator[None]:
        """Tell a change that came too late what became of the letter."""
        try:
            yield
        except Conflict as error:
            _, letter = self._there(row.get("Engine") or row["PartitionKey"], row["RowKey"])
            raise Conflict(f"{state_of(letter)}: someone else was faster; nothing was changed.") from error

    def _expired(self, row: TableEntity, changes: Mapping[str, object]) -> bool:
        try:
            self._table.change(row, changes)
        except Conflict:
            return False
        return True


def _comparisons(wanted: LetterFilter) -> list[Comparison]:
    asked = [
        ("InstanceId", "eq", wanted.instance_id),
        ("CorrelationId", "eq", wanted.correlation_id),
        ("RetryMessageId", "gt", "" if wanted.is_retry_begun else None),
    ]
    found = [each for each in asked if each[2] is not None]
    return [*_status_comparisons(wanted.status), *found, *between("LastFailureAtUtc", wanted)]


def _status_comparisons(status: LetterStatus | None) -> list[Comparison]:
    """Return what the service can tell about a status: what says none is Pending, and Unknown is all the others."""
    match status:
        case None | LetterStatus.UNKNOWN:
            return []
        case LetterStatus.PENDING:
            return [("Status", IS_NOT, other.value) for other in (LetterStatus.RESOLVED, LetterStatus.EXPIRED)]
        case _:
            return [("Status", "eq", status.value)]


def _actor(actor: str) -> str:
    return legible(actor)[:ID_LENGTH]
