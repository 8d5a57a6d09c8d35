"""Giving types to cursors that came without: typed by a person, or written by azure-functions-db.

Our own checkpoints carry the type of each value. These do not, so the columns decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement

from ...core.cursor import KeysetCursor, OpaqueCursor, parse_cursor
from ...core.errors import CursorSerializationError
from ...core.key_text import is_plain
from ...database.column_values import FROM_TEXT, fitting
from .statement import KeysetQuery


def keyset_cursor(
    form: object, query: KeysetQuery, key_names: Sequence[str], declared_types: Sequence[type]
) -> KeysetCursor | None:
    """Return the typed cursor kept in a checkpoint, or None at the beginning.

    Raises:
        CursorSerializationError: it does not fit the columns.
    """
    cursor = parse_cursor(form)
    if cursor is None:
        return None
    if isinstance(cursor, KeysetCursor):
        return _in_key_order(cursor, key_names)
    return _from_parts(cursor, query, key_names, declared_types)


def _in_key_order(cursor: KeysetCursor, key_names: Sequence[str]) -> KeysetCursor:
    keys = dict(cursor.keys)
    if set(keys) != set(key_names):
        raise CursorSerializationError(
            f"its key columns are {', '.join(sorted(keys))}, but the source's are {', '.join(sorted(key_names))}."
        )
    return KeysetCursor(cursor.value, tuple((name, keys[name]) for name in key_names))


def _from_parts(
    cursor: OpaqueCursor, query: KeysetQuery, key_names: Sequence[str], declared_types: Sequence[type]
) -> KeysetCursor:
    parts = cursor.parts if isinstance(cursor.parts, tuple) else (cursor.parts,)
    columns = (query.cursor, *query.keys)
    if len(parts) != len(columns):
        raise CursorSerializationError(f"it has {len(parts)} parts, but cursor and keys are {len(columns)} columns.")
    types: list[type | None] = list(declared_types) or [_python_type(column) for column in columns]
    if len(types) != len(columns):
        raise CursorSerializationError(f"cursor_types names {len(types)} types for {len(columns)} columns.")
    typed = [_typed(part, wanted, column, query) for part, wanted, column in zip(parts, types, columns, strict=True)]
    return KeysetCursor(typed[0], tuple(zip(key_names, typed[1:], strict=True)))


def _python_type(column: ColumnElement[Any]) -> type | None:
    try:
        return column.type.python_type
    except NotImplementedError:
        return None


def _typed(part: object, wanted: type | None, column: ColumnElement[Any], query: KeysetQuery) -> object:
    if part is None:
        raise CursorSerializationError("a part of it is NULL.")
    if isinstance(part, str) and not is_plain(part):
        raise CursorSerializationError(f"{part!r} holds a character that no column '{_name(column)}' can hold.")
    if wanted is None or wanted not in FROM_TEXT or isinstance(part, wanted):
        return part
    try:
        value = FROM_TEXT[wanted](str(part))
        if wanted is int:  # a number that no row can have would end the trigger's reading, or break it
            value = fitting(value, column.type, query.dialect_name)
    except (ValueError, ArithmeticError) as error:
        raise CursorSerializationError(
            f"{part!r} is not a valid {wanted.__name__} for column '{_name(column)}'."
        ) from error
    raw = query.needs_raw_copies
    if isinstance(value, datetime):
        return _stored_text(value) if raw else _with_fitting_zone(value, column)
    return value if not raw or isinstance(value, (int, float)) else str(part)


def _stored_text(value: datetime) -> str:
    """Return a time as SQLite keeps it. The shorter form sorts first, so at worst rows come twice."""
    timespec = "microseconds" if value.microsecond else "seconds"
    return value.replace(tzinfo=None).isoformat(sep=" ", timespec=timespec)


def _with_fitting_zone(value: datetime, column: ColumnElement[Any]) -> datetime:
    wants_zone = getattr(column.type, "timezone", None)
    if wants_zone is True and value.tzinfo is None:
        raise CursorSerializationError(f"'{value}' has no time zone, but column '{_name(column)}' has one.")
    if wants_zone is False and value.tzinfo is not None:
        raise CursorSerializationError(f"'{value}' has a time zone, but column '{_name(column)}' has none.")
    return value


def _name(column: ColumnElement[Any]) -> str:
    return str(getattr(column, "name", column))
