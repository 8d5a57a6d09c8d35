"""A value that Python has no form for, in its place in a row: named by row and column, apart from the rows before it.

PostgreSQL's time ``24:00`` and its infinite dates, a number where SQLite's column holds times, text that is no UTF-8: a
driver fails with the whole result then, and says neither which row it was nor, mostly, which column.
"""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that cannot be read: its values, with ``Unreadable`` among them, and its number in the result, from 1."""

    values: Sequence[object]
    number: int

    def problem(self, columns: Sequence[str]) -> str:
        """Return which column it is, and why."""
        found = ((name, value) for name, value in zip(columns, self.values, strict=False))
        name, value = next((name, value) for name, value in found if isinstance(value, Unreadable))
        return f"column '{name}' {value.why}"


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
