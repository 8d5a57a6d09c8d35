"""What psycopg makes of PostgreSQL's values: intervals are not shortened, and an unreadable value is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.types import TypeEngine

from .drivers import driver_of
from .pools import rows_of
from .unreadable import MarkedRows, Rows, Unreadable, has_unreadable

_TEXT = 0


@contextmanager
def exact_reading(connection: Connection) -> Iterator[None]:
    """Have a session of psycopg hand out nothing that the database does not hold.

    Intervals of months or years are text: by itself it takes a month for 30 days, a year for 365. Streams have
    ``Unreadable`` where it fails. Both only for as long as the block runs: a handler's own statements on the same pool
    are read as its author knows it.
    """
    if connection.dialect.driver != "psycopg":
        yield
        return
    session = driver_of(connection)
    interval = session.adapters.types["interval"].oid
    before = session.adapters.get_loader(interval, _TEXT), session.server_cursor_factory
    exact_interval, session.server_cursor_factory = _exact_classes()
    session.adapters.register_loader(interval, exact_interval)
    try:
        yield
    finally:
        loader, session.server_cursor_factory = before
        session.adapters.register_loader(interval, loader)


@cache
def _exact_classes() -> tuple[Any, Any]:
    from psycopg import ServerCursor
    from psycopg.types.datetime import IntervalLoader

    class ExactInterval(IntervalLoader):
        """An interval of a fixed length, or the text of one that depends on the calendar."""

        def load(self, data: Any) -> Any:
            text = bytes(data).decode()
            if text.endswith("infinity"):
                raise ValueError(f"an interval without an end: {text!r}")  # by itself it takes it for zero
            return text if "mon" in text or "year" in text else super().load(data)

    class ReadableCursor(ServerCursor[Any]):
        """A cursor of a stream: it hands out rows that cannot be read, too."""

        def fetchmany(self, size: int = 0) -> list[Any]:
            try:
                return super().fetchmany(size)
            except Exception:
                rows = [] if self.pgresult is None else rows_as_stored(self.pgresult, self.connection)
                if not any(map(has_unreadable, rows)):
                    raise
                return rows

    return ExactInterval, ReadableCursor


def marked_rows_of(cursor: Any) -> Rows:
    """Return what a cursor of psycopg has to tell; ``MarkedRows`` when it cannot read one of the rows."""
    try:
        return rows_of(cursor)
    except Exception:
        rows = rows_as_stored(cursor.pgresult, cursor.connection)
        if not any(map(has_unreadable, rows)):
            raise
        return MarkedRows(rows)


def rows_as_stored(
    stored: Any, session: Any, dialect: Dialect | None = None, types: Sequence[TypeEngine[Any]] = ()
) -> list[tuple[object, ...]]:
    """Return the rows of a result of libpq, with ``Unreadable`` for what psycopg cannot read.

    ``types`` are those of the columns where they are known; SQLAlchemy converts some of their values.
    """
    from psycopg.adapt import Transformer

    transformer = Transformer(session)
    loaders = [transformer.get_loader(stored.ftype(at), stored.fformat(at)) for at in range(stored.nfields)]
    converters = [_converter(kind, dialect, stored.ftype(at)) for at, kind in enumerate(types)]
    converters += [None] * (stored.nfields - len(converters))
    rows: list[tuple[object, ...]] = []
    for number in range(stored.ntuples):
        values = [stored.get_value(number, at) for at in range(stored.nfields)]
        rows.append(tuple(map(_loaded, values, loaders, converters)))
    return rows


def _converter(kind: TypeEngine[Any], dialect: Dialect | None, oid: int) -> Callable[[Any], Any] | None:
    return None if dialect is None else kind.dialect_impl(dialect).result_processor(dialect, oid)


def _loaded(data: bytes | None, loader: Any, converter: Callable[[Any], Any] | None) -> object:
    try:
        value = None if data is None else loader.load(data)
        return value if converter is None else converter(value)
    except Exception as error:  # whatever psycopg raises: a value is in the way, and the row is named
        words = str(error).split("\n", 1)[0].rstrip(".")
        shown = bytes(data or b"").decode(errors="replace")
        return Unreadable(f"holds what Python has no value for ({words})", shown)
