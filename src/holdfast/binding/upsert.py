"""Insert-or-update, in each dialect's own words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import BigInteger, Table, and_, bindparam, column, func, literal_column
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.sql.expression import Executable

from ..core.errors import ConfigurationError, WriteError
from ..database.errors import code_of
from ..database.reflection import qualified
from .tables import unique_keys

_LARGEST = "18446744073709551615"
_OUT_OF_RANGE = 1690
UPSERT_DIALECTS = ("postgresql", "sqlite", "mysql", "mariadb", "mssql")


def check_upsert_dialect(name: str) -> None:
    """Check that there is an upsert for the dialect.

    Raises:
        ConfigurationError: we know none; the message says what to use instead.
    """
    if name not in UPSERT_DIALECTS:
        raise ConfigurationError(
            f"Upsert is not supported for dialect '{name}'. Supported: {', '.join(UPSERT_DIALECTS)}. Use insert() and "
            "update() in a transaction()."
        )


def check_conflict_columns(given: object) -> None:
    """Check that it is a list of names: a single string would pass for a list of letters.

    Raises:
        ConfigurationError: it is something else.
    """
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise ConfigurationError(f"conflict_columns must be a list of column names, as in ['id'], not {given!r}.")


def upsert_statement(
    table: Table, columns: Sequence[str], conflict_columns: Sequence[str], dialect: Dialect
) -> Executable:
    """Return a statement that inserts a row, or updates the one it conflicts with.

    It takes the row's values as parameters named like the columns.

    Raises:
        ConfigurationError: the dialect has no upsert that we know, or its upsert needs what is not given.
    """
    check_upsert_dialect(dialect.name)
    changed = [name for name in columns if name not in conflict_columns]
    match dialect.name:
        case "postgresql":
            return _on_conflict(table, postgresql.insert(table).inline(), columns, conflict_columns, changed)
        case "sqlite":
            return _on_conflict(table, sqlite.insert(table).inline(), columns, conflict_columns, changed)
        case "mssql":
            return _merge(table, columns, conflict_columns, changed)
        case _:
            return _on_duplicate_key(table, columns, conflict_columns, changed)


def _on_conflict(
    table: Table, statement: Any, columns: Sequence[str], conflict_columns: Sequence[str], changed: Sequence[str]
) -> Executable:
    if table.name.lower() == "excluded":  # SQLite would take the table for the new row, and change nothing
        raise ConfigurationError(
            f"There is no upsert into a table called '{table.name}': ON CONFLICT uses that word for the new row. Use "
            "insert() and update() in a transaction()."
        )
    statement = statement.values({name: bindparam(name) for name in columns})
    going_by = [table.c[name] for name in conflict_columns]
    if changed:
        updates = {name: statement.excluded[name] for name in changed}
        updating: Executable = statement.on_conflict_do_update(index_elements=going_by, set_=updates)
        return updating
    ignoring: Executable = statement.on_conflict_do_nothing(index_elements=going_by)
    return ignoring


def _on_duplicate_key(
    table: Table, columns: Sequence[str], conflict_columns: Sequence[str], changed: Sequence[str]
) -> Executable:
    """MySQL updates whichever row any unique key finds, so a conflict column is set to itself, or the statement fails.

    Where no unique key has these columns it would not complain, but insert a row more each time.
    """
    if frozenset(conflict_columns) not in unique_keys(table):
        raise ConfigurationError(
            f"No unique key of '{qualified(table.name, table.schema)}' has exactly the conflict_columns "
            f"({', '.join(conflict_columns)}), so an upsert could not find the row to update. Create a unique index on "
            "them; one of their beginnings alone would take others for them."
        )
    statement = mysql.insert(table).inline().values({name: bindparam(name) for name in columns})
    guarded: Any = (conflict_columns[0], _itself_unless_another(table, statement, conflict_columns))
    return statement.on_duplicate_key_update([guarded, *((name, _inserted(statement, name)) for name in changed)])


def _itself_unless_another(table: Table, statement: mysql.Insert, conflict_columns: Sequence[str]) -> Any:
    """Return the first conflict column's own value, by a condition that overflows for a row with other ones.

    It is a way to fail in an expression that both servers have, whatever their mode, and no type is converted.
    """
    is_same = and_(*(table.c[name].is_not_distinct_from(_inserted(statement, name)) for name in conflict_columns))
    zero, one, largest = (literal_column(number, BigInteger) for number in ("0", "1", _LARGEST))
    fits = largest + func.if_(is_same, zero, one) > zero
    own = table.c[conflict_columns[0]]
    return func.if_(fits, own, own)


@contextmanager
def naming_another_row(table: str, conflict_columns: Sequence[str]) -> Iterator[None]:
    """Say it when an upsert has found a row that has other ``conflict_columns``.

    Raises:
        WriteError: it has; nothing was written.
    """
    try:
        yield
    except DBAPIError as error:
        if code_of(error.orig) != _OUT_OF_RANGE or _LARGEST not in str(error.orig):
            raise
        raise WriteError(
            f"The upsert into '{table}' failed: a row has the same value in another unique key, or the same beginning, "
            f"as one with other conflict_columns ({', '.join(conflict_columns)}), which would have been overwritten. "
            "Nothing was written."
        ) from error


def _inserted(statement: mysql.Insert, name: str) -> Any:
    """Return the value that was to be inserted. SQLAlchemy's own form doubles a percent sign once too often."""
    return func.values(column(name)) if "%" in name else statement.inserted[name]


def _merge(table: Table, columns: Sequence[str], conflict_columns: Sequence[str], changed: Sequence[str]) -> Executable:
    missing = [name for name in conflict_columns if name not in columns]
    if missing:
        raise ConfigurationError(
            f"The rows of an upsert must hold the conflict_columns, but {', '.join(missing)} is missing."
        )
    return Merge(table, columns, conflict_columns, changed)


class Merge(UpdateBase):
    """SQL Server's MERGE of one row, with the lock that makes it safe against a concurrent insert of the same key."""

    inherit_cache = False

    def __init__(
        self, table: Table, columns: Sequence[str], conflict_columns: Sequence[str], changed: Sequence[str]
    ) -> None:
        self.table = table
        self.columns = tuple(columns)
        self.conflict_columns = tuple(conflict_columns)
        self.changed = tuple(changed)


@compiles(Merge)
def _compile_merge(merge: Merge, compiler: SQLCompiler, **options: Any) -> str:
    def quote(name: str) -> str:
        return compiler.preparer.quote(merge.table.c[name].name)

    binds = ", ".join(
        compiler.process(bindparam(name, type_=merge.table.c[name].type), **options) for name in merge.columns
    )
    names = ", ".join(map(quote, merge.columns))
    matched = " AND ".join(f"kept.{quote(name)} = incoming.{quote(name)}" for name in merge.conflict_columns)
    parts = [
        f"MERGE INTO {compiler.preparer.format_table(merge.table)} WITH (HOLDLOCK) AS kept",
        f"USING (VALUES ({binds})) AS incoming ({names}) ON {matched}",
    ]
    if merge.changed:
        updates = ", ".join(f"{quote(name)} = incoming.{quote(name)}" for name in merge.changed)
        parts.append(f"WHEN MATCHED THEN UPDATE SET {updates}")
    incoming = ", ".join(f"incoming.{quote(name)}" for name in merge.columns)
    parts.append(f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({incoming});")
    return " ".join(parts)
