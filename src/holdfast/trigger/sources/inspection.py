"""What the database says about the table and columns a trigger polls.

Everything a trigger's soundness rests on (does the database fill the cursor itself? is it indexed? may it be NULL?) is
looked up here once, so that the decisions in ``horizons/choose.py`` stay pure.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import MetaData, Table, inspect, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.exc import DBAPIError, NoSuchTableError, SAWarning
from sqlalchemy.types import (
    BigInteger,
    Date,
    DateTime,
    Integer,
    NullType,
    SmallInteger,
    TypeEngine,
    UserDefinedType,
)

from ...core.config import safe_url
from ...core.errors import DbConnectionError, SourceConfigurationError

_SERVER_TIME = re.compile(
    r"current_timestamp|current_date|now\b|localtimestamp|clock_timestamp|statement_timestamp|transaction_timestamp"
    r"|strftime|datetime\(|unixepoch|julianday|sysdate|getdate|getutcdate|sysdatetime|sysutcdatetime|utc_timestamp",
    re.IGNORECASE,
)

# Names the type of columns SQLAlchemy has no type for. Expected rows: one per column asked for.
_POSTGRES_TYPE_NAMES = text(
    "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
    "WHERE attrelid = to_regclass(:relation) AND attnum > 0 AND NOT attisdropped"
)


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
        from sqlalchemy import cast

        return cast(bindvalue, self)


@dataclass(frozen=True, slots=True)
class CursorFacts:
    """What is known of the cursor column."""

    name: str
    type: TypeEngine[Any]
    type_name: str
    nullable: bool
    default: str | None
    generated_id: bool
    fills_itself_on_update: bool = False

    @property
    def is_integer(self) -> bool:
        """Return whether the column holds whole numbers."""
        return isinstance(self.type, (Integer, BigInteger, SmallInteger))

    @property
    def is_time(self) -> bool:
        """Return whether the column holds points in time (a SQLite text column with a time default counts)."""
        return isinstance(self.type, (DateTime, Date)) or self.has_server_time_default

    @property
    def has_server_time_default(self) -> bool:
        """Return whether the database itself writes the time into the column."""
        return self.default is not None and _SERVER_TIME.search(self.default) is not None


def reflect(engine: Engine, table: str, schema: str | None) -> Table:
    """Return the table as the database has it.

    Raises:
        SourceConfigurationError: there is no such table; the message lists near names.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)  # types it does not know are filled in below
            reflected = Table(table, MetaData(), schema=schema, autoload_with=engine, resolve_fks=False)
    except NoSuchTableError as error:
        raise SourceConfigurationError(_missing_table_message(engine, table, schema)) from error
    if engine.dialect.name == "postgresql":
        _name_unknown_types(engine, reflected)
    return reflected


def _missing_table_message(engine: Engine, table: str, schema: str | None) -> str:
    found = inspect(engine)
    near = sorted({*found.get_table_names(schema), *found.get_view_names(schema)})[:8]
    shown = ", ".join(near) if near else "none"
    return f"Table '{_qualified(table, schema)}' not found in the database. Tables there: {shown}."


def _name_unknown_types(engine: Engine, table: Table) -> None:
    unknown = [column for column in table.columns if isinstance(column.type, NullType)]
    if not unknown:
        return
    relation = engine.dialect.identifier_preparer.format_table(table)
    with engine.connect() as connection:
        names = {row[0]: row[1] for row in connection.execute(_POSTGRES_TYPE_NAMES, {"relation": relation})}
    for column in unknown:
        column.type = NamedType(names[column.name])


def require_columns(table: Table, names: Sequence[str]) -> None:
    """Check that the table has the columns.

    Raises:
        SourceConfigurationError: it lacks one.
    """
    missing = [name for name in names if name not in table.c]
    if missing:
        raise SourceConfigurationError(
            f"Columns not found in table '{_qualified(table.name, table.schema)}': {', '.join(missing)}. It has: "
            f"{', '.join(table.c.keys())}."
        )


