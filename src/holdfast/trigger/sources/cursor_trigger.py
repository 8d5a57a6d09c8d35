"""The trigger that keeps a cursor column, as Holdfast writes it: text for each dialect, and a hash to know it again.

It writes the server's clock into the column on every insert and every update, whatever the statement brings, so that no
row can get a value that a poll has passed already. What a trigger of someone else does does not show in its text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects.mysql import TIMESTAMP
from sqlalchemy.engine import Dialect
from sqlalchemy.types import DateTime, TypeEngine

SQLITE_CLOCK = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
DIALECTS = frozenset({"postgresql", "mysql", "mariadb", "sqlite"})
_SCHEMA = re.compile(r'^CREATE TRIGGER "[^"]*"\.(?=")')
_POSTGRES_KIND = "23  plpgsql search_path=pg_catalog, pg_temp"  # before each inserted or updated row, always


def expressions(
    dialect_name: str, column_type: TypeEngine[Any], type_name: str, clock_default: str | None
) -> tuple[str, ...]:
    """Return what the trigger may write: the column's default where that is the clock, then what its type asks for."""
    own = () if clock_default is None else (_without_on_update(clock_default),)
    standard: tuple[str, ...] = ()
    if dialect_name == "sqlite":
        standard = (SQLITE_CLOCK,)
    elif dialect_name == "postgresql" and type_name == "xid8":
        standard = ("pg_current_xact_id()",)
    elif dialect_name == "postgresql" and isinstance(column_type, DateTime) and column_type.timezone:
        standard = ("now()",)
    elif isinstance(column_type, TIMESTAMP):
        standard = (f"current_timestamp({column_type.fsp or 0})",)
    return tuple(dict.fromkeys(own + standard))


def _without_on_update(default: str) -> str:
    at = default.lower().find(" on update ")
    return default if at < 0 else default[:at]


@dataclass(frozen=True, slots=True)
class CursorTrigger:
    """The trigger over one column. ``row_keys`` find the row in a SQLite table that has no rowid."""

    dialect: Dialect
    table: Table
    column: str
    expression: str
    row_keys: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the triggers' names: the last in the alphabet, because PostgreSQL runs triggers in that order."""
        stem = hashlib.sha256(f"{self.table.name}\0{self.column}".encode()).hexdigest()[:12]
        if self.dialect.name == "postgresql":
            return (f"zz_holdfast_cursor_{stem}",)
        return (f"zz_holdfast_cursor_{stem}_insert", f"zz_holdfast_cursor_{stem}_update")

    def definitions(self) -> dict[str, str]:
        """Return what the database says of the triggers once they are there."""
        if self.dialect.name == "postgresql":
            return {self.names[0]: f"{_POSTGRES_KIND} {self._assignment()}"}
        if self.dialect.name == "sqlite":
            return dict(zip(self.names, map(one_line, self._sqlite()), strict=True))
        events = ("INSERT", "UPDATE")
        return {name: f"BEFORE {event} {self._set()}" for name, event in zip(self.names, events, strict=True)}

    def create(self) -> list[str]:
        """Return the statements that write it; where something of its name is there, ``drop`` goes first."""
        if self.dialect.name == "postgresql":
            return self._postgres()
        if self.dialect.name == "sqlite":
            return self._sqlite()
        return [
            f"CREATE TRIGGER {self._quoted(name)} BEFORE {event} ON {self._table()} FOR EACH ROW {self._set()}"
            for name, event in zip(self.names, ("INSERT", "UPDATE"), strict=True)
        ]

    def drop(self) -> list[str]:
        """Return the statements that remove it; the column and its index stay."""
        if self.dialect.name == "postgresql":
            name = self._quoted(self.names[0])
            return [
                f"DROP TRIGGER IF EXISTS {name} ON {self._table()}",
                f"DROP FUNCTION IF EXISTS {self._in_schema(name)}()",
            ]
        return [f"DROP TRIGGER IF EXISTS {self._in_schema(self._quoted(name))}" for name in self.names]

    def _postgres(self) -> list[str]:
        name = self._quoted(self.names[0])
        return [
            f"CREATE OR REPLACE FUNCTION {self._in_schema(name)}() RETURNS trigger LANGUAGE plpgsql "
            f"SET search_path = pg_catalog, pg_temp AS $holdfast${self._assignment()}$holdfast$",
            f"CREATE TRIGGER {name} BEFORE INSERT OR UPDATE ON {self._table()} FOR EACH ROW "
            f"EXECUTE FUNCTION {self._in_schema(name)}()",
        ]

    def _assignment(self) -> str:
        return f"BEGIN NEW.{self._quoted(self.column)} := {self.expression}; RETURN NEW; END"

    def _set(self) -> str:
        return f"SET NEW.{self._quoted(self.column)} = {self.expression}"

    def _sqlite(self) -> list[str]:
        """Without the WHEN it would run for ever where recursive triggers are on: the clock stands in a statement."""
        column, table = self._quoted(self.column), self._quoted(self.table.name)
        keys = self.row_keys or ("rowid",)
        row = " AND ".join(f"{each} = NEW.{each}" for each in (self._quoted(key) for key in keys))
        return [
            f"CREATE TRIGGER {self._in_schema(self._quoted(name))} AFTER {event} ON {table} FOR EACH ROW "
            f"WHEN NEW.{column} IS NOT ({self.expression}) "
            f"BEGIN UPDATE {table} SET {column} = ({self.expression}) WHERE {row}; END"
            for name, event in zip(self.names, ("INSERT", "UPDATE"), strict=True)
        ]

    def _quoted(self, name: str) -> str:
        return self.dialect.identifier_preparer.quote_identifier(name)

    def _in_schema(self, quoted: str) -> str:
        return quoted if self.table.schema is None else f"{self._quoted(self.table.schema)}.{quoted}"

    def _table(self) -> str:
        return self._in_schema(self._quoted(self.table.name))


def one_line(sql: str) -> str:
    """Return a statement with single spaces, and without the name of a schema, which SQLite does not keep."""
    return _SCHEMA.sub("CREATE TRIGGER ", " ".join(sql.split()))


def digest(definitions: Mapping[str, str]) -> str:
    """Return the hash by which a definition is known again."""
    parts = "\0".join(f"{name}\0{text}" for name, text in sorted(definitions.items()))
    return "sha256:" + hashlib.sha256(parts.encode()).hexdigest()[:16]
