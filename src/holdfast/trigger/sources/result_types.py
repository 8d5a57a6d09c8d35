"""The types of a query's columns, as far as its cursor and key need to be compared in another way than they look.

A table's columns are looked up in the catalog. Of a query only the driver tells, in what it says of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.postgresql import INTERVAL, REAL
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeEngine

from .statement import OrderedByNumber

ColumnTypes = dict[str, TypeEngine[Any] | None]

# Type numbers of PostgreSQL's catalog.
_POSTGRES: dict[int, TypeEngine[Any]] = {700: REAL(), 1186: INTERVAL()}

# Type numbers and flags of the protocol of MariaDB and MySQL: ENUM and SET are described as text, with a flag.
_MYSQL: dict[int, TypeEngine[Any]] = {4: mysql.FLOAT(), 5: mysql.DOUBLE(asdecimal=False), 16: OrderedByNumber()}
_ENUM_OR_SET = 0x100 | 0x800


def result_types(connection: Connection, query: str, parameters: dict[str, object]) -> ColumnTypes:
    """Return the result columns of the user's own SELECT, in order, without reading a row.

    The type is None where values are compared just as they come.
    """
    found = connection.execute(text(f"SELECT * FROM ({query}\n) AS source WHERE 1 = 0"), parameters)
    numbers = [described[1] for described in found.cursor.description]
    flags = _flags(found.cursor)
    types = [_type(connection.dialect.name, number, flag) for number, flag in zip(numbers, flags, strict=True)]
    return dict(zip(found.keys(), types, strict=True))


def _flags(cursor: Any) -> Sequence[int]:
    """Return the protocol's flags of the columns: PyMySQL keeps them with the result, MySQLdb with the cursor."""
    fields = getattr(getattr(cursor, "_result", None), "fields", None)
    if isinstance(fields, list):
        return [field.flags for field in fields]
    return getattr(cursor, "description_flags", None) or [0] * len(cursor.description)


def _type(dialect_name: str, number: Any, flags: int) -> TypeEngine[Any] | None:
    if dialect_name == "postgresql":
        return _POSTGRES.get(number)
    if dialect_name in ("mysql", "mariadb"):
        return OrderedByNumber() if flags & _ENUM_OR_SET else _MYSQL.get(number)
    return None
