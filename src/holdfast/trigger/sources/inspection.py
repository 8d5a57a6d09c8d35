"""What the database says about the table and columns a trigger polls.

Everything a trigger's soundness rests on (does the database fill the cursor itself? is it indexed? may it be NULL?) is
looked up here once, so that the decisions in ``horizons/choose.py`` stay pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Table, inspect, text
from sqlalchemy.dialects.mysql import TIMESTAMP
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import (
    BigInteger,
    Date,
    DateTime,
    Integer,
    NullType,
    SmallInteger,
    String,
    TypeEngine,
)

from ...core.errors import SourceConfigurationError
from ...database.deadlines import limited
from ...database.errors import connection_error
from ...database.reflection import accept_unknown_types, missing_table_message, qualified
from .cursor_trigger import expressions
from .installed_cursor import Installed, find_installed

_POSTGRES_CLOCK = re.compile(
    r"(now|transaction_timestamp|statement_timestamp|clock_timestamp)\(\)"
    r"|(current_timestamp|localtimestamp)(\((?P<digits>\d)\))?|(?P<day>current_date)",
    re.IGNORECASE,
)
# What may stand around the clock in a default and still give a time that never goes back.
_POSTGRES_AROUND = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\((?P<inner>.*)\)",
        r"(?P<inner>.*)::timestamp(\((?P<digits>\d)\))? with(out)? time zone",
        r"(?P<inner>.*)(?P<day>::date)",
        r"(?P<inner>.*) at time zone '(?P<zone>[\w/+-]+)'(::text)?",
        r"timezone\('(?P<zone>[\w/+-]+)'(::text)?, (?P<inner>.*)\)",
    )
)
_MYSQL_CLOCK = re.compile(
    r"((current_timestamp|now|sysdate|localtime|localtimestamp|(?P<utc>utc_timestamp))\((?P<digits>\d?)\)"
    r"|(?P<day>curdate\(\)|current_date(\(\))?|(?P<utc_day>utc_date\(\))))"
    r"( on update (current_timestamp|now)\((?P<update_digits>\d?)\))?",
    re.IGNORECASE,
)
_SQLITE_CLOCK = re.compile(
    r"current_timestamp|current_date|'now'|\b(datetime|date|unixepoch|julianday)\(\s*\)", re.IGNORECASE
)
_LOCALTIME = re.compile(r"'localtime'", re.IGNORECASE)
_AUTOINCREMENT = re.compile(r"primary\s+key(\s+(asc|desc))?(\s+on\s+conflict\s+\w+)?\s+autoincrement\b", re.IGNORECASE)

# What a generated column is made of; the beginning of a row's version is the server's clock. Expected rows: 1.
_GENERATION = text(
    "SELECT generation_expression FROM information_schema.columns "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name = :table AND column_name = :column"
)

# A table that belongs to this one, as a partition or by inheritance, and whose column has another default: rows that
# are written into it directly get that. Expected rows: 0 or 1.
_OTHER_DEFAULT = text(
    "WITH RECURSIVE member AS (SELECT to_regclass(:relation)::oid AS relid "
    "UNION SELECT inhrelid FROM pg_inherits JOIN member ON inhparent = relid) "
    "SELECT relid::regclass::text FROM member JOIN pg_attribute ON attrelid = relid AND attname = :column "
    "LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum JOIN pg_class ON pg_class.oid = relid "
    "WHERE relkind = 'r' AND pg_get_expr(adbin, adrelid) IS DISTINCT FROM :default ORDER BY 1 LIMIT 1"
)

# Whether a SQLite table's primary key has an index of its own: it does not number the rows then. Expected rows: 1.
_KEY_INDEX = text(
    "SELECT EXISTS (SELECT 1 FROM pragma_index_list(:table, coalesce(:schema, 'main')) WHERE origin = 'pk')"
)


@dataclass(frozen=True, slots=True)
class ServerClock:
    """How a default writes the server's time: in how many decimal places of a second, and in which zone's local time.

    None stands for all places the column has, and for the session's zone.
    """

    digits: int | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class CursorFacts:
    """What is known of the cursor column.

    ``clock`` means that the database fills the column from its own clock, with values that never go back; ``default``
    is then what it writes. ``digits`` are the decimal places of a second that its values have (None: microseconds).
    ``kept_by`` names what keeps the column on every update that leaves it alone, and ``is_forced`` means that no
    statement can write it; ``installed`` is the trigger of Holdfast, with its fault; ``escapes`` names what changes
    rows past all of them. ``local_offset`` is how far its local time is ahead of UTC now (None: that is not known).
    ``is_of_view`` means that it is a view's column, of whose tables nothing is known. ``part_apart`` is a partition
    whose column has another default.
    """

    name: str
    type: TypeEngine[Any]
    type_name: str
    nullable: bool
    default: str | None
    generated_id: bool
    clock: ServerClock | None = None
    digits: int | None = None
    kept_by: str | None = None
    is_forced: bool = False
    installed: Installed | None = None
    escapes: str | None = None
    local_offset: timedelta | None = None
    is_of_view: bool = False
    part_apart: str | None = None

    @property
    def is_integer(self) -> bool:
        """Return whether the column holds whole numbers."""
        return isinstance(self.type, (Integer, BigInteger, SmallInteger))

    @property
    def is_time(self) -> bool:
        """Return whether the column holds points in time (a SQLite text column with a time default counts)."""
        return isinstance(self.type, (DateTime, Date)) or self.has_server_time_default

    @property
    def may_hold_time(self) -> bool:
        """Return whether a SQLite column without a time default can hold times: as text, or as whole seconds."""
        return isinstance(self.type, (String, Integer))

    @property
    def has_server_time_default(self) -> bool:
        """Return whether the database itself writes the time into the column."""
        return self.clock is not None

    def holds_local_time(self, dialect_name: str) -> bool:
        """Return whether the values are local times of whoever writes them, so that its zone counts."""
        if dialect_name == "sqlite":
            return self.has_server_time_default and _LOCALTIME.search(self.default or "") is not None
        has_zone = isinstance(self.type, TIMESTAMP) or bool(getattr(self.type, "timezone", False))
        return not has_zone and (self.clock is None or self.clock.zone is None)


def server_clock(dialect_name: str, column_type: TypeEngine[Any], default: str | None) -> ServerClock | None:
    """Return how a column's default writes the server's time; None when it does not, or with values that may go back.

    ``now() - interval '1 day'`` or ``date_trunc('hour', now())`` write values below the clock, where a poll has been
    already: what is not surely the plain clock is not taken for it.
    """
    if default is None:
        return None
    if dialect_name == "sqlite":  # there the horizon evaluates the default itself
        return ServerClock() if _SQLITE_CLOCK.search(default) else None
    if not isinstance(column_type, (DateTime, Date)):
        return None
    if dialect_name == "postgresql":
        return _postgres_clock(column_type, default.strip())
    return _mysql_clock(column_type, default.strip()) if dialect_name in ("mysql", "mariadb") else None


def _postgres_clock(column_type: TypeEngine[Any], default: str) -> ServerClock | None:
    inner, digits, zone, whole_days = default, 6, None, False
    while (found := _POSTGRES_CLOCK.fullmatch(inner)) is None:
        around = next((match for pattern in _POSTGRES_AROUND if (match := pattern.fullmatch(inner))), None)
        if around is None:
            return None
        parts = around.groupdict()
        if parts.get("zone") and (zone or getattr(column_type, "timezone", False)):
            return None  # local time taken for another zone's
        zone = parts.get("zone") or zone
        digits = min(digits, int(parts.get("digits") or 6))
        whole_days = whole_days or bool(parts.get("day"))
        inner = parts["inner"].strip()
    whole_days = whole_days or bool(found["day"])
    if whole_days and not isinstance(column_type, Date):
        return None
    return ServerClock(min(digits, int(found["digits"] or 6)), zone)


def _mysql_clock(column_type: TypeEngine[Any], default: str) -> ServerClock | None:
    while default.startswith("(") and default.endswith(")"):
        default = default[1:-1].strip()
    found = _MYSQL_CLOCK.fullmatch(default)
    if found is None or (found["day"] and not isinstance(column_type, Date)):
        return None
    is_utc = bool(found["utc"] or found["utc_day"])
    if is_utc and isinstance(column_type, TIMESTAMP):
        return None  # UTC taken for the session's time
    digits = [int(found[name] or 0) for name in ("digits", "update_digits") if found[name] is not None]
    return ServerClock(min(digits, default=0), "utc" if is_utc else None)


def _digits(dialect_name: str, column_type: TypeEngine[Any], clock: ServerClock | None) -> int | None:
    """Return the decimal places of a second a time column's values have: those of the column or fewer."""
    of_column = getattr(column_type, "fsp" if dialect_name in ("mysql", "mariadb") else "precision", None)
    if of_column is None:
        of_column = 0 if dialect_name in ("mysql", "mariadb") else 6
    return of_column if clock is None or clock.digits is None else min(of_column, clock.digits)


