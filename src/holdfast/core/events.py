"""The event a trigger's handler receives: one changed row.

``RowChange`` is the contract. Events that come out of a SQL source are built by the hundred thousand, so those are a
subclass that holds the fetched row and its dictionary, and works out the rest (``pk``, ``cursor``, ``event_id``) when
asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, ClassVar, overload

from .cursor import KeysetCursor, serialize_cursor_part
from .types import CursorValue, RawRecord, SourceDescriptor
from .values import to_text

VALID_OPS: frozenset[str] = frozenset({"insert", "update", "upsert", "delete", "unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """One changed row. ``event_id`` is the same on every delivery of the same change: use it to drop duplicates."""

    event_id: str
    op: str
    source: SourceDescriptor
    cursor: CursorValue
    pk: dict[str, object]
    before: dict[str, object] | None
    after: dict[str, object] | None
    metadata: dict[str, object] = field(default_factory=dict)

    _VALID_OPS: ClassVar[frozenset[str]] = VALID_OPS

    def __post_init__(self) -> None:
        if self.op not in self._VALID_OPS:
            raise ValueError(f"Invalid op '{self.op}', must be one of {sorted(self._VALID_OPS)}")
        if not self.event_id:
            raise ValueError("event_id must not be empty")


def event_id(source: SourceDescriptor, cursor_value: object, keys: Sequence[tuple[str, object]]) -> str:
    """Return the identity of a change: a hash over the source and the exact, zone-independent cursor and keys."""
    parts = [source.fingerprint, *to_text(cursor_value)]
    for name, value in keys:
        parts.append(name)
        parts.extend(to_text(value))
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RowShape:
    """What all rows of one result have in common: where the columns are and how to read an operation off a row.

    ``row_columns`` may be fewer than a row has values: what follows them are raw copies of cursor and keys, for
    databases whose driver changes values on the way out (``cursor_at`` and ``keys_at`` then point at the copies).
    """

    source: SourceDescriptor
    row_columns: tuple[str, ...]
    cursor_at: int
    keys: tuple[tuple[str, int], ...]
    operation: Callable[[Sequence[object]], str] | None = None

    def keyset(self, row: Sequence[object]) -> KeysetCursor:
        """Return where the trigger stands once ``row`` has been delivered."""
        return KeysetCursor(row[self.cursor_at], tuple((name, row[at]) for name, at in self.keys))

    def record(self, row: Sequence[object]) -> RawRecord:
        """Return the row as a dictionary."""
        return dict(zip(self.row_columns, row, strict=False))


class RowBatch(Sequence[RawRecord]):
    """Fetched rows that become dictionaries only where someone looks at them."""

    __slots__ = ("rows", "shape")

    def __init__(self, shape: RowShape, rows: Sequence[Sequence[object]]) -> None:
        self.shape = shape
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> RawRecord: ...
    @overload
    def __getitem__(self, index: slice) -> RowBatch: ...
    def __getitem__(self, index: int | slice) -> RawRecord | RowBatch:
        if isinstance(index, slice):
            return type(self)(self.shape, self.rows[index])
        return self.shape.record(self.rows[index])

    def __iter__(self) -> Iterator[RawRecord]:
        return map(self.shape.record, self.rows)

    def events(self) -> list[RowChange]:
        """Return one event per row. Nearly every handler reads ``after``, so all of them are made here, at C speed."""
        afters = map(dict, map(zip, repeat(self.shape.row_columns), self.rows))
        return list(map(FetchedRow, repeat(self.shape), self.rows, afters))


class FetchedRow(RowChange):
    """A ``RowChange`` over a fetched row. All but ``after`` is worked out when asked for."""

    __slots__ = ("_row", "_shape")

    after: dict[str, object]
    _row: Sequence[object]
    _shape: RowShape

    def __init__(self, shape: RowShape, row: Sequence[object], after: dict[str, object]) -> None:
        _set_shape(self, shape)
        _set_row(self, row)
        _set_after(self, after)

    @property
    def before(self) -> None:
        """Return None: a polled row has no before image."""
        return

    @property
    def source(self) -> SourceDescriptor:
        """Return the source the row came from."""
        return self._shape.source

    @property
    def op(self) -> str:
        """Return ``insert``, ``update`` or ``delete`` where the source can tell, else ``upsert``."""
        operation = self._shape.operation
        return "upsert" if operation is None else operation(self._row)

    @property
    def pk(self) -> dict[str, object]:
        """Return the key columns and their values."""
        row, columns = self._row, self._shape.row_columns
        return {name: row[columns.index(name)] for name, _ in self._shape.keys}

    @property
    def cursor(self) -> CursorValue:
        """Return the JSON-safe cursor: its value, then the key values."""
        keyset = self._shape.keyset(self._row)
        return (serialize_cursor_part(keyset.value), *map(serialize_cursor_part, keyset.key_values))

    @property
    def event_id(self) -> str:
        """Return the identity of this change, the same on every delivery."""
        shape, row = self._shape, self._row
        return event_id(shape.source, row[shape.cursor_at], [(name, row[at]) for name, at in shape.keys])

    @property
    def metadata(self) -> dict[str, object]:
        """Return an empty dictionary: a polled row carries no metadata."""
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain_row_change, (
            self.event_id,
            self.op,
            self.source,
            self.cursor,
            self.pk,
            self.after,
        )


_set_shape = FetchedRow.__dict__["_shape"].__set__
_set_row = FetchedRow.__dict__["_row"].__set__
_set_after = RowChange.__dict__["after"].__set__


def _plain_row_change(
    identity: str,
    op: str,
    source: SourceDescriptor,
    cursor: CursorValue,
    pk: dict[str, object],
    after: dict[str, object],
) -> RowChange:
    return RowChange(event_id=identity, op=op, source=source, cursor=cursor, pk=pk, before=None, after=after)
