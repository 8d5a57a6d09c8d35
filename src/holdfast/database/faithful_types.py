"""Column types under which values keep their meaning: the one place for reader, writer, trigger rows and cursors.

SQLAlchemy's types are what a database's drivers make of its values. Where that loses something, the type is replaced:
on the way in by those of ``kept_types``, on SQLite in both directions by those of ``sqlite_types``.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    BINARY,
    JSON,
    Boolean,
    ColumnElement,
    Date,
    DateTime,
    Dialect,
    Double,
    Enum,
    Float,
    Integer,
    Numeric,
    String,
    Time,
    cast,
    type_coerce,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.types import NullType, TypeEngine, _Binary

from .kept_types import (
    Bits,
    ClockTime,
    ClockTimeOrLength,
    Day,
    DecimalNumber,
    DoubleNumber,
    FullOctets,
    JsonValue,
    Kept,
    LocalMoney,
    MariaDbDay,
    MariaDbMoment,
    Octets,
    PlainText,
    TextOnly,
    UtcMoment,
    WholeNumber,
    YearNumber,
    ZonedMoment,
    require_no_json_text,
)
from .postgres_arrays import KeptArray
from .single_precision import shortest_single
from .sqlite_types import (
    DeclaredType,
    SqliteAnything,
    SqliteClockTime,
    SqliteDay,
    SqliteDeclared,
    SqliteFlag,
    SqliteJson,
    SqliteMoment,
    SqliteNumber,
    SqliteReal,
    SqliteText,
    SqliteWhole,
)
from .unreadable import Unreadable

_Kinds = tuple[type[TypeEngine[Any]], ...]


class MariaDbJson(mysql.JSON):
    """JSON on MariaDB: a text column with a check, in which its catalog does not show what it is."""


class MariaDbYear(mysql.SMALLINT):
    """MariaDB's and MySQL's YEAR, as the number that it is handed out as."""


class CheckedJson(JsonValue):
    """JSON that MariaDB keeps as text, and hands out as text."""

    cache_ok = True
    can_be_unreadable = True

    def whole(self, value: Any) -> Any:
        """Return the value, which is no JSON text already."""
        require_no_json_text(value)
        return super().whole(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return what decodes a text."""
        return _decoded


def _decoded(value: Any) -> Any:
    try:
        return value if value is None else json.loads(value)
    except (TypeError, ValueError):
        return Unreadable("holds text that is no JSON", value)


class SingleFloat(Kept):
    """MariaDB's and MySQL's FLOAT: the server would tell six of its digits."""

    cache_ok = True

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the column with all its digits."""
        return type_coerce(cast(column, mysql.DOUBLE(asdecimal=False)), self)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return what finds the shortest number that single precision takes for the same."""
        return shortest_single


class AsHandedOut(Kept):
    """A value as the driver hands it out: an ENUM may have got another member since the table was looked up."""

    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        """Return None: there is nothing to convert."""
        return


class ExactMember(AsHandedOut):
    """MariaDB's and MySQL's ENUM, which takes ``2`` for its second member, and what its collation has as equal."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value, unless it would be stored as a member that is written otherwise."""
        members: list[str] = getattr(self.stored, "enums", [])
        if isinstance(value, str) and value not in members and _is_taken_for_one(value, members):
            known = ", ".join(map(repr, members))
            raise ValueError(f"the text would be stored as another member: it must be one of {known}")
        return value


def _is_taken_for_one(text: str, members: Iterable[str]) -> bool:
    """Return whether it would be stored as a member. Any other may be a new one, or the server refuses it."""
    return text.strip().isdigit() or _alike(text) in map(_alike, members)


def _alike(text: str) -> str:
    """Return what texts have in common that a collation may take for equal."""
    bare = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in bare if not unicodedata.combining(letter)).casefold().rstrip()


_ON_SERVERS: tuple[tuple[_Kinds, type[Kept] | None], ...] = (
    ((Integer,), WholeNumber),
    ((Double,), DoubleNumber),
    ((Float,), None),
    ((Numeric,), DecimalNumber),
)
_KEPT: dict[str, tuple[tuple[_Kinds, type[Kept] | None], ...]] = {
    "postgresql": (
        ((Enum,), AsHandedOut),
        ((postgresql.MONEY,), LocalMoney),
        ((postgresql.BIT,), AsHandedOut),
        ((Date,), Day),
        *_ON_SERVERS,
        ((DateTime, Time), ZonedMoment),
        ((JSON,), JsonValue),
        ((String,), TextOnly),
    ),
    "mysql": (
        ((Enum,), ExactMember),
        ((Date,), MariaDbDay),
        ((mysql.FLOAT,), SingleFloat),
        ((MariaDbYear,), YearNumber),
        ((mysql.BIT,), Bits),
        *_ON_SERVERS,
        ((DateTime,), MariaDbMoment),
        ((mysql.TIME,), ClockTimeOrLength),
        ((MariaDbJson,), CheckedJson),
        ((JSON,), JsonValue),
        ((mysql.SET,), None),
        ((String,), PlainText),
        ((BINARY,), FullOctets),
        ((_Binary,), Octets),
    ),
    "sqlite": (
        ((DeclaredType,), SqliteDeclared),
        ((DateTime,), SqliteMoment),
        ((Date,), SqliteDay),
        ((Time,), SqliteClockTime),
        ((Boolean,), SqliteFlag),
        ((Float,), SqliteReal),
        ((Numeric,), SqliteNumber),
        ((sqlite.JSONB,), None),
        ((JSON,), SqliteJson),
        ((String,), SqliteText),
        ((Integer,), SqliteWhole),
        ((NullType,), SqliteAnything),
    ),
}
_KEPT["mariadb"] = _KEPT["mysql"]
_WITHOUT_ZONE: tuple[tuple[_Kinds, type[Kept]], ...] = (((DateTime,), UtcMoment), ((Time,), ClockTime))


def faithful(column_type: TypeEngine[Any], dialect_name: str, column: str = "") -> TypeEngine[Any]:
    """Return the type under which a column's values keep their meaning; mostly they are looked at when stored."""
    kinds = _KEPT.get(dialect_name, ())
    if isinstance(column_type, postgresql.ARRAY):
        array = column_type.copy()
        array.item_type = faithful(column_type.item_type, dialect_name, column)
        return KeptArray(array, column)
    if dialect_name == "postgresql" and not getattr(column_type, "timezone", False):
        kinds = (*_WITHOUT_ZONE, *kinds)
    kept = next((kept for wanted, kept in kinds if isinstance(column_type, wanted)), None)
    return column_type if kept is None else kept(column_type, column)


def as_read(column: ColumnElement[Any], dialect_name: str) -> ColumnElement[Any]:
    """Return a column so that its values are read as they are stored."""
    kept = faithful(column.type, dialect_name)
    return column if kept is column.type else type_coerce(column, kept)
