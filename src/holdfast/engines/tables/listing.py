"""Pages of an Azure table, in the order of its keys: the only order such a table has.

A page goes on behind the keys of the last row of the page before, so rows added or removed meanwhile are neither shown
twice nor skipped. What the service cannot filter, or filters coarsely, is looked at here; then a page may end early,
after so many rows were read, and its token still says where to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...records.filters import RecordFilter
from ...records.paging import Page, checked_limit, position_in, token_of, wrong_token
from ...records.row_keys import encoded, is_table_key
from ...records.times import utc_moment
from .azure_table import EARLIEST, AzureTable, Comparison, Condition

Row = Any  # the SDK's entity: a dictionary
_MOST_READ = 5_000
_LARGEST_REQUEST = 1_000
_NOT_READABLE = "Unknown"  # a status that the service cannot ask for
_Item = TypeVar("_Item")
_Filter = TypeVar("_Filter", bound=RecordFilter)


@dataclass(frozen=True, slots=True)
class Listing(Generic[_Item, _Filter]):
    """What is to be listed.

    Attributes:
        kind: what the rows are, for the token and for people.
        wanted: which of them.
        comparisons: what the service is asked to filter by, beside the partition.
        item_in: makes what is listed from a row.
        is_wanted: says of what was made whether it is wanted, whatever the service thought.
    """

    kind: str
    wanted: _Filter
    comparisons: Sequence[Comparison]
    item_in: Callable[[Row], _Item]
    is_wanted: Callable[[_Item, _Filter], bool]

    @property
    def partition(self) -> str | None:
        """Return the only partition wanted; None for all."""
        return None if self.wanted.engine is None else encoded(self.wanted.engine)

    @property
    def is_sparse(self) -> bool:
        """Return whether few of the rows that the service gives may be wanted."""
        return self.wanted.error is not None or self.wanted.status == _NOT_READABLE

    def page(self, table: AzureTable, limit: int, after: str | None) -> Page[_Item]:
        """Return the first rows that are wanted, or those behind the token ``after``.

        Raises:
            ConfigurationError: the limit or the token is wrong.
        """
        most = checked_limit(limit)
        page_size = _LARGEST_REQUEST if self.is_sparse else most + 1
        found: list[_Item] = []
        last = ""
        for count, row in enumerate(self._rows(table, after, page_size), start=1):
            item = self.item_in(row)
            if self.is_wanted(item, self.wanted):
                if len(found) == most:
                    return Page(found, last)
                found.append(item)
                last = token_of(self.kind, row["PartitionKey"], row["RowKey"])
            if count == _MOST_READ:
                return Page(found, token_of(self.kind, row["PartitionKey"], row["RowKey"]))
        return Page(found, None)

    def _rows(self, table: AzureTable, after: str | None, page_size: int) -> Iterator[Row]:
        for comparisons in self._ranges(after):
            yield from table.rows(Condition.all_of([*comparisons, *self.comparisons]), page_size=page_size)

    def _ranges(self, after: str | None) -> list[list[Comparison]]:
        """Return the ranges of keys to read, one behind the other; the service would scan all for an 'or'."""
        if after is None:
            return [[] if self.partition is None else [("PartitionKey", "eq", self.partition)]]
        partition, row = map(str, position_in(self.kind, after, [str, str]))
        if not is_table_key(partition) or not is_table_key(row) or self.partition not in (None, partition):
            raise wrong_token(self.kind, after)
        rest: list[list[Comparison]] = [] if self.partition is not None else [[("PartitionKey", "gt", partition)]]
        return [[("PartitionKey", "eq", partition), ("RowKey", "gt", row)], *rest]


def between(name: str, wanted: RecordFilter) -> list[Comparison]:
    """Return what the service is asked about dates: a little too much, as not every one is precise to the microsecond.

    Azure's calendar begins in 1601, and so does the filter.
    """
    since = [] if wanted.since is None else [(name, "ge", max(utc_moment(wanted.since), EARLIEST))]
    until = [] if wanted.until is None else [(name, "le", max(utc_moment(wanted.until), EARLIEST))]
    return [*since, *until]
