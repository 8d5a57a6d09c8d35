"""The SELECT of a keyset poll, built so that every database can use the index on (cursor, key…).

``a > x OR (a = x AND b > y)`` alone makes PostgreSQL read the index from its start, so the page gets slower with the
table. Where row comparison is used by the index (PostgreSQL, SQLite) it is the predicate; elsewhere ``a >= x AND (…)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    TextClause,
    and_,
    bindparam,
    column,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    tuple_,
    type_coerce,
)
from sqlalchemy.engine import CursorResult
from sqlalchemy.sql.elements import quoted_name
from sqlalchemy.sql.selectable import FromClause
from sqlalchemy.types import TypeEngine, UserDefinedType

_ROW_COMPARISON = frozenset({"postgresql", "sqlite"})
_BUFFERING_DRIVERS = frozenset({"psycopg", "psycopg2", "pymysql"})
CURSOR_PARAM = "holdfast_cursor"
KEY_PARAM = "holdfast_key_{}"
BOUND_PARAM = "holdfast_bound"


class StoredValue(UserDefinedType[Any]):
    """A value exactly as the driver stores and compares it, with nothing converted on the way in or out."""

    cache_ok = True


@dataclass(frozen=True, slots=True)
class KeysetQuery:
    """What to read: a table or a query, its cursor and key columns, and a filter."""

    from_clause: FromClause
    cursor: ColumnElement[Any]
    keys: tuple[ColumnElement[Any], ...]
    all_columns: tuple[ColumnElement[Any], ...]
    where: str | None
    dialect_name: str

    @property
    def needs_raw_copies(self) -> bool:
        """Return whether the driver changes values on the way out, so that cursor and keys are fetched raw as well."""
        return self.dialect_name == "sqlite"

    def page(self, *, has_cursor: bool, has_bound: bool, limit: int, inclusive: bool = False) -> Select[Any]:
        """Return the statement for one page: after the cursor (or from it), strictly below the bound, in order."""
        statement = select(*self.all_columns, *self._raw_copies()).select_from(self.from_clause)
        statement = statement.where(*self._conditions(has_cursor, has_bound, inclusive))
        return statement.order_by(self.cursor, *self.keys).limit(literal(limit, literal_execute=True))

    def count_after(self, *, has_cursor: bool) -> Select[Any]:
        """Return the statement that counts the rows after the cursor."""
        statement = select(func.count()).select_from(self.from_clause)
        return statement.where(*self._conditions(has_cursor, has_bound=False, inclusive=False))

    def null_cursor(self) -> Select[Any]:
        """Return the statement that finds one row whose cursor is NULL."""
        return (
            select(literal_column("1"))
            .select_from(self.from_clause)
            .where(self.cursor.is_(None), *self._filter())
            .limit(1)
        )

    def newest_cursor(self) -> Select[Any]:
        """Return the statement for the highest cursor value, as it is stored."""
        highest = type_coerce(func.max(self.cursor), StoredValue())
        return select(highest).select_from(self.from_clause).where(*self._filter())

    def parameters(self, cursor: object, keys: Sequence[object]) -> dict[str, object]:
        """Return the bind values of a cursor."""
        return {CURSOR_PARAM: cursor} | {KEY_PARAM.format(at): key for at, key in enumerate(keys)}

    def is_plain(self, result: CursorResult[Any]) -> bool:
        """Return whether the driver's own rows can be used: the whole page is here, and no value is to be converted."""
        return result.dialect.driver in _BUFFERING_DRIVERS and not any(
            selected.type.dialect_impl(result.dialect).result_processor(result.dialect, described[1])
            for selected, described in zip(self.all_columns, result.cursor.description, strict=True)
        )

    def _raw_copies(self) -> list[ColumnElement[Any]]:
        if not self.needs_raw_copies:
            return []
        return [
            type_coerce(copied, StoredValue()).label(f"holdfast_raw_{at}")
            for at, copied in enumerate((self.cursor, *self.keys))
        ]

    def _conditions(self, has_cursor: bool, has_bound: bool, inclusive: bool) -> list[ColumnElement[bool] | TextClause]:
        conditions: list[ColumnElement[bool] | TextClause] = [self.cursor.is_not(None)]
        if has_cursor:
            conditions.append(self._from(self.cursor) if inclusive else self._after())
        if has_bound:
            conditions.append(self.cursor < self._bind(BOUND_PARAM, self.cursor))
        return conditions + self._filter()

    def _filter(self) -> list[ColumnElement[bool] | TextClause]:
        return [] if self.where is None else [text(f"({self.where})")]

    def _from(self, cursor: ColumnElement[Any]) -> ColumnElement[bool]:
        return cursor >= self._bind(CURSOR_PARAM, cursor)

    def _after(self) -> ColumnElement[bool]:
        columns = (self.cursor, *self.keys)
        names = (CURSOR_PARAM, *(KEY_PARAM.format(at) for at in range(len(self.keys))))
        values = [self._bind(name, at) for name, at in zip(names, columns, strict=True)]
        if self.dialect_name in _ROW_COMPARISON:
            return tuple_(*columns) > tuple_(*values)
        return and_(columns[0] >= values[0], _expanded(columns, values))

    def _bind(self, name: str, compared: ColumnElement[Any]) -> ColumnElement[Any]:
        return bindparam(name, type_=StoredValue() if self.needs_raw_copies else compared.type)


def plain_rows(result: CursorResult[Any]) -> Sequence[Sequence[object]]:
    """Return the driver's own rows, without SQLAlchemy's row objects around them.

    Those keep the garbage collector busy for as long as a batch lives; without them a catch-up takes a quarter less
    time. Only for results that ``is_plain``: reading them can neither lose the connection nor miss a conversion.
    """
    with closing(result):
        return result.cursor.fetchall()


def _expanded(columns: Sequence[ColumnElement[Any]], values: Sequence[ColumnElement[Any]]) -> ColumnElement[bool]:
    """Return ``a > x OR (a = x AND (b > y OR …))``."""
    first, rest = columns[0] > values[0], list(zip(columns[1:], values[1:], strict=True))
    if not rest:
        return first
    equal = columns[0] == values[0]
    return or_(first, and_(equal, _expanded([c for c, _ in rest], [v for _, v in rest])))


def over_table(table: Table, cursor: str, keys: Sequence[str], where: str | None, dialect_name: str) -> KeysetQuery:
    """Return the query over a reflected table; the dialect quotes every identifier."""
    return KeysetQuery(
        from_clause=table,
        cursor=table.c[cursor],
        keys=tuple(table.c[name] for name in keys),
        all_columns=tuple(table.c),
        where=where,
        dialect_name=dialect_name,
    )


def over_query(
    query: str,
    columns: Sequence[str],
    cursor: str,
    keys: Sequence[str],
    where: str | None,
    dialect_name: str,
    types: Mapping[str, TypeEngine[Any]],
) -> KeysetQuery:
    """Return the query over the user's own SELECT, whose result columns are ``columns``."""
    typed = [column(quoted_name(name, quote=True), types.get(name)) for name in columns]
    source = text(query).columns(*typed).subquery("source")
    return KeysetQuery(
        from_clause=source,
        cursor=source.c[cursor],
        keys=tuple(source.c[name] for name in keys),
        all_columns=tuple(source.c[name] for name in columns),
        where=where,
        dialect_name=dialect_name,
    )
