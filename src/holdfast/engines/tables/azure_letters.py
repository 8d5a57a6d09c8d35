"""Dead letters in an Azure table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ...core.clock import Clock
from ...core.errors import ConfigurationError, Conflict, MissingDependencyError
from ...records.dead_letters import (
    RETRIED,
    DeadLetter,
    LetterFilter,
    LetterStatus,
    check_settlable,
    expiry_notes,
    is_pending,
    is_retried_as,
    no_such_letter,
    told_state,
)
from ...records.exact import legible
from ...records.fitting import check_fits
from ...records.matching import can_match, is_letter_wanted
from ...records.paging import DEFAULT_LIMIT, Page
from ...records.protocol import EVERY_LETTER
from ...records.retention import RETENTION_DAYS, check_days
from ...records.row_keys import is_table_key
from ...records.schema import ID_LENGTH
from ...records.times import days_before
from .azure_rows import letter_in, letter_row, listed_letter_in, partition_of
from .azure_table import EARLIEST, IS_NOT, AzureTable, Comparison, Condition, is_before
from .listing import Listing, between
from .long_texts import with_texts

try:
    from azure.data.tables import TableClient, TableEntity
except ImportError as error:
    raise MissingDependencyError(
        "Engine tables in Azure need azure-data-tables: run \"pip install 'holdfast[azure]'\"."
    ) from error


class AzureLetterTable:
    """A ``LetterTable`` in an Azure table. A letter larger than a row, packed, is refused: nothing is ever cut.

    Every change has the etag of what was read as its condition. Who made it is in the row; there is no other audit.
    """

    def __init__(self, table: AzureTable) -> None:
        self._table = table

    @classmethod
    def of(cls, client: TableClient, *, timeout_seconds: float = 10.0, clock: Clock | None = None) -> AzureLetterTable:
        """Return the letters in a table that exists."""
        return cls(AzureTable(client, timeout_seconds=timeout_seconds, clock=clock))

    def add(self, letter: DeadLetter) -> bool:
        """Add a letter; False when its key is there already."""
        return self._table.add(letter_row(letter))

    def get(self, engine: str, row_key: str) -> DeadLetter | None:
        """Return one letter."""
        row = self._row(engine, row_key)
        return None if row is None else letter_in(row)

    def page(
        self, wanted: LetterFilter = EVERY_LETTER, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[DeadLetter]:
        """Return letters, in the order of engine and row key."""
        if not can_match(wanted):
            return Page([], None)
        listing = Listing(
            kind="dead letters",
            partition=None if wanted.engine is None else partition_of(wanted.engine),
            comparisons=_comparisons(wanted),
            item_in=listed_letter_in,
            is_wanted=lambda letter: is_letter_wanted(letter, wanted),
            is_sparse=wanted.error is not None or wanted.status is LetterStatus.UNKNOWN,
        )
        return listing.page(self._table, limit, after)

    def count(self, wanted: LetterFilter = EVERY_LETTER) -> int | None:
        """Return None: an Azure table can only be counted by reading it."""
        return None

    def resolve(self, engine: str, row_key: str, notes: str, actor: str, *, despite_retry: bool = False) -> DeadLetter:
        """Mark a Pending letter as dealt with."""
        row, letter = self._there(engine, row_key)
        check_settlable(letter, despite_retry=despite_retry)
        return self._settled(row, LetterStatus.RESOLVED, notes, actor)

    def expire_one(
        self, engine: str, row_key: str, notes: str, actor: str, *, despite_retry: bool = False
    ) -> DeadLetter:
        """Give up on one Pending letter."""
        row, letter = self._there(engine, row_key)
        check_settlable(letter, despite_retry=despite_retry)
        return self._settled(row, LetterStatus.EXPIRED, notes, actor)

    def expire(self, older_than_days: float, engine: str | None = None, *, actor: str) -> int:
        """Give up on old Pending letters, one by one; what changes meanwhile is left alone.

        So are rows of other programs that do not say in the standard's fields that they are Pending, and since when.
        """
        if older_than_days < 0:
            raise ConfigurationError(f"Letters cannot be older than {older_than_days:g} days. Pass 0 or more.")
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
        if not is_pending(letter):
            raise Conflict(f"{told_state(letter)}; nothing was changed.")
        if letter.retry_message_id is not None:
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
        if is_retried_as(letter, message_id):
            return letter
        if not is_pending(letter) or letter.retry_message_id != message_id:
            raise Conflict(f"{told_state(letter)}, not with the message '{message_id}'; nothing was changed.")
        try:
            return self._settled(row, LetterStatus.RESOLVED, RETRIED, letter.retry_begun_by or "", RetriedAs=message_id)
        except Conflict:
            _, letter = self._there(engine, row_key)
            if not is_retried_as(letter, message_id):
                raise
            return letter

    def unfinished_retries(
        self, older_than_seconds: float = 0.0, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[DeadLetter]:
        """Return Pending letters whose retry was begun at least so long ago."""
        found = self.page(LetterFilter(status=LetterStatus.PENDING, is_retry_begun=True), limit, after)
        until = self._table.now() - timedelta(seconds=older_than_seconds)
        old = [letter for letter in found.items if letter.retry_begun_at is None or letter.retry_begun_at <= until]
        return Page(old, found.continuation_token)

    def prune(self, retention_days: float = RETENTION_DAYS) -> int:
        """Forget settled letters."""
        check_days(retention_days)
        before = days_before(self._table.now(), retention_days)
        settled = [(LetterStatus.RESOLVED, "ResolvedAtUtc"), (LetterStatus.EXPIRED, "LastFailureAtUtc")]
        return sum(self._table.forget([("Status", "eq", status.value)], name, before) for status, name in settled)

    def _row(self, engine: str, row_key: str) -> TableEntity | None:
        partition = partition_of(engine)
        if not is_table_key(partition) or not is_table_key(row_key):
            return None
        return self._table.get(partition, row_key)

    def _there(self, engine: str, row_key: str) -> tuple[TableEntity, DeadLetter]:
        row = self._row(engine, row_key)
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
        return self._changed(
            row, with_texts(short, {"ResolutionNotes": legible(notes)}, what, beside=row, reserved_bytes=0)
        )

    def _changed(self, row: TableEntity, changes: Mapping[str, Any]) -> DeadLetter:
        try:
            return letter_in(self._table.change(row, changes))
        except Conflict as error:
            _, letter = self._there(row.get("Engine") or row["PartitionKey"], row["RowKey"])
            raise Conflict(f"{told_state(letter)}: someone else was faster; nothing was changed.") from error

    def _expired(self, row: TableEntity, changes: Mapping[str, Any]) -> bool:
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
