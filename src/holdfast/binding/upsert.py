"""Insert-or-update, in each dialect's own words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Table, bindparam
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.sql.expression import Executable

from ..core.errors import ConfigurationError

UPSERT_DIALECTS = ("postgresql", "sqlite", "mysql", "mariadb", "mssql")


def upsert_statement(
    table: Table, columns: Sequence[str], conflict_columns: Sequence[str], dialect: Dialect
) -> Executable:
    """Return a statement that inserts a row, or updates the one it conflicts with.

    It takes the row's values as parameters named like the columns.

    Raises:
        ConfigurationError: the dialect has no upsert that we know.
    """
    changed = [name for name in columns if name not in conflict_columns]
    match dialect.name:
        case "postgresql":
            return _on_conflict(postgresql.insert(table), columns, conflict_columns, changed)
        case "sqlite":
            return _on_conflict(sqlite.insert(table), columns, conflict_columns, changed)
        case "mysql" | "mariadb":
            return _on_duplicate_key(table, columns, changed)
        case "mssql":
            return Merge(table, columns, conflict_columns, changed)
    raise ConfigurationError(
        f"Upsert is not supported for dialect '{dialect.name}'. Supported: {', '.join(UPSERT_DIALECTS)}. Use insert() "
        "and update() in a transaction()."
    )


def _on_conflict(
    statement: Any, columns: Sequence[str], conflict_columns: Sequence[str], changed: Sequence[str]
) -> Executable:
    statement = statement.values({name: bindparam(name) for name in columns})
    if changed:
        updates = {name: statement.excluded[name] for name in changed}
        updating: Executable = statement.on_conflict_do_update(index_elements=list(conflict_columns), set_=updates)
        return updating
    ignoring: Executable = statement.on_conflict_do_nothing(index_elements=list(conflict_columns))
    return ignoring


def _on_duplicate_key(table: Table, columns: Sequence[str], changed: Sequence[str]) -> Executable:
    """MySQL updates on a conflict with any unique key; with nothing to change, a column is set to itself."""
    statement = mysql.insert(table).values({name: bindparam(name) for name in columns})
    if changed:
        return statement.on_duplicate_key_update({name: statement.inserted[name] for name in changed})
    return statement.on_duplicate_key_update({columns[0]: table.c[columns[0]]})


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
    quote = compiler.preparer.quote
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
