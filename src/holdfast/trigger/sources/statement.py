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
    case,
    cast,
    column,
    extract,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    tuple_,
    type_coerce,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.postgresql import INTERVAL, REAL
from sqlalchemy.engine import CursorResult
from sqlalchemy.sql.elements import quoted_name
from sqlalchemy.sql.selectable import FromClause
from sqlalchemy.types import Float, Integer, Time, TypeEngine, UserDefinedType

from ...database.faithful_types import as_read

_ROW_COMPARISON = frozenset({"postgresql", "sqlite"})
_BUFFERING_DRIVERS = frozenset({"psycopg", "psycopg2", "pymysql"})
CURSOR_PARAM = "holdfast_cursor"
KEY_PARAM = "holdfast_key_{}"
BOUND_PARAM = "holdfast_bound"
NEWEST_PARAM = "holdfast_newest"
NEWEST_KEY_PARAM = "holdfast_newest_key_{}"
AGAIN_PARAM = "holdfast_again"


class StoredValue(UserDefinedType[Any]):
    """A value exactly as the driver stores and compares it, with nothing converted on the way in or out."""

    cache_ok = True


class OrderedByNumber(StoredValue):
    """A value of MariaDB or MySQL that is sorted by a number, whatever it looks like: ENUM, SET and BIT in a query."""

    cache_ok = True


@dataclass(frozen=True, slots=True)
class ExactColumn:
    """A cursor or key column so that a value comes back from the database, and goes into a comparison, unchanged.

    ``compared`` stands in conditions. ``copy`` is fetched beside the column where the driver would change its values;
    None where the column itself comes through unchanged. ``bound_as`` is the type of values to compare with.
    """

    compared: ColumnElement[Any]
    copy: ColumnElement[Any] | None
    bound_as: TypeEngine[Any]
    is_cast: bool = False

    def bind(self, name: str) -> ColumnElement[Any]:
        """Return the parameter that ``compared`` is compared with."""
        parameter = bindparam(name, type_=self.bound_as)
        return cast(parameter, self.bound_as) if self.is_cast else parameter


def exact(column: ColumnElement[Any], dialect_name: str) -> ExactColumn:
    """Return how to fetch and compare a column without losing anything of its values."""
    match dialect_name:
        case "sqlite":
            return ExactColumn(column, type_coerce(column, StoredValue()), StoredValue())
        case "postgresql":
            return _exact_on_postgres(column)
        case "mysql" | "mariadb":
            return _exact_on_mysql(column)
    return ExactColumn(column, None, column.type)


def _exact_on_postgres(column: ColumnElement[Any]) -> ExactColumn:
    if isinstance(column.type, INTERVAL):  # the driver takes a year for 365 days, the database's order for 12 x 30
        months = extract("year", column) * 12 + extract("month", column)
        days = cast(months * 30 + extract("day", column), Integer)
        whole_days = func.make_interval(0, 0, 0, days, type_=INTERVAL())
        return ExactColumn(column, whole_days + (column - func.date_trunc("day", column)), INTERVAL())
    if isinstance(column.type, REAL):  # a parameter has double precision, in which 0.1 is another number
        return ExactColumn(column, None, column.type, is_cast=True)
    return ExactColumn(column, None, column.type)