def require_columns(table: Table, names: Sequence[str]) -> None:
    """Check that the table has the columns.

    Raises:
        SourceConfigurationError: it lacks one.
    """
    missing = [name for name in names if name not in table.c]
    if missing:
        raise SourceConfigurationError(
            f"Columns not found in table '{qualified(table.name, table.schema)}': {', '.join(missing)}. It has: "
            f"{', '.join(table.c.keys())}."
        )


def cursor_facts(engine: Engine, table: Table, cursor: str) -> CursorFacts:
    """Return what the database says about the cursor column."""
    found = inspect(engine)
    accept_unknown_types()
    described = next(column for column in found.get_columns(table.name, table.schema) if column["name"] == cursor)
    default = None if described.get("default") is None else str(described["default"])
    reflected = table.c[cursor]
    clock = server_clock(engine.dialect.name, reflected.type, default)
    known = CursorFacts(
        name=cursor,
        type=reflected.type,
        type_name="" if isinstance(reflected.type, NullType) else reflected.type.compile(engine.dialect).lower(),
        nullable=cursor in nullable_columns(engine, table, [cursor]),
        default=default,
        generated_id=_is_generated_id(engine, found, table, cursor, dict(described)),
        clock=clock,
        digits=_digits(engine.dialect.name, reflected.type, clock),
    )
    if is_view(found, table):
        return known if known.generated_id else replace(known, is_of_view=True)
    with limited(engine.connect()) as connection:
        known = replace(known, part_apart=_part_apart(connection, table, known))
        return known if known.generated_id else _with_keeper(connection, table, known)


