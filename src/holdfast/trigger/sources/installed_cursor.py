"""Whether the trigger that Holdfast writes for a cursor column is in the database, unchanged, and has the last word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from sqlalchemy import Table, text
from sqlalchemy.engine import Connection

from .cursor_trigger import DIALECTS, CursorTrigger, digest, one_line

# The triggers of a table in the order in which they run; whether they do for ordinary sessions. Expected rows: any.
_POSTGRES = text(
    "SELECT tgname::text, "
    "concat(tgtype, ' ', tgattr, ' ', lanname, ' ', array_to_string(proconfig, ';'), ' ', prosrc), "
    "tgtype & 3 = 3 AND tgtype & 20 > 0, tgqual IS NULL, tgenabled IN ('O', 'A') "
    "FROM pg_trigger JOIN pg_proc p ON p.oid = tgfoid JOIN pg_language l ON l.oid = prolang "
    "WHERE tgrelid = to_regclass(:relation) AND NOT tgisinternal ORDER BY tgname"
)

# The triggers of the leaves of a partitioned table, which are what rows are written to, in the order in which they run;
# the clones of the parent's count as internal up to PostgreSQL 14. Expected rows: one at least for each leaf.
_ON_LEAVES = text(
    "SELECT tree.relid::text, tgname::text, "
    "concat(tgtype, ' ', tgattr, ' ', lanname, ' ', array_to_string(proconfig, ';'), ' ', prosrc), "
    "tgtype & 3 = 3 AND tgtype & 20 > 0, tgqual IS NULL, tgenabled IN ('O', 'A') "
    "FROM pg_partition_tree(to_regclass(:relation)) AS tree "
    "LEFT JOIN (pg_trigger JOIN pg_proc p ON p.oid = tgfoid JOIN pg_language l ON l.oid = prolang) "
    "ON tgrelid = tree.relid AND (NOT tgisinternal OR tgparentid <> 0) "
    "WHERE tree.isleaf AND tree.relid <> to_regclass(:relation) ORDER BY 1, tgname"
)

# Rows of children that inherit from a plain table are read with it, but written without its triggers. Expected rows: 1.
_INHERITED = text(
    "SELECT EXISTS (SELECT FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent "
    "WHERE inhparent = to_regclass(:relation) AND relkind = 'r')"
)

# The triggers of a table, in the order in which they run. Expected rows: any.
_MYSQL = text(
    "SELECT trigger_name, concat(action_timing, ' ', event_manipulation, ' ', action_statement), "
    "CASE action_timing WHEN 'BEFORE' THEN event_manipulation END "
    "FROM information_schema.triggers WHERE event_object_schema = coalesce(:schema, database()) "
    "AND event_object_table = :table ORDER BY event_manipulation, action_timing, action_order"
)

# The triggers of a table. Expected rows: any.
_SQLITE = "SELECT name, sql FROM {master} WHERE type = 'trigger' AND tbl_name = :table COLLATE NOCASE ORDER BY name"
_SQLITE_TABLE = "SELECT sql FROM {master} WHERE type = 'table' AND name = :table COLLATE NOCASE"
_WITHOUT_ROWID = re.compile(r"\)[^)]*\bwithout\s+rowid\b[^)]*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Installed:
    """What was found. ``fault`` says why the trigger proves nothing although something of its name is there.

    ``is_intact`` means that it is as Holdfast wrote it, so that writing it again would mend nothing.
    """

    name: str
    digest: str
    expression: str
    is_intact: bool
    fault: str | None = None


def find_installed(connection: Connection, table: Table, column: str, candidates: Sequence[str]) -> Installed | None:
    """Return the trigger over a column that would write one of ``candidates``; None when there is none of its name."""
    if connection.dialect.name not in DIALECTS or not candidates:
        return None
    found = _triggers(connection, table)
    known = [CursorTrigger(connection.dialect, table, column, each, row_keys(connection, table)) for each in candidates]
    names = known[0].names
    present = {name: definition for name, definition, _ in found if name in names}
    if not present:
        return None
    title = f"trigger '{names[0]}'"
    for each in known:
        if present == each.definitions():
            fault = _outdone(connection, table, found, each)
            sentence = fault and f"{title} is there, but {fault}"
            return Installed(names[0], digest(present), each.expression, is_intact=True, fault=sentence)
    sentence = f"{title} is there, but not as Holdfast wrote it"
    return Installed(names[0], digest(present), candidates[0], is_intact=False, fault=sentence)


def row_keys(connection: Connection, table: Table) -> tuple[str, ...]:
    """Return what finds a row of a SQLite table where ``rowid`` does not: it has none, or a column of that name.

    Empty elsewhere.
    """
    if connection.dialect.name != "sqlite":
        return ()
    query = text(_SQLITE_TABLE.format(master=_master(connection, table)))
    sql = str(connection.execute(query, {"table": table.name}).scalar())
    if not _WITHOUT_ROWID.search(sql):
        columns = {column.name.lower() for column in table.columns}
        free = [name for name in _ROWIDS if name not in columns]
        if free:
            return () if free[0] == _ROWIDS[0] else (free[0],)
    return tuple(table.primary_key.columns.keys())


_ROWIDS = ("rowid", "_rowid_", "oid")
"""SQLite's names of the number that finds a row; a column of the same name hides one."""
Triggers = Sequence[tuple[str, str, str | None]]  # name, definition, when it may change the row that is written


