"""What makes a row of an outbox a message: an event id made of the message's own id, and data decoded from its JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.events import FetchedRow, RowBatch, RowChange, RowShape
from ...core.strict_json import strictly_loaded
from ...core.types import RawRecord
from ...core.values import to_text


@dataclass(frozen=True, slots=True)
class MessageShape(RowShape):
    """What all messages of one result have in common: also where their ids are, and which column may hold JSON text."""

    outbox: str = ""
    message_id_at: int | None = None
    text_data: str | None = None

    def record(self, row: Sequence[object]) -> RawRecord:
        """Return the row as a dictionary, with its data decoded."""
        record = dict(zip(self.row_columns, row, strict=False))
        if self.text_data is not None:
            record[self.text_data] = decoded(record[self.text_data])
        return record


class MessageBatch(RowBatch):
    """Fetched messages."""

    __slots__ = ()

    def events(self) -> list[RowChange]:
        """Return one event per message, each with data of its own."""
        shape = self.shape
        return [Message(shape, row, shape.record(row)) for row in self.rows]


class Message(FetchedRow):
    """A ``RowChange`` over a message. Its ``event_id`` is made of the message's own id, where it has one."""

    __slots__ = ()

    _shape: MessageShape

    @property
    def event_id(self) -> str:
        """Return the identity of this message: the same on every delivery, and in a copy of the outbox elsewhere."""
        at = self._shape.message_id_at
        message_id = None if at is None else self._row[at]
        if message_id is None:
            return super().event_id
        parts = ("outbox", self._shape.outbox, *to_text(message_id))
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def insert(row: Sequence[object]) -> str:
    """Return the operation of a message: it is added once and never changed."""
    return "insert"


def decoded(value: object) -> object:
    """Return a text that is a JSON object or array as what it stands for, and everything else as it is.

    Other JSON (``17``, ``true``, ``"text"``) cannot be told from plain text. What is broken is left to the handler:
    raising here would stop the outbox at this message for ever.
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return strictly_loaded(value)
    except (ValueError, RecursionError):
        return value
