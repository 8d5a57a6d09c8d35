"""Whose a ``transaction()`` is: whoever has its handle takes part, and whoever opened it, there and then.

Others may have the same writer in their hands. A write of theirs must not join: it would be reported as done, and then
be rolled back together with a block it knows nothing of. Nor may it go its own way: it may be meant for the block, as
in a dependency of a web framework that is entered on another thread than its handler.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field

from sqlalchemy import Table
from sqlalchemy.engine import Connection

from ..core.errors import WriteError


def _here() -> tuple[int, object]:
    """Return the thread and the task that ask."""
    try:
        task: object = asyncio.current_task()
    except RuntimeError:  # there is no event loop on this thread
        task = None
    return threading.get_ident(), task


@dataclass(slots=True, eq=False)
class OpenTransaction:
    """A transaction() block. It keeps the table it began with: looking it up would need a second connection.

    ``turn`` is held while a statement is sent: the handle may be used by several threads.
    """

    connection: Connection
    table: Table
    has_failed: bool = False
    has_ended: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)
    opened_by: tuple[int, object] = field(default_factory=_here)

    @property
    def is_opened_here(self) -> bool:
        """Return whether the caller is who opened it: the same thread and task, in the context of the block.

        A thread of a pool is nobody in particular, so that alone does not identify it.
        """
        return self in _open_here.get() and self.opened_by == _here()

    def enter(self) -> None:
        """Make the caller's context the block's."""
        _open_here.set(_open_here.get() | {self})

    def leave(self) -> None:
        """Take that back."""
        _open_here.set(_open_here.get() - {self})

    def require_open(self) -> None:
        """Check that it can take another write.

        Raises:
            WriteError: it has ended, or an earlier write in it failed.
        """
        if self.has_ended:
            raise WriteError(
                "This transaction() has ended, so nothing more can be written in it. Write inside its block, or open "
                "another one."
            )
        if self.has_failed:
            raise WriteError(
                "An earlier write inside this transaction() failed, so nothing of it can be kept. Let that error leave "
                "the block, or make writes that may fail outside of it."
            )


_open_here: ContextVar[frozenset[OpenTransaction]] = ContextVar("holdfast_open_transactions", default=frozenset())