def _part_apart(connection: Connection, table: Table, facts: CursorFacts) -> str | None:
    """Return a partition of a table of PostgreSQL whose rows the column's default does not fill."""
    if connection.dialect.name != "postgresql" or facts.default is None:
        return None
    relation = connection.dialect.identifier_preparer.format_table(table)
    asked = {"relation": relation, "column": facts.name, "default": facts.default}
    found: str | None = connection.execute(_OTHER_DEFAULT, asked).scalar()
    return found


def nullable_columns(engine: Engine, table: Table, names: Sequence[str]) -> list[str]:
    """Return which of the columns can hold NULL: on SQLite those of a primary key, too, unless it numbers the rows."""
    keys_can = False
    if engine.dialect.name == "sqlite" and any(table.c[name].primary_key for name in names):
        with limited(engine.connect()) as connection:
            keys_can = bool(connection.execute(_KEY_INDEX, {"table": table.name, "schema": table.schema}).scalar())
    return [name for name in names if table.c[name].nullable and (keys_can or not table.c[name].primary_key)]


def _with_keeper(connection: Connection, table: Table, facts: CursorFacts) -> CursorFacts:
    """Add what keeps the column on updates: ON UPDATE, a version column, or the trigger that Holdfast writes."""
    dialect_name = connection.dialect.name
    clock_default = facts.default if facts.clock is not None else None
    candidates = expressions(dialect_name, facts.type, facts.type_name, clock_default)
    installed = find_installed(connection, table, facts.name, candidates)
    kept = replace(facts, installed=installed, escapes=_changing_key(connection, table))
    if installed is not None and installed.fault is None:
        keeper = f"trigger '{installed.name}' ({installed.digest}), which Holdfast wrote,"
        return _filled_with(dialect_name, replace(kept, kept_by=keeper, is_forced=True), installed.expression)
    if dialect_name not in ("mysql", "mariadb"):
        return kept
    if connection.execute(_GENERATION, _place(table, facts.name)).scalar() == "ROW START":
        expression = f"current_timestamp({getattr(facts.type, 'fsp', None) or 0})"
        return _filled_with(dialect_name, replace(kept, kept_by="the version of the row", is_forced=True), expression)
    on_update = facts.clock is not None and " on update " in (facts.default or "").lower()
    return replace(kept, kept_by="ON UPDATE") if on_update else kept


