"""Dead letters and history in two places: what engines did in one table, what the workloads did in another.

An engine's name says which: those of engines have no colon, those of workloads do (``jobs:``, ``trigger:``,
``processor:``). What names no engine is asked of both tables, the engines' first; so a listing has all letters of the
engines, in their table's order, and then all of the workloads, in theirs.

No transaction spans both. What changes both is done in one and then in the other, and may be called again when the
process dies in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Generic, TypeVar

from ..core.former_names import former_names
from .dead_letters import DeadLetter, Decision, LetterFilter, NewLetter
from .history import HistoryEntry, HistoryFilter, NewEntry
from .paging import DEFAULT_LIMIT, Page, checked_limit, position_in, token_of, wrong_token
from .protocol import EVERY_ENTRY, EVERY_LETTER, HistoryTable, LetterTable
from .retention import RETENTION_DAYS

_LETTERS = "dead letters"
_HISTORY = "history"
_ENGINES, _WORKLOADS = 0, 1
_ITS_BEGINNING = ""
_Item = TypeVar("_Item")
_Table = TypeVar("_Table", LetterTable, HistoryTable)
_PageOf = Callable[[int, str | None], Page[_Item]]


class _Combined(Generic[_Table]):
    """Two tables as one.

    Args:
        engines: the table of the engines.
        workloads: the table of jobs, triggers and processors.
    """

    def __init__(self, engines: _Table, workloads: _Table) -> None:
        self._both: tuple[_Table, _Table] = (engines, workloads)

    def prune(self, retention_days: float = RETENTION_DAYS) -> int:
        """Forget what is old, first in one table, then in the other."""
        return sum(table.prune(retention_days) for table in self._both)

    def _of(self, engine: str) -> _Table:
        return self._both[_place(engine)]


class CombinedLetters(_Combined[LetterTable], LetterTable):
    """The dead letters of two tables as one."""

    def now(self) -> datetime:
        """Return the time of the workloads' table; each decides by its own what is old."""
        return self._both[_WORKLOADS].now()

    def add(self, letter: NewLetter) -> bool:
        """Add a letter; False when its key is there already."""
        return self._of(letter.engine).add(letter)

    def get(self, engine: str, row_key: str) -> DeadLetter | None:
        """Return one letter."""
        return self._of(engine).get(engine, row_key)

    def page(
        self, wanted: LetterFilter = EVERY_LETTER, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[DeadLetter]:
        """Return letters, those of engines first."""
        pages = [partial(table.page, wanted) for table in self._both]
        return _chained(_LETTERS, pages, limit, after, wanted.engine)

    def count(self, wanted: LetterFilter = EVERY_LETTER) -> int | None:
        """Return how many letters are wanted; None when one of the tables that are asked cannot tell."""
        tables = self._both if wanted.engine is None else (self._of(wanted.engine),)
        total = 0
        for table in tables:
            count = table.count(wanted)
            if count is None:
                return None
            total += count
        return total

    def decide(self, decision: Decision) -> DeadLetter:
        """Do with a letter what an operator decided."""
        return self._of(decision.engine).decide(decision)

    def expire(self, older_than_days: float, engine: str | None = None, *, actor: str) -> int:
        """Give up on old Pending letters; without an engine first in one table, then in the other."""
        tables = self._both if engine is None else (self._of(engine),)
        return sum(table.expire(older_than_days, engine, actor=actor) for table in tables)

    def begin_retry(self, engine: str, row_key: str, actor: str, new_message_id: str) -> DeadLetter:
        """Write down who retries a letter and under which id."""
        return self._of(engine).begin_retry(engine, row_key, actor, new_message_id)

    def finish_retry(self, engine: str, row_key: str, message_id: str) -> DeadLetter:
        """Mark a letter as retried."""
        return self._of(engine).finish_retry(engine, row_key, message_id)

    def unfinished_retries(
        self, older_than_seconds: float = 0.0, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[DeadLetter]:
        """Return Pending letters whose retry was begun at least so long ago, those of engines first."""
        pages = [partial(table.unfinished_retries, older_than_seconds) for table in self._both]
        return _chained(_LETTERS, pages, limit, after)


class CombinedHistory(_Combined[HistoryTable], HistoryTable):
    """The history in two tables as one."""

    def add(self, entry: NewEntry) -> HistoryEntry:
        """Add an entry and return it."""
        return self._of(entry.engine).add(entry)

    def get(self, engine: str, row_key: str) -> HistoryEntry | None:
        """Return one entry; None when no entry has that key."""
        return self._of(engine).get(engine, row_key)

    def page(
        self, wanted: HistoryFilter = EVERY_ENTRY, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[HistoryEntry]:
        """Return entries, those of engines first."""
        pages = [partial(table.page, wanted) for table in self._both]
        return _chained(_HISTORY, pages, limit, after, wanted.engine)

    def in_order(self, wanted: HistoryFilter) -> list[HistoryEntry]:
        """Return what one engine did for one piece of business, oldest first."""
        return self._of(wanted.engine or "").in_order(wanted)

    def last(self, wanted: HistoryFilter) -> HistoryEntry | None:
        """Return the last entry that is wanted."""
        return self._of(wanted.engine or "").last(wanted)


def _place(engine: str) -> int:
    return _WORKLOADS if ":" in engine else _ENGINES


def _chained(
    kind: str, pages: Sequence[_PageOf[_Item]], limit: int, after: str | None, engine: str | None = None
) -> Page[_Item]:
    """Return a page of both tables, one behind the other; with an engine, of its table alone.

    The token says which table to go on in, and how that table calls the place. A page that ends with the first table's
    last row is filled up from the second, so the last page is never an empty one.
    """
    checked_limit(limit)
    place, token = _start(kind, after, engine)
    found = pages[place](limit, token)
    if found.continuation_token is not None:
        return replace(found, continuation_token=token_of(kind, place, found.continuation_token))
    if engine is not None or place == _WORKLOADS:
        return found
    room = limit - len(found.items) - len(found.unreadable)
    if room == 0:
        ahead = pages[_WORKLOADS](1, None)
        is_last = not ahead.items and not ahead.unreadable and ahead.continuation_token is None
        return replace(found, continuation_token=None if is_last else token_of(kind, _WORKLOADS, _ITS_BEGINNING))
    rest = pages[_WORKLOADS](room, None)
    token = rest.continuation_token
    token = None if token is None else token_of(kind, _WORKLOADS, token)
    return Page([*found.items, *rest.items], token, found.unreadable + rest.unreadable)


def _start(kind: str, after: str | None, engine: str | None) -> tuple[int, str | None]:
    """Return in which table to go on, and behind which of its tokens.

    Raises:
        ConfigurationError: the token is not one of ours, or not from a listing of the table that has the engine.
    """
    if after is None:
        return (_ENGINES if engine is None else _place(engine)), None
    place, token = position_in(kind, after, [int, str])
    if place not in (_ENGINES, _WORKLOADS) or (engine is not None and place != _place(engine)):
        raise wrong_token(kind, after)
    return int(str(place)), str(token) or None


__getattr__ = former_names(__name__, {"RoutedLetters": "CombinedLetters", "RoutedHistory": "CombinedHistory"})
