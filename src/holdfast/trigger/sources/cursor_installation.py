"""Writing a cursor column, the trigger that keeps it and its index into a user's table, and taking the trigger out.

Both are plans first: the statements can be shown, and run by someone else. A plan for what is there already is empty,
so carrying it out twice changes nothing. If the process dies between two statements of a database that cannot undo
them (MariaDB, MySQL), the next plan holds what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import Table, inspect
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ...core.errors import SourceConfigurationError, WriteError
from ...database.errors import reason
from ...database.pools import writing
from ...database.reflection import qualified, reflect_table
from . import inspection
from .cursor_trigger import DIALECTS, SQLITE_CLOCK, CursorTrigger, expressions
from .installed_cursor import row_keys

_NEW_COLUMNS = {
    "postgresql": ("timestamptz NOT NULL DEFAULT now()", "now()"),
    "sqlite": ("TEXT", SQLITE_CLOCK),  # a column that is added there cannot have a default that is worked out
    "mysql": (
        "TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)",
        "current_timestamp(6)",
    ),
}

_LONGEST_NAME = 63
_UNDOING = frozenset({"postgresql", "sqlite"})  # what begins there with CREATE or ALTER is part of a transaction
Audited: TypeAlias = Callable[[Sequence[str]], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class CursorPlan:
    """Statements to run in order; none when everything is as it should be."""

    table: str
    column: str
    statements: tuple[str, ...]
    notes: tuple[str, ...] = ()


def plan_installation(
    engine: Engine, table_name: str, schema: str | None, column: str, keys: Sequence[str]
) -> CursorPlan:
    """Return what is missing until the database itself keeps ``column`` on every insert and update.

    Raises:
        SourceConfigurationError: there is no such table, or its column cannot be kept; the message says why.
    """
    table = _writable(engine, table_name, schema)
    title = qualified(table_name, schema)
    with engine.connect() as connection:
        found = row_keys(connection, table)
        statements = _new_column(connection, table, column, found)
    if statements is None:
        facts = inspection.cursor_facts(engine, table, column)
        statements = _kept(engine, table, facts, found)
    index = inspection.missing_index(engine, table, column, keys)
    return CursorPlan(title, column, (*statements, *([index] if index else [])), _notes(engine))


def plan_removal(engine: Engine, table_name: str, schema: str | None, column: str) -> CursorPlan:
    """Return what takes the trigger out again. The column and its index stay: others may read them.

    Raises:
        SourceConfigurationError: there is no such table or column.
    """
    table = _writable(engine, table_name, schema)
    inspection.require_columns(table, [column])
    is_there = inspection.cursor_facts(engine, table, column).installed is not None
    trigger = CursorTrigger(engine.dialect, table, column, "")
    notes = (f"Column '{column}' and its index stay; updates are then no longer proved.",)
    return CursorPlan(qualified(table_name, schema), column, tuple(trigger.drop()) if is_there else (), notes)


def carry_out(engine: Engine, plan: CursorPlan, audited: Audited = lambda statements: nullcontext()) -> None:
    """Run a plan: all of it or nothing, where the database can undo such statements.

    ``audited`` is entered around statements that are run, or undone, together.

    Raises:
        WriteError: the database refuses a statement, for example because the role does not own the table.
    """
    together = [plan.statements] if engine.dialect.name in _UNDOING else [(each,) for each in plan.statements]
    for statements in together:
        with audited(statements), writing(engine) as connection, connection.begin():
            for statement in statements:
                _run(connection, statement, plan)


def _run(connection: Connection, statement: str, plan: CursorPlan) -> None:
    try:
        connection.exec_driver_sql(_escaped(connection, statement))
    except DBAPIError as error:
        raise WriteError(
            f"The database refused '{statement}': {reason(error)}. Run it as the owner of '{plan.table}', or hand the "
            "statements of --dry-run to them."
        ) from error


def _escaped(connection: Connection, statement: str) -> str:
    return statement if connection.dialect.paramstyle == "qmark" else statement.replace("%", "%%")


def _writable(engine: Engine, table_name: str, schema: str | None) -> Table:
    if engine.dialect.name not in DIALECTS:
        raise SourceConfigurationError(
            f"Holdfast writes no trigger for {engine.dialect.name}: keep the column yourself."
        )
    table = reflect_table(engine, table_name, schema, SourceConfigurationError)
    if inspection.is_view(inspect(engine), table):
        raise SourceConfigurationError(f"'{qualified(table_name, schema)}' is a view. Name the table that it reads.")
    return table


def _new_column(connection: Connection, table: Table, column: str, row: tuple[str, ...]) -> list[str] | None:
    """Return the statements for a column that is not there yet; None when it is.

    Raises:
        SourceConfigurationError: its name is no plain one.
    """
    if column in table.c:
        return None
    if not (column.isascii() and column.isidentifier() and len(column) <= _LONGEST_NAME):
        raise SourceConfigurationError(
            f"'{table.name}' has no column '{column:.80}', and none of that name is added: a new one has 1 to "
            f"{_LONGEST_NAME} letters, digits and '_', and begins with no digit. Name it so with --column."
        )
    dialect = connection.dialect
    family = "mysql" if dialect.name == "mariadb" else dialect.name
    declared, expression = _NEW_COLUMNS[family]
    name, where = dialect.identifier_preparer.quote(column), dialect.identifier_preparer.format_table(table)
    statements = [f"ALTER TABLE {where} ADD COLUMN {name} {declared}"]
    if family == "sqlite":
        statements.append(f"UPDATE {where} SET {name} = {expression}")
    return [*statements, *CursorTrigger(dialect, table, column, expression, row).create()]


def _kept(engine: Engine, table: Table, facts: inspection.CursorFacts, row: tuple[str, ...]) -> list[str]:
    """Return the statements for a column that is there: none when it is kept, else the trigger, written anew."""
    if facts.is_forced:
        return []
    clock_default = facts.default if facts.clock is not None else None
    wanted = expressions(engine.dialect.name, facts.type, facts.type_name, clock_default)
    is_unclear = clock_default is None and engine.dialect.name == "sqlite" and facts.installed is None
    if facts.generated_id or not wanted or is_unclear:
        raise SourceConfigurationError(
            f"Column '{facts.name}' of '{table.name}' ({facts.type_name}, default: {facts.default or 'none'}) is not "
            "one that the database's clock can fill in the form its values have. Give it such a default first, or name "
            "a column that is not there yet with --column."
        )
    if facts.installed is not None and facts.installed.is_intact:
        raise SourceConfigurationError(
            f"The {facts.installed.fault}, which writing it again does not mend. Change that first."
        )
    trigger = CursorTrigger(engine.dialect, table, facts.name, wanted[0], row)
    return [*(trigger.drop() if facts.installed is not None else []), *trigger.create()]


def _notes(engine: Engine) -> tuple[str, ...]:
    if engine.dialect.name == "postgresql":
        return ("Whoever writes the table waits while its index is built.",)
    if engine.dialect.name == "sqlite":
        return ()
    return ("Changes that a foreign key makes by itself (CASCADE, SET NULL) run no triggers on this database.",)