def _filled_with(dialect_name: str, facts: CursorFacts, expression: str) -> CursorFacts:
    clock = server_clock(dialect_name, facts.type, expression)
    return replace(facts, default=expression, clock=clock, digits=_digits(dialect_name, facts.type, clock))


def _changing_key(connection: Connection, table: Table) -> str | None:
    """Return a foreign key that changes rows of this table: MariaDB and MySQL run no trigger then, and no ON UPDATE."""
    if connection.dialect.name not in ("mysql", "mariadb"):
        return None
    for key in inspect(connection).get_foreign_keys(table.name, table.schema):
        options = {name: str(action).upper() for name, action in (key.get("options") or {}).items()}
        if options.get("onupdate") in ("CASCADE", "SET NULL") or options.get("ondelete") == "SET NULL":
            return f"foreign key '{key.get('name')}'"
    return None


def _place(table: Table, column: str) -> dict[str, object]:
    return {"schema": table.schema, "table": table.name, "column": column}


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
    with limited(engine.connect()) as connection:
        sql = connection.execute(
            text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name"), {"name": table.name}
        ).scalar()
    return key == [cursor] and _AUTOINCREMENT.search(str(sql)) is not None


def missing_index(engine: Engine, table: Table, cursor: str, keys: Sequence[str]) -> str | None:
    """Return the CREATE INDEX that the poll needs, or None when an index already starts with the cursor."""
    found = inspect(engine)
    if is_view(found, table):
        return None
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


def is_view(found: Inspector, table: Table) -> bool:
    """Return whether the name stands for a view: it has no indexes, keys or locks of its own."""
    return table.name in found.get_view_names(table.schema)


def primary_key(engine: Engine, table: str, schema: str | None) -> list[str]:
    """Return the primary key's columns.

    Raises:
        SourceConfigurationError: there is no such table, or it has no primary key.
        DbConnectionError: the database does not answer.
    """
    try:
        found = inspect(engine)
    except DBAPIError as error:
        raise connection_error(engine.url, error) from error
    if not found.has_table(table, schema):
        raise SourceConfigurationError(missing_table_message(engine, table, schema))
    columns = list(found.get_pk_constraint(table, schema).get("constrained_columns") or [])
    if not columns:
        raise SourceConfigurationError(
            f"Table '{qualified(table, schema)}' has no primary key, so rows with an equal cursor cannot be told "
            "apart. Pass key=[…] with columns that are unique together."
        )
    return columns
