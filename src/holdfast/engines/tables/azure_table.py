"""One Azure table: every call is one attempt, every change has a condition, and every error is ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import Any, Literal

from ...core.clock import Clock, SystemClock, new_id
from ...core.errors import (
    Ambiguous,
    ConfigurationError,
    Conflict,
    StateStoreError,
    Unavailable,
)
from ...core.extras import needed
from ...lease.stores._http import SKEW_MARGIN_SECONDS, Call, Place, translated
from ...records.row_keys import is_table_key

with needed("Engine tables in Azure need azure-data-tables", "azure"):
    from azure.core import MatchConditions
    from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
    from azure.data.tables import TableClient, TableEntity, UpdateMode

    from ...lease.stores._azure import OneAttempt, code_of

Comparison = tuple[str, str, Any]
IS_NOT = "is not"
"""A comparison that holds, unlike the service's ``ne``, for rows that do not have the property at all."""

EARLIEST = datetime(1601, 1, 1, tzinfo=UTC)
"""Where the calendar of Azure's tables begins."""

CHANGE_ID = "ChangeId"
_TRIES = 3
_MOST_IN_A_TRANSACTION = 100
_KEYS = ("PartitionKey", "RowKey")
_Verb = Literal["open", "read", "create", "replace", "delete", "list"]


@dataclass(frozen=True, slots=True)
class Condition:
    """What a query asks for: comparisons that must all hold, with their values by name."""

    text: str
    values: Mapping[str, Any]

    @classmethod
    def all_of(cls, comparisons: Sequence[Comparison]) -> Condition:
        """Return the condition that all comparisons of a property with a value hold."""
        words = [_word(name, operator, f"@value{number}") for number, (name, operator, _) in enumerate(comparisons)]
        values = {f"value{number}": value for number, (_, _, value) in enumerate(comparisons)}
        return cls(" and ".join(words), values)