def _exact_on_mysql(column: ColumnElement[Any]) -> ExactColumn:
    exact_float = mysql.DOUBLE(asdecimal=False)
    if isinstance(column.type, (mysql.DOUBLE, mysql.REAL)):  # handed out as a decimal of ten places
        return ExactColumn(column, type_coerce(column, exact_float), exact_float)
    if isinstance(column.type, Float):  # handed out with six digits
        return ExactColumn(column, cast(column, exact_float), exact_float)
    if isinstance(column.type, (mysql.ENUM, mysql.SET, OrderedByNumber)):  # but compared with text as text
        number = type_coerce(column, Integer()) + literal_column("0")
        return ExactColumn(number, number, Integer())
    if isinstance(column.type, Time):  # handed out within a day, although it can be longer than that
        return ExactColumn(column, type_coerce(column, StoredValue()), StoredValue())
    return ExactColumn(column, None, column.type)


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
        return any(column.copy is not None for column in self._exact())

    def page(
        self, *, has_cursor: bool, has_bound: bool, limit: int, inclusive: bool = False, marked: bool = False
    ) -> Select[Any]:
        """Return the statement for one page: after the cursor (or from it), strictly below the bound, in order.

        ``marked`` adds two columns, for a window: whether the row lies behind a place, and whether it is not below a
        value. Only the database knows: its collations order texts in another way than Python does.
        """
        marks = self._marks() if marked else []
        statement = select(*self.selected, *marks).select_from(self.from_clause)
        statement = statement.where(*self._conditions(has_cursor, has_bound, inclusive))
        return statement.order_by(self.cursor, *self.keys).limit(literal(limit, literal_execute=True))

    def count_after(self, *, has_cursor: bool) -> Select[Any]:
        """Return the statement that counts the rows after the cursor."""
        statement = select(func.count()).select_from(self.from_clause)
        return statement.where(*self._conditions(has_cursor, has_bound=False, inclusive=False))

    def same_place(self) -> Select[Any]:
        """Return the statement that finds up to two rows with the cursor and key of a cursor."""
        places = zip(self._exact(), _names(CURSOR_PARAM, KEY_PARAM, len(self.keys)), strict=True)
        found: Select[Any] = select(literal_column("1")).select_from(self.from_clause)
        return found.where(*(column.compared == column.bind(name) for column, name in places), *self._filter()).limit(2)

    def without_place(self) -> Select[Any]:
        """Return the statement that finds one row whose cursor or key is NULL."""
        found: Select[Any] = select(literal_column("1")).select_from(self.from_clause)
        is_null = or_(*(column.is_(None) for column in (self.cursor, *self.keys)))
        return found.where(is_null, *self._filter()).limit(1)

    def newest_cursor(self) -> Select[Any]:
        """Return the statement for the highest cursor value, as it is stored."""
        highest = type_coerce(func.max(self.cursor), StoredValue())
        return select(highest).select_from(self.from_clause).where(*self._filter())

    def parameters(self, cursor: object, keys: Sequence[object]) -> dict[str, object]:
        """Return the bind values of a cursor."""
        return {CURSOR_PARAM: cursor} | {KEY_PARAM.format(at): key for at, key in enumerate(keys)}

    def marks(self, newest: object, newest_keys: Sequence[object], again: object) -> dict[str, object]:
        """Return the bind values of a marked page: the place, and the value."""
        keys = {NEWEST_KEY_PARAM.format(at): key for at, key in enumerate(newest_keys)}
        return {NEWEST_PARAM: newest, AGAIN_PARAM: again} | keys

    def is_plain(self, result: CursorResult[Any]) -> bool:
        """Return whether the driver's own rows can be used: the whole page is here, and no value is to be converted."""
        return result.dialect.driver in _BUFFERING_DRIVERS and not any(
            selected.type.dialect_impl(result.dialect).result_processor(result.dialect, described[1])
            for selected, described in zip(
                self.selected,
                result.cursor.description,
                strict=False,  # marks are whole numbers
            )
        )

    @property
    def selected(self) -> list[ColumnElement[Any]]:
        """Return what a page holds of each row: its columns as they are read, and raw copies of cursor and keys."""
        return [*(as_read(column, self.dialect_name) for column in self.all_columns), *self._raw_copies()]

    def _exact(self) -> list[ExactColumn]:
        return [exact(column, self.dialect_name) for column in (self.cursor, *self.keys)]

    def _raw_copies(self) -> list[ColumnElement[Any]]:
        if not self.needs_raw_copies:
            return []
        return [
            (column.compared if column.copy is None else column.copy).label(f"holdfast_raw_{at}")
            for at, column in enumerate(self._exact())
        ]

    def _marks(self) -> list[ColumnElement[Any]]:
        is_newer = self._after(_names(NEWEST_PARAM, NEWEST_KEY_PARAM, len(self.keys)))
        comes_again = self._exact()[0].compared >= self._bind(AGAIN_PARAM, self.cursor)
        return [_flag(is_newer).label("holdfast_is_newer"), _flag(comes_again).label("holdfast_comes_again")]

    def _conditions(self, has_cursor: bool, has_bound: bool, inclusive: bool) -> list[ColumnElement[bool] | TextClause]:
        conditions: list[ColumnElement[bool] | TextClause] = [self.cursor.is_not(None)]
        if has_cursor:
            names = _names(CURSOR_PARAM, KEY_PARAM, len(self.keys))
            conditions.append(self._from() if inclusive else self._after(names))
        if has_bound:
            conditions.append(self._exact()[0].compared < self._bind(BOUND_PARAM, self.cursor))
        return conditions + self._filter()

    def _filter(self) -> list[ColumnElement[bool] | TextClause]:
        return [] if self.where is None else [text(f"({self.where}\n)")]

    def _from(self) -> ColumnElement[bool]:
        return self._exact()[0].compared >= self._bind(CURSOR_PARAM, self.cursor)

    def _after(self, names: Sequence[str]) -> ColumnElement[bool]:
        columns = self._exact()
        compared = [column.compared for column in columns]
        values = [column.bind(name) for name, column in zip(names, columns, strict=True)]
        if self.dialect_name in _ROW_COMPARISON:
            return tuple_(*compared) > tuple_(*values)
        return and_(compared[0] >= values[0], _expanded(compared, values))

    def _bind(self, name: str, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return exact(column, self.dialect_name).bind(name)


def _names(cursor: str, key: str, keys: int) -> list[str]:
    return [cursor, *(key.format(at) for at in range(keys))]


def _flag(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return case((condition, literal_column("1")), else_=literal_column("0"))


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
    columns: Mapping[str, TypeEngine[Any] | None],
    cursor: str,
    keys: Sequence[str],
    where: str | None,
    dialect_name: str,
) -> KeysetQuery:
    """Return the query over the user's own SELECT, whose result has ``columns``, with their types where they count."""
    typed = [column(quoted_name(name, quote=True), kind) for name, kind in columns.items()]
    source = text(query).columns(*typed).subquery("source")
    return KeysetQuery(
        from_clause=source,
        cursor=source.c[cursor],
        keys=tuple(source.c[name] for name in keys),
        all_columns=tuple(source.c[name] for name in columns),
        where=where,
        dialect_name=dialect_name,
    )
