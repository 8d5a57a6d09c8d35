"""Whose a ``transaction()`` is: that of the task or thread that opened it, and of what they start inside the block.

Others may have the same writer in their hands. A write of theirs must not join: it would be reported as done, and then
be rolled back together with a block it knows nothing of.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass, field

from sqlalchemy import Table
from sqlalchemy.engine import Connection


@dataclass(slots=True, eq=False)
class OpenTransaction:
    """A transaction() block. It keeps the table it began with: looking it up would need a second connection.

    ``turn`` is held while a statement is sent: tasks started inside the block may write from several threads.
    """

    connection: Connection
    table: Table
    has_failed: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_mine(self) -> bool:
        """Return whether the calling task or thread takes part in it."""
        return self in _mine.get()

    def take_part(self) -> None:
        """Let the calling task or thread take part, and whatever it starts with a copy of its context."""
        _mine.set(_mine.get() | {self})

    def leave(self) -> None:
        """Take the caller's part back."""
        _mine.set(_mine.get() - {self})


_mine: ContextVar[frozenset[OpenTransaction]] = ContextVar("holdfast_open_transactions", default=frozenset())