class AzureTable:
    """A table as its users here need it.

    The SDK's own retries are switched off: a retried conditional write would meet its own first attempt. Instead every
    change carries an id of its own. One whose answer was lost is sent again under the same condition; when that is
    refused, the row tells by the id whether it was the first one that landed.

    Args:
        client: the table, with whatever credential you use.
        timeout_seconds: how long to wait for a connection, and for each part of an answer.
        clock: the machine's; the service's time corrects it when it is plainly wrong.
    """

    def __init__(self, client: TableClient, *, timeout_seconds: float = 10.0, clock: Clock | None = None) -> None:
        self._client = client
        self._timeout_seconds = timeout_seconds
        self._clock = clock or SystemClock()
        self._ahead: timedelta | None = None  # how far the service's clock is ahead of ours, once it has answered
        self._place = Place(
            f"table '{client.table_name}' of account '{client.account_name}'",
            "Check the key or connection string, or give this identity 'Storage Table Data Contributor'.",
        )

    def make(self) -> None:
        """Create the table when it is missing."""
        with self._calling("open", self._client.table_name) as attempt:
            try:
                self._client.create_table(**attempt.options)
            except ResourceExistsError as error:
                if code_of(error) != "TableAlreadyExists":
                    raise

    def now(self) -> datetime:
        """Return the present time: ours, unless the service's differs by more than its steps explain."""
        if self._ahead is None:
            list(self.rows(Condition.all_of([("PartitionKey", "eq", "")]), page_size=1))
        ahead = self._ahead or timedelta()
        return self._clock.now() + (ahead if abs(ahead.total_seconds()) > SKEW_MARGIN_SECONDS else timedelta())

    def get(self, partition: str, row: str) -> TableEntity | None:
        """Return one row; what cannot be a key is the key of none."""
        if not is_table_key(partition) or not is_table_key(row):
            return None
        with self._calling("read", row) as attempt:
            try:
                return self._client.get_entity(partition, row, **attempt.options)
            except ResourceNotFoundError as error:
                if code_of(error) == "TableNotFound":
                    raise
                return None

    def add(self, entity: Mapping[str, Any]) -> bool:
        """Add a row; False when its key is taken, and then nothing is changed."""
        marked = {**entity, CHANGE_ID: new_id()}

        def create() -> None:
            with self._calling("create", entity["RowKey"]) as attempt:
                self._client.create_entity(marked, **attempt.options)

        try:
            self._settle(create, marked)
        except Conflict:
            return False
        return True

    def change(self, found: TableEntity, changes: Mapping[str, Any]) -> TableEntity:
        """Set some properties of a row as it was read; return it as it is then.

        Raises:
            Conflict: it was changed since, or is gone; nothing was changed.
        """
        marked = {**{key: found[key] for key in _KEYS}, **changes, CHANGE_ID: new_id()}

        def merge() -> None:
            with self._calling("replace", found["RowKey"]) as attempt:
                self._client.update_entity(marked, mode=UpdateMode.MERGE, **_unmodified(found), **attempt.options)

        self._settle(merge, marked)
        return TableEntity({**found, **marked})

    def change_without(self, found: TableEntity, changes: Mapping[str, Any], without: Sequence[str]) -> TableEntity:
        """Set some properties of a row as it was read, and take others away; return it as it is then.

        Raises:
            Conflict: it was changed since, or is gone; nothing was changed.
        """
        left = {name: value for name, value in found.items() if name not in without}
        marked = {**left, **changes, CHANGE_ID: new_id()}

        def replace() -> None:
            with self._calling("replace", found["RowKey"]) as attempt:
                self._client.update_entity(marked, mode=UpdateMode.REPLACE, **_unmodified(found), **attempt.options)

        self._settle(replace, marked)
        return TableEntity(marked)

    def forget(self, wanted: Sequence[Comparison], name: str, before: datetime, unless: str | None = None) -> int:
        """Delete the rows that fit and whose moment of that name is before another; return how many.

        Rows that have the property ``unless`` stay. Several processes may do so at once. One that dies has deleted what
        it has deleted.
        """
        if before <= EARLIEST:
            return 0
        others = [] if unless is None else [unless]
        rows = self.rows(Condition.all_of([*wanted, (name, "le", before)]), select=[*_KEYS, name, *others])
        old = (row for row in rows if is_before(row, name, before) and not any(row.get(each) for each in others))
        count = 0
        for _, of_one_partition in groupby(old, lambda row: row["PartitionKey"]):
            while some := list(islice(of_one_partition, _MOST_IN_A_TRANSACTION)):
                count += self._removed(some)
        return count

    def _removed(self, rows: Sequence[TableEntity]) -> int:
        """Delete those rows of one partition that are as they were read; return how many."""
        try:
            self._remove_together(rows)
        except (Conflict, Ambiguous):  # one of them is gone or changed, or all may be gone
            return sum(self._remove_alone(row) for row in rows)
        return len(rows)

    def _remove_together(self, rows: Sequence[TableEntity]) -> None:
        operations = [("delete", {key: row[key] for key in _KEYS}, _unmodified(row)) for row in rows]
        with self._calling("delete", rows[0]["RowKey"]) as attempt:
            self._client.submit_transaction(operations, **attempt.options)

    def _remove_alone(self, row: TableEntity) -> bool:
        try:
            with self._calling("delete", row["RowKey"]) as attempt:
                self._client.delete_entity(row["PartitionKey"], row["RowKey"], **_unmodified(row), **attempt.options)
        except Conflict:
            return False
        return attempt.status != 404  # the SDK keeps this answer to itself

    def rows(
        self, wanted: Condition, *, page_size: int | None = None, select: Sequence[str] | None = None
    ) -> Iterator[TableEntity]:
        """Yield the rows that fit, in the order of their keys, fetched a page at a time."""
        options: dict[str, Any] = {
            "results_per_page": page_size,
            "select": None if select is None else list(select),
        }
        attempt = OneAttempt(self._timeout_seconds)
        query = (
            self._client.query_entities(wanted.text, parameters=dict(wanted.values), **options, **attempt.options)
            if wanted.text
            else self._client.list_entities(**options, **attempt.options)
        )
        pages = query.by_page()
        while True:
            with self._calling("list", "rows", attempt):
                page = next(pages, None)
            if page is None:
                return
            yield from page

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    def _settle(self, write: Callable[[], None], marked: Mapping[str, Any]) -> None:
        """Do a write under its condition until an answer to it arrives.

        Raises:
            Conflict: the condition does not hold, and not because of this write.
            Ambiguous: no answer arrived, again and again.
        """
        doubt: Ambiguous | None = None
        for _ in range(_TRIES):
            try:
                return write()
            except Ambiguous as error:
                doubt = error
            except Conflict:
                if doubt is None or not self._has_landed(marked, doubt):
                    raise
                return None
            except Unavailable as error:
                raise doubt or error from error
        assert doubt is not None
        raise doubt

    def _has_landed(self, marked: Mapping[str, Any], doubt: Ambiguous) -> bool:
        try:
            found = self.get(marked["PartitionKey"], marked["RowKey"])
        except Unavailable as error:
            raise doubt from error
        return found is not None and found.get(CHANGE_ID) == marked[CHANGE_ID]

    @contextmanager
    def _calling(self, verb: _Verb, name: str, attempt: OneAttempt | None = None) -> Iterator[OneAttempt]:
        """Yield the options of one SDK call, and raise what its errors mean."""
        attempt = attempt or OneAttempt(self._timeout_seconds)
        try:
            with translated(Call(self._place, verb, name), attempt.failure_of):
                yield attempt
        except (Conflict, Unavailable, Ambiguous):
            raise
        except StateStoreError as error:  # a retry cannot help
            raise ConfigurationError(str(error)) from error
        finally:
            if attempt.date is not None:
                self._ahead = attempt.date - self._clock.now()


def _word(name: str, operator: str, value: str) -> str:
    return f"not ( {name} eq {value} )" if operator == IS_NOT else f"{name} {operator} {value}"


def _unmodified(found: TableEntity) -> dict[str, Any]:
    """Return the condition of every change: the row is as it was read."""
    return {"etag": found.metadata["etag"], "match_condition": MatchConditions.IfNotModified}


def is_before(row: TableEntity, name: str, moment: datetime) -> bool:
    """Return whether a row has a moment of that name, and it is before another."""
    value = row.get(name)
    return isinstance(value, datetime) and value < moment
