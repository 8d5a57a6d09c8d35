"""Rows of our own tables, read although one of them cannot be: it is named, and the others are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.engine import Connection, Engine

from ..core.errors import QueryError
from ..database.fetching import every_row
from ..database.unreadable import problem_in
from .database import reading
from .paging import Page, checked_limit

_Item = TypeVar("_Item")
StoredRow = Mapping[str, Any]


def rows_in(connection: Connection, query: Select[Any]) -> list[StoredRow]:
    """Return the rows of a query by the names of their columns, with ``Unreadable`` for what cannot be read."""
    columns = query.selected_columns

    def execute() -> Any:
        return connection.execute(query)

    rows = every_row(execute(), types=[column.type for column in columns], again=execute)
    return [dict(zip(columns.keys(), row, strict=True)) for row in rows]


def read(row: StoredRow, item_in: Callable[[StoredRow], _Item], table: str, keys: Sequence[str]) -> _Item:
    """Return what is in a row.

    Raises:
        QueryError: it cannot be read; the row and the column are named.
    """
    problem = problem_in(row.keys(), row.values())
    if problem is None:
        return item_in(row)
    name = ", ".join(f"{key} '{row[key]}'" for key in keys)
    raise QueryError(
        f"The row of {table} with {name} cannot be read: its {problem}. It was changed by something else than "
        "Holdfast: mend it, or delete it."
    )


def readable_page(
    engine: Engine,
    query: Select[Any],
    limit: int,
    read_row: Callable[[StoredRow], _Item],
    token: Callable[[StoredRow], str],
) -> Page[_Item]:
    """Return a page of what a query finds, with a sentence for each row that cannot be read.

    Raises:
        QueryError: the page ends with a row whose place in the listing cannot be read, so none can follow.
    """
    with reading(engine) as connection:
        rows = rows_in(connection, query.limit(checked_limit(limit) + 1))
    items: list[_Item] = []
    unreadable: list[str] = []
    for row in rows[:limit]:
        try:
            items.append(read_row(row))
        except QueryError as error:
            unreadable.append(str(error))
    return Page(items, token(rows[limit - 1]) if len(rows) > limit else None, tuple(unreadable))
