"""Fetching rows such that one which cannot be read is found, and those before it are not lost with it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from sqlalchemy.engine import Connection, CursorResult
from sqlalchemy.types import TypeEngine

from .drivers import driver_of
from .psycopg_values import rows_as_stored
from .unreadable import Fetched, MarkedRows, Rows, Unreadable, has_unreadable, up_to_unreadable


def all_rows(result: CursorResult[Any]) -> Rows:
    """Return every row."""
    return result.all()


def fetched(
    result: CursorResult[Any],
    read: Callable[[CursorResult[Any]], Rows] = all_rows,
    *,
    types: Sequence[TypeEngine[Any]] = (),
    again: Callable[[], CursorResult[Any]] | None = None,
) -> Fetched:
    """Return the rows that ``read`` takes from a result, up to the first that cannot be read; as for ``every_row``."""
    rows = every_row(result, read, types=types, again=again)
    if isinstance(rows, MarkedRows):
        return up_to_unreadable(rows, range(len(rows[0])))
    return up_to_unreadable(rows, [at for at, kind in enumerate(types) if getattr(kind, "can_be_unreadable", False)])


def every_row(
    result: CursorResult[Any],
    read: Callable[[CursorResult[Any]], Rows] = all_rows,
    *,
    types: Sequence[TypeEngine[Any]] = (),
    again: Callable[[], CursorResult[Any]] | None = None,
) -> Rows:
    """Return the rows that ``read`` takes from a result; ``MarkedRows`` when the driver cannot read one of them.

    Args:
        result: what a statement has returned.
        read: takes rows from it.
        types: those of the columns, where they are known.
        again: executes the statement once more: SQLite's driver forgets the row that it fails at. What it changes is
            rolled back with the error.
    """
    connection, stored = result.connection, getattr(result.cursor, "pgresult", None)
    driver = driver_of(connection)
    try:
        return read(result)
    except Exception:
        marked: Rows = []
        with suppress(Exception):  # then the error is another one, and it is the first that counts
            marked = _marked(stored, connection, driver, types, read, again)
        if not any(map(has_unreadable, marked)):
            raise
        return MarkedRows(marked)


def chunks(result: CursorResult[Any], size: int) -> Generator[Fetched, None, None]:
    """Yield the rows of a stream, some at a time; the last of them may end before one that cannot be read."""
    is_sqlite = result.dialect.name == "sqlite"
    columns = range(len(result.keys())) if is_sqlite or result.dialect.driver == "psycopg" else ()
    with _any_text(driver_of(result.connection)) if is_sqlite else nullcontext():
        for rows in result.partitions(size):
            found = up_to_unreadable(rows, columns)
            yield found
            if found.bad is not None:
                return


def _marked(
    stored: Any,
    connection: Connection,
    driver: Any,
    types: Sequence[TypeEngine[Any]],
    read: Callable[[CursorResult[Any]], Rows],
    again: Callable[[], CursorResult[Any]] | None,
) -> Rows:
    """Return the rows with ``Unreadable`` where the driver failed; none where that cannot be found out."""
    if stored is not None:
        return rows_as_stored(stored, driver, connection.dialect, types)
    if again is None or connection.dialect.name != "sqlite":
        return []
    with _any_text(driver):
        return read(again())


@contextmanager
def _any_text(driver: Any) -> Iterator[None]:
    """Have a SQLite connection hand out ``Unreadable`` for text that is no UTF-8."""
    before, driver.text_factory = driver.text_factory, _text
    try:
        yield
    finally:
        driver.text_factory = before


def _text(stored: bytes) -> object:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return Unreadable("holds text that is no UTF-8", stored)
