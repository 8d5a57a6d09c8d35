"""A value that Python has no form for, in its place in a row: named by row and column, apart from the rows before it.

PostgreSQL's time ``24:00`` and its infinite dates, a number where SQLite's column holds times, text that is no UTF-8: a
driver fails with the whole result then, and says neither which row it was nor, mostly, which column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands in a row for a value that cannot be read. ``stored`` is that value as far as it can be shown."""

    why: str
    stored: object = None

    def __str__(self) -> str:
        return "?" if self.stored is None else str(self.stored)


class MarkedRows(list[Sequence[Any]]):
    """Rows that a driver failed with, of which some have ``Unreadable`` among their values."""


def has_unreadable(row: Iterable[object]) -> bool:
    """Return whether a value of a row cannot be read."""
    return Unreadable in map(type, row)


def problem_in(columns: Iterable[str], values: Iterable[object]) -> str | None:
    """Return which column of a row cannot be read, and why; None when each can."""
    found = ((name, value) for name, value in zip(columns, values, strict=False) if isinstance(value, Unreadable))
    return next((f"column '{name}' {value.why}" for name, value in found), None)


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that cannot be read: its values, with ``Unreadable`` among them, and its number in the result, from 1."""

    values: Sequence[object]
    number: int

    def problem(self, columns: Sequence[str]) -> str:
        """Return which column it is, and why."""
        return str(problem_in(columns, self.values))


@dataclass(frozen=True, slots=True)
class Fetched:
    """The rows of a result up to the first that cannot be read, and that one."""

    rows: Rows
    bad: UnreadableRow | None = None


def up_to_unreadable(rows: Rows, columns: Sequence[int]) -> Fetched:
    """Return rows up to the first that has ``Unreadable`` in one of the columns."""
    for number, row in enumerate(rows if columns else ()):
        if any(type(row[at]) is Unreadable for at in columns):
            return Fetched(rows[:number], UnreadableRow(row, number + 1))
    return Fetched(rows)
