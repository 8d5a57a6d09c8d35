"""Reading an operation off a polled row: what was inserted, updated or (softly) deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def operation_reader(
    columns: Sequence[str], cursor_at: int, created_column: str | None, deleted_column: str | None
) -> Callable[[Sequence[object]], str] | None:
    """Return a function from row to operation, or None when no column tells and every row is an ``upsert``."""
    if created_column is None and deleted_column is None:
        return None
    created_at = None if created_column is None else columns.index(created_column)
    deleted_at = None if deleted_column is None else columns.index(deleted_column)

    def operation(row: Sequence[object]) -> str:
        if deleted_at is not None and row[deleted_at]:
            return "delete"
        if created_at is None:
            return "upsert"
        return "insert" if row[created_at] == row[cursor_at] else "update"

    return operation