def _triggers(connection: Connection, table: Table) -> Triggers:
    match connection.dialect.name:
        case "postgresql":
            relation = connection.dialect.identifier_preparer.format_table(table)
            rows = connection.execute(_POSTGRES, {"relation": relation}).all()
            return [_on_postgres(*row) for row in rows]
        case "sqlite":
            query = text(_SQLITE.format(master=_master(connection, table)))
            return [(row[0], one_line(row[1]), None) for row in connection.execute(query, {"table": table.name})]
    rows = connection.execute(_MYSQL, {"schema": table.schema, "table": table.name}).all()
    return [(row[0], row[1], row[2]) for row in rows]


def _on_postgres(
    name: str, definition: str, may_change: bool, is_unconditional: bool, is_enabled: bool
) -> tuple[str, str, str | None]:
    """Return a trigger of PostgreSQL; one that has a condition or is disabled is not what Holdfast wrote."""
    whole = definition if is_unconditional and is_enabled else f"{definition} (not always)"
    return name, whole, "BEFORE" if may_change and is_enabled else None


def _outdone(connection: Connection, table: Table, found: Triggers, ours: CursorTrigger) -> str | None:
    """Return who may change the column after our trigger has written it, or writes rows without it."""
    if connection.dialect.name == "sqlite":  # they have no order; but to change the column they have to name it
        named = ours.column.lower()
        others = [name for name, sql, _ in found if name not in ours.names and named in sql.lower()]
    else:
        others = _later(found, ours.names)
    if others:
        return f"trigger '{others[0]}' may change the column after it"
    return _past_it(connection, table, ours) if connection.dialect.name == "postgresql" else None


def _past_it(connection: Connection, table: Table, ours: CursorTrigger) -> str | None:
    """Return which rows of a table of PostgreSQL are written past our trigger on it."""
    relation = {"relation": connection.dialect.identifier_preparer.format_table(table)}
    if connection.execute(_INHERITED, relation).scalar():
        return "tables inherit from this one, and are written without its triggers"
    for leaf, rows in groupby(connection.execute(_ON_LEAVES, relation), key=itemgetter(0)):
        fault = _on_leaf(leaf, [_on_postgres(*row[1:]) for row in rows if row[1] is not None], ours)
        if fault is not None:
            return fault
    return None


def _on_leaf(name: str, found: Triggers, ours: CursorTrigger) -> str | None:
    """Return why rows of a partition may have another value than our trigger on the whole table writes."""
    if {each: definition for each, definition, _ in found if each in ours.names} != ours.definitions():
        return f"it is disabled or changed on partition '{name}': ALTER TABLE {name} ENABLE TRIGGER {ours.names[0]}"
    later = _later(found, ours.names)
    return f"trigger '{later[0]}' on partition '{name}' may change the column after it" if later else None


def _later(found: Triggers, names: Sequence[str]) -> list[str]:
    """Return the triggers that run after ours and can change the row; they come in the order in which they run."""
    phases = {phase: at for at, (name, _, phase) in enumerate(found) if name in names}
    return [name for at, (name, _, phase) in enumerate(found) if phase is not None and at > phases.get(phase, at)]


def _master(connection: Connection, table: Table) -> str:
    schema = "main" if table.schema is None else table.schema
    return f"{connection.dialect.identifier_preparer.quote_identifier(schema)}.sqlite_master"
