"""Tables as the database has them, with types that SQLAlchemy does not know."""

from __future__ import annotations

import re
import warnings
from typing import Any, ClassVar

from sqlalchemy import INTEGER, NUMERIC, MetaData, Table, cast, inspect, text
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine import Engine
from sqlalchemy.exc import NoSuchTableError, SAWarning
from sqlalchemy.types import NullType, TypeEngine, UserDefinedType

from ..core.errors import DbError
from .deadlines import limited
from .faithful_types import MariaDbJson, MariaDbYear
from .sqlite_types import DeclaredType

# Names the type of columns SQLAlchemy has no type for. Expected rows: one per column.
_POSTGRES_TYPE_NAMES = text(
    "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
    "WHERE attrelid = to_regclass(:relation) AND attnum > 0 AND NOT attisdropped"
)


# The types as they were declared. Expected rows: one per column.
_SQLITE_TYPE_NAMES = text("SELECT name, type FROM pragma_table_xinfo(:table, :schema)")
# Names under which SQLite's columns are what SQLAlchemy takes a type for that it does not know: numbers.
_SQLITE_NUMBERS = re.compile(
    r"((UNSIGNED |BIG |TINY|SMALL|MEDIUM|BIG)*INT(EGER)?\d*|(SMALL)?MONEY|DEC(IMAL)?|NUMERIC|NUMBER|CURRENCY)\b",
    re.IGNORECASE,
)

# The columns that a check of their own keeps to JSON, which is what MariaDB makes of the type. Expected rows: one each.
_MARIADB_JSON = text(
    "SELECT constraint_name FROM information_schema.check_constraints "
    "WHERE constraint_schema = coalesce(:schema, database()) AND table_name = :table AND level = 'Column' "
    "AND check_clause LIKE 'json\\_valid(%'"
)


_MOST_SHOWN = 8
_WHO_LOOKS_UP = r"holdfast\.(database\.reflection|trigger\.sources\.inspection)\Z"
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
    except NoSuchTableError:  # it says nothing but the name, which would be taken for a value of a cause
        raise error_class(missing_table_message(engine, table, schema)) from None
    _mend_types(engine, reflected)
    _keep_floats_exact(reflected)
    return reflected


def _mend_types(engine: Engine, table: Table) -> None:
    """Give the columns their types where SQLAlchemy does not know them or takes them for others."""
    match engine.dialect.name:
        case "postgresql":
            _name_unknown_types(engine, table)
            _take_domains_for_their_types(table)
        case "sqlite":
            _name_declared_types(engine, table)
        case "mysql" | "mariadb":
            _take_for_numbers(table)
            if getattr(engine.dialect, "is_mariadb", False):
                _find_json(engine, table)


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
        if isinstance(column.type, (mysql.DOUBLE, mysql.REAL)):
            column.type.asdecimal = False


def missing_table_message(engine: Engine, table: str, schema: str | None) -> str:
    """Return the sentence for a table that is not there."""
    found = inspect(engine)
    there = {*found.get_table_names(schema), *found.get_view_names(schema)}
    own = sorted(name for name in there if not name.startswith("holdfast_"))
    shown = ", ".join(own[:_MOST_SHOWN]) + (f" and {len(own) - _MOST_SHOWN} more" if own[_MOST_SHOWN:] else "")
    hint = ""
    if schema is None and "." in table:
        prefix, _, name = table.rpartition(".")
        hint = f" For a table in a schema, write table='{name}', schema='{prefix}'."
    return f"Table '{qualified(table, schema)}' not found in the database. Tables there: {shown or 'none'}.{hint}"


def qualified(table: str, schema: str | None) -> str:
    """Return a table's name for people."""
    return f"{schema}.{table}" if schema else table


def _name_unknown_types(engine: Engine, table: Table) -> None:
    unknown = [column for column in table.columns if isinstance(column.type, NullType)]
    if not unknown:
        return
    relation = engine.dialect.identifier_preparer.format_table(table)
    with limited(engine.connect()) as connection:
        names = {row[0]: row[1] for row in connection.execute(_POSTGRES_TYPE_NAMES, {"relation": relation})}
    for column in unknown:
        column.type = NamedType(names[column.name])


def _take_domains_for_their_types(table: Table) -> None:
    """Let a domain's values be those of its type; the database checks the domain's own rules."""
    for column in table.columns:
        column.type = _behind_domains(column.type)


def _behind_domains(found: TypeEngine[Any]) -> TypeEngine[Any]:
    while isinstance(found, postgresql.DOMAIN):
        found = found.data_type
    if isinstance(found, postgresql.ARRAY):
        found.item_type = _behind_domains(found.item_type)
    return found


def _name_declared_types(engine: Engine, table: Table) -> None:
    """Keep the types that SQLite does not know, such as STRING, UUID or TIMESTAMPTZ, from being taken for numbers."""
    guessed = [column for column in table.columns if isinstance(column.type, (NUMERIC, INTEGER))]
    if not guessed:
        return
    with limited(engine.connect()) as connection:
        rows = connection.execute(_SQLITE_TYPE_NAMES, {"table": table.name, "schema": table.schema})
        declared = {row[0]: row[1] for row in rows}
    for column in guessed:
        name = declared.get(column.name) or ""
        if name and not _SQLITE_NUMBERS.match(name):
            column.type = DeclaredType(name)


class _Bits(mysql.BIT):
    """Bits that can be compared, as SQLAlchemy's cannot."""

    operator_classes: ClassVar[Any] = getattr(INTEGER, "operator_classes", None)  # from SQLAlchemy 2.1 on


def _take_for_numbers(table: Table) -> None:
    """Take YEAR and BIT for the numbers that they are handed out as."""
    for column in table.columns:
        if isinstance(column.type, mysql.YEAR):
            column.type = MariaDbYear()
        elif isinstance(column.type, mysql.BIT):
            column.type = _Bits(column.type.length)


def _find_json(engine: Engine, table: Table) -> None:
    texts = {column.name: column for column in table.columns if isinstance(column.type, mysql.LONGTEXT)}
    if not texts:
        return
    with limited(engine.connect()) as connection:
        names = connection.execute(_MARIADB_JSON, {"table": table.name, "schema": table.schema}).scalars().all()
    for name in names:
        if name in texts:
            texts[name].type = MariaDbJson()
