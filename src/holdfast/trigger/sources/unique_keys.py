"""Which unique keys of a table prove that no two of its rows look the same, as far as the database enforces them.

An index proves nothing if it holds for some rows only (partial), is not complete (a CREATE INDEX CONCURRENTLY that
failed), is about an expression, compares more strictly than its column is sorted, or does not reach the rows of tables
that inherit from this one. Rows with a NULL in such a key may repeat, but they have no place in the order anyway and
are refused for that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import Table, inspect, text
from sqlalchemy.engine import Connection, Engine

from ...database.deadlines import limited

# The unique indexes of a table: whether each is complete, partial, compares by another collation than a column that
# takes different texts for equal, and whether plain tables inherit. Columns: '' for an expression. Expected rows: any.
_POSTGRES = text(
    """
SELECT name.relname::text,
       array(SELECT coalesce(attname::text, '') FROM generate_series(0, indnkeyatts - 1) AS place
             LEFT JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[place] ORDER BY place),
       indisvalid AND indisready AND indislive,
       indpred IS NOT NULL,
       EXISTS (SELECT FROM generate_series(0, indnkeyatts - 1) AS place
               JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[place]
               JOIN pg_collation c ON c.oid = attcollation
               WHERE NOT collisdeterministic AND indcollation[place] <> attcollation),
       EXISTS (SELECT FROM pg_inherits JOIN pg_class parent ON parent.oid = inhparent
               WHERE inhparent = indrelid AND parent.relkind = 'r')
FROM pg_index JOIN pg_class name ON name.oid = indexrelid
WHERE indrelid = to_regclass(:relation) AND indisunique
ORDER BY 1
"""
)

# The columns of a table's unique indexes; NULL for an expression. Expected rows: any.
_MYSQL = text(
    "SELECT index_name, coalesce(column_name, '') FROM information_schema.statistics "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name = :table AND non_unique = 0 "
    "ORDER BY index_name, seq_in_index"
)

# The columns of a table's unique indexes, NULL for an expression; whether each is partial, and how it was written
# (NULL where the table's own definition makes it). Expected rows: any.
_SQLITE = (
    "SELECT l.name, coalesce(x.name, ''), l.partial, x.coll, m.sql FROM pragma_index_list(:table, :schema) AS l "
    "JOIN pragma_index_xinfo(l.name, :schema) AS x LEFT JOIN {master} AS m ON m.type = 'index' AND m.name = l.name "
    'WHERE l."unique" AND x.key ORDER BY l.seq, x.seqno'
)
_COLLATE = re.compile(r"\bcollate\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """Columns that are unique together. ``fault`` says why that proves nothing; a column '' is an expression."""

    name: str
    columns: tuple[str, ...]
    fault: str | None = None


def unproved(engine: Engine, table: Table, columns: Sequence[str]) -> str | None:
    """Return None when no two rows of the table can agree in all ``columns``, else what is wrong with its unique keys.

    That is an empty text where there is none within the columns: of a view the database does not know.
    """
    within = [key for key in unique_keys(engine, table) if key.columns and set(key.columns) <= set(columns)]
    if any(key.fault is None for key in within):
        return None
    return "; ".join(f"unique index '{key.name}' {key.fault}" for key in within)


def unique_keys(engine: Engine, table: Table) -> list[UniqueKey]:
    """Return the table's unique keys, the primary key among them."""
    with limited(engine.connect()) as connection:
        match engine.dialect.name:
            case "postgresql":
                return _on_postgres(connection, table)
            case "mysql" | "mariadb":
                return _on_mysql(connection, table)
            case "sqlite":
                return _on_sqlite(connection, table)
    return _elsewhere(engine, table)


def _on_postgres(connection: Connection, table: Table) -> list[UniqueKey]:
    relation = connection.dialect.identifier_preparer.format_table(table)
    faults = ("is not complete (rebuild it)", "is partial", "compares by another collation than its column")
    inherited = "does not hold for the tables that inherit from this one"
    return [
        UniqueKey(name, tuple(columns), _first((*faults, inherited), (not valid, partial, stricter, is_parent)))
        for name, columns, valid, partial, stricter, is_parent in connection.execute(_POSTGRES, {"relation": relation})
    ]


def _on_mysql(connection: Connection, table: Table) -> list[UniqueKey]:
    rows = connection.execute(_MYSQL, {"schema": table.schema, "table": table.name}).all()
    return [
        UniqueKey(name, tuple(column for _, column in parts)) for name, parts in groupby(rows, lambda row: str(row[0]))
    ]


def _on_sqlite(connection: Connection, table: Table) -> list[UniqueKey]:
    """The key of a table with row numbers is in no index."""
    quote, schema = connection.dialect.identifier_preparer.quote_identifier, table.schema or "main"
    query = text(_SQLITE.format(master=f"{quote(schema)}.sqlite_master"))
    rows = connection.execute(query, {"table": table.name, "schema": schema}).all()
    own = tuple(table.primary_key.columns.keys())
    keys = [UniqueKey("primary key", own)] if own else []
    for name, parts in groupby(rows, lambda row: str(row[0])):
        columns = list(parts)
        _, _, is_partial, _, sql = columns[0]
        is_stricter = _COLLATE.search(sql or "") is not None and any(row[3] == "BINARY" for row in columns)
        fault = _first(("is partial", "compares by a collation of its own"), (is_partial, is_stricter))
        keys.append(UniqueKey(name, tuple(row[1] for row in columns), fault))
    return keys


def _elsewhere(engine: Engine, table: Table) -> list[UniqueKey]:
    found = inspect(engine)
    primary = found.get_pk_constraint(table.name, table.schema).get("constrained_columns") or []
    keys = [UniqueKey("primary key", tuple(primary))]
    for constraint in found.get_unique_constraints(table.name, table.schema):
        keys.append(UniqueKey(str(constraint["name"]), tuple(constraint["column_names"])))
    for index in found.get_indexes(table.name, table.schema):
        is_partial = any(name.endswith("_where") for name in index.get("dialect_options", {}))
        if index["unique"]:
            columns = tuple(name or "" for name in index["column_names"])
            keys.append(UniqueKey(str(index["name"]), columns, "is partial" if is_partial else None))
    return keys


def _first(faults: Sequence[str], found: Sequence[object]) -> str | None:
    return next((fault for fault, is_found in zip(faults, found, strict=True) if is_found), None)
