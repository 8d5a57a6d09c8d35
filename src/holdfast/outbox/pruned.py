"""What retention has deleted, so that nobody takes what is left for everything there was [OUTBOX-8].

One row counts it. Whoever prunes locks that row before it looks which messages every processor has passed, and whoever
puts a processor to the beginning locks it before it looks whether everything is there: neither overlooks the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, select, update
from sqlalchemy.engine import Connection

from ..records.times import database_time
from .message import Checkpoint
from .schema import pruned_table

_columns = pruned_table.c


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted: how many messages (None: not counted by an earlier release), and when last."""

    messages: int | None
    at: datetime | None

    def __str__(self) -> str:
        if self.messages is None:
            return "messages before the first kept one were deleted, or never committed"
        return f"retention has deleted messages ({self.messages:,} until {self.at:%Y-%m-%d %H:%M} UTC)"


def lock_pruned(connection: Connection) -> Pruned | None:
    """Let nobody prune until the transaction ends; return what was deleted, None when nothing was."""
    row = connection.execute(select(_columns.messages, _columns.pruned_at).with_for_update()).one_or_none()
    return None if row is None or row.messages == 0 else Pruned(row.messages, row.pruned_at)


def note_pruned(connection: Connection, messages: int) -> None:
    """Count messages that were deleted in this transaction. What was not counted from the first stays uncounted."""
    moment = database_time(connection.dialect)
    counted = update(pruned_table).values(messages=_columns.messages + messages, pruned_at=moment)
    if connection.execute(counted).rowcount == 0:  # somebody has emptied our tables
        connection.execute(insert(pruned_table).values(id=1, messages=messages, pruned_at=moment))


def refusal(pruned: Pruned | None, first: Checkpoint | None, accepted: Checkpoint | None) -> str | None:
    """Return why a processor may not begin at the beginning, None when it may.

    It may where nothing was deleted, or where the caller has named the first message that is kept.
    """
    if pruned is None or (first is not None and accepted == first):
        return None
    if first is None:
        return f"there is no message to begin with: {pruned}, and none is kept"
    named = "" if accepted is None else f", not {accepted}"
    return f"not everything is there to begin with: {pruned}, and the first message kept is {first}{named}"
