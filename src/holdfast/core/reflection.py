"""Tables as the database has them, with types that SQLAlchemy does not know."""

from __future__ import annotations

import re
import warnings
from typing import Any

from sqlalchemy import MetaData, Table, cast, inspect, text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Engine
from sqlalchemy.exc import NoSuchTableError, SAWarning
from sqlalchemy.types import NullType, UserDefinedType

from .errors import DbError

# Names the type of columns SQLAlchemy has no type for. Expected rows: one per column.
_POSTGRES_TYPE_NAMES = text(
    "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
    "WHERE attrelid = to_regclass(:relation) AND attnum > 0 AND NOT attisdropped"
)


_WHO_LOOKS_UP = r"holdfast\.(core\.reflection|trigger\.sources\.inspection)\Z"
_OUR_FILTER = ("ignore", None, SAWarning, re.compile(_WHO_LOOKS_UP), 0)


class NamedType(UserDefinedType[Any]):
    """A database type SQLAlchemy does not know, such as xid8 or pg_lsn: values travel as text and are cast."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        """Return the type's name for a CAST."""
        return self.name

    def bind_expression(self, bindvalue: Any) -> Any:
        """Cast a bound value, so that it is compared as this type and not as text."""
        return cast(bindvalue, self)


def reflect_table(engine: Engine, table: str, schema: str | None, error_class: type[DbError]) -> Table:
    """Return the table as the database has it.

    Raises:
        error_class: there is no such table; the message lists the tables there are.
    """
    accept_unknown_types()
    try:
        reflected = Table(table, MetaData(), schema=schema, autoload_with=engine, resolve_fks=False)
        if engine.dialect.name == "sqlite" and not reflected.primary_key.columns:
            name = _as_created(engine, table, schema)
            reflected = Table(name, MetaData(), schema=schema, autoload_with=engine, resolve_fks=False)
    except NoSuchTableError as error:
        raise error_class(missing_table_message(engine, table, schema)) from error
    if engine.dialect.name == "postgresql":
        _name_unknown_types(engine, reflected)
    _keep_floats_exact(reflected)
    return reflected


def accept_unknown_types() -> None:
    """Silence SQLAlchemy's warnings about our own look-ups: types it does not know are filled in here.

    The filter names the modules that look up, and stays. ``warnings.catch_warnings`` would put back the filters of the
    whole process, and with several threads looking tables up at once those of another moment.
    """
    if list(warnings.filters[:1]) != [_OUR_FILTER]:
        warnings.filterwarnings("ignore", category=SAWarning, module=_WHO_LOOKS_UP)


def _as_created(engine: Engine, table: str, schema: str | None) -> str:
    """Return a table's name as SQLite has it: under another case SQLAlchemy finds its columns, but not its key."""
    return next((name for name in inspect(engine).get_table_names(schema) if name.lower() == table.lower()), table)


def _keep_floats_exact(table: Table) -> None:
    """Hand out MySQL's binary numbers as floats: SQLAlchemy would round them to decimals of ten places."""
    for column in table.columns:
        if isinstance(column.type, (mysql.DOUBLE, mysql.REAL)) and column.type.scale is None:
            column.type.asdecimal = False


def missing_table_message(engine: Engine, table: str, schema: str | None) -> str:
    """Return the sentence for a table that is not there."""
    found = inspect(engine)
    near = sorted({*found.get_table_names(schema), *found.get_view_names(schema)})[:8]
    shown = ", ".join(near) if near else "none"
    hint = ""
    if schema is None and "." in table:
        prefix, _, name = table.rpartition(".")
        hint = f" For a table in a schema, write table='{name}', schema='{prefix}'."
    return f"Table '{qualified(table, schema)}' not found in the database. Tables there: {shown}.{hint}"


def qualified(table: str, schema: str | None) -> str:
    """Return a table's name for people."""
    return f"{schema}.{table}" if schema else table


def _name_unknown_types(engine: Engine, table: Table) -> None:
    unknown = [column for column in table.columns if isinstance(column.type, NullType)]
    if not unknown:
        return
    relation = engine.dialect.identifier_preparer.format_table(table)
    with engine.connect() as connection:
        names = {row[0]: row[1] for row in connection.execute(_POSTGRES_TYPE_NAMES, {"relation": relation})}
    for column in unknown:
        column.type = NamedType(names[column.name])
