"""Raw records in, ``RowChange`` events out. Adapters only return records; what an event is, is decided here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .cursor import serialize_cursor_part
from .events import RowBatch, RowChange, event_id
from .types import CursorValue, RawRecord, SourceDescriptor

EventNormalizer = Callable[[RawRecord, SourceDescriptor], RowChange]


def make_normalizer(*, cursor_column: str, pk_columns: list[str]) -> EventNormalizer:
    """Return a normalizer for records that hold a cursor column and key columns."""

    def normalizer(record: RawRecord, descriptor: SourceDescriptor) -> RowChange:
        keys = [(name, record[name]) for name in pk_columns]
        value = record[cursor_column]
        cursor: CursorValue = (serialize_cursor_part(value), *(serialize_cursor_part(key) for _, key in keys))
        return RowChange(
            event_id=event_id(descriptor, value, keys),
            op="upsert",
            source=descriptor,
            cursor=cursor,
            pk=dict(keys),
            before=None,
            after=dict(record),
        )

    return normalizer


def normalize(
    records: Sequence[RawRecord], descriptor: SourceDescriptor, normalizer: EventNormalizer | None
) -> list[RowChange]:
    """Return the events of one fetch. A SQL source's rows need no normalizer unless the user gave one."""
    if normalizer is None:
        if isinstance(records, RowBatch):
            return records.events()
        raise TypeError("a normalizer is needed for records that did not come from a SQL source")
    return [normalizer(record, descriptor) for record in records]