def cursor_facts(engine: Engine, table: Table, cursor: str) -> CursorFacts:
    """Return what the database says about the cursor column."""
    found = inspect(engine)
    described = next(column for column in found.get_columns(table.name, table.schema) if column["name"] == cursor)
    default = described.get("default")
    reflected = table.c[cursor]
    return CursorFacts(
        name=cursor,
        type=reflected.type,
        type_name=reflected.type.compile(engine.dialect).lower(),
        nullable=bool(described.get("nullable", True)) and not reflected.primary_key,
        default=None if default is None else str(default),
        generated_id=_is_generated_id(engine, found, table, cursor, dict(described)),
        fills_itself_on_update="on update" in str(default).lower(),
    )


def _is_generated_id(engine: Engine, found: Inspector, table: Table, cursor: str, described: dict[str, Any]) -> bool:
    """Return whether the database hands out ever-growing ids in this column."""
    if engine.dialect.name == "sqlite":
        return _is_sqlite_autoincrement(engine, found, table, cursor)
    if engine.dialect.name == "postgresql":
        return bool(described.get("identity")) or "nextval(" in str(described.get("default"))
    return described.get("autoincrement") is True


def _is_sqlite_autoincrement(engine: Engine, found: Inspector, table: Table, cursor: str) -> bool:
    """Without AUTOINCREMENT SQLite hands a deleted highest id out again, and the new row would be skipped."""
    key = found.get_pk_constraint(table.name, table.schema).get("constrained_columns") or []
    with engine.connect() as connection:
        sql = connection.execute(
            text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name"), {"name": table.name}
        ).scalar()
    return key == [cursor] and "autoincrement" in str(sql).lower()


def missing_index(engine: Engine, table: Table, cursor: str, keys: Sequence[str]) -> str | None:
    """Return the CREATE INDEX that the poll needs, or None when an index already starts with the cursor."""
    found = inspect(engine)
    primary = found.get_pk_constraint(table.name, table.schema).get("constrained_columns") or []
    leading = [primary[:1]]
    leading += [
        [name for name in index["column_names"][:1] if name] for index in found.get_indexes(table.name, table.schema)
    ]
    leading += [list(unique["column_names"][:1]) for unique in found.get_unique_constraints(table.name, table.schema)]
    if [cursor] in leading:
        return None
    quote = engine.dialect.identifier_preparer
    columns = ", ".join(quote.quote(name) for name in dict.fromkeys((cursor, *keys)))
    name = quote.quote(f"idx_{table.name}_{cursor}"[:60])
    return f"CREATE INDEX {name} ON {quote.format_table(table)} ({columns})"


def primary_key(engine: Engine, table: str, schema: str | None) -> list[str]:
    """Return the primary key's columns.

    Raises:
        SourceConfigurationError: there is no such table, or it has no primary key.
        DbConnectionError: the database does not answer.
    """
    try:
        found = inspect(engine)
    except DBAPIError as error:
        reason = str(error.orig).strip().split("\n", 1)[0].rstrip(".")
        raise DbConnectionError(
            f"The database {safe_url(engine.url)} does not answer: {reason}. Check that it runs, the host and port, "
            "and the credentials."
        ) from error
    if not found.has_table(table, schema):
        raise SourceConfigurationError(_missing_table_message(engine, table, schema))
    columns = list(found.get_pk_constraint(table, schema).get("constrained_columns") or [])
    if not columns:
        raise SourceConfigurationError(
            f"Table '{_qualified(table, schema)}' has no primary key, so rows with an equal cursor cannot be told "
            "apart. Pass key=[…] with columns that are unique together."
        )
    return columns


def column_names_of(connection: Connection, query: str, parameters: dict[str, object]) -> list[str]:
    """Return the result columns of the user's own SELECT, without reading a row."""
    probe = text(f"SELECT * FROM ({query}\n) AS source WHERE 1 = 0")
    return list(connection.execute(probe, parameters).keys())


def _qualified(table: str, schema: str | None) -> str:
    return f"{schema}.{table}" if schema else table
