"""``holdfast trigger install-cursor``: let the database itself keep a cursor column, so that updates are proved."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated

import typer
from sqlalchemy import inspect
from sqlalchemy.engine import Engine

from ..app import Holdfast
from ..core.config import safe_url
from ..core.errors import ConfigurationError, DbError
from ..database.reflection import missing_table_message
from ..records.audit import present_user
from ..records.audited_change import audited_change
from ..trigger.sources.cursor_installation import Audited, CursorPlan, carry_out, plan_installation, plan_removal
from ..trigger.sources.inspection import primary_key
from ..trigger.sources.sqlalchemy import SqlAlchemySource
from .confirmation import confirm
from .options import AppOption, JsonOption, argument, option
from .output import print_answer, print_line, print_note
from .records import app_with_tables, audit_database
from .trigger import trigger_app
from .trigger_views import pollers

_ColumnOption = Annotated[
    str | None, option("--column", "-c", metavar="NAME", help="The column; that of the declared trigger if left out.")
]
_TriggerOption = Annotated[
    str | None, option("--trigger", metavar="NAME", help="The trigger that polls it, where several poll such a table.")
]
_RemoveOption = Annotated[bool, typer.Option("--remove", help="Take the trigger out again; the column stays.")]
_YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for the table's name to be typed.")]
_DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show the statements.")]


@trigger_app.command("install-cursor")
def install_cursor(
    table: Annotated[str, argument(metavar="TABLE", help="The table, or SCHEMA.TABLE.")],
    app: AppOption = None,
    column: _ColumnOption = None,
    trigger: _TriggerOption = None,
    remove: _RemoveOption = False,
    yes: _YesOption = False,
    dry_run: _DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a cursor column, the database trigger that keeps it on every insert and update, and its index."""
    hf = app_with_tables(app)
    schema, _, name = table.rpartition(".")
    source = _one_of(table, column, _sources_over(hf, name, schema or None, trigger))
    if source is None and trigger is not None:
        raise ConfigurationError(f"There is no trigger '{trigger}' that polls a table '{table}'.")
    engine = hf.database if source is None else source.database
    cursor = column or (source.cursor_column if source is not None else None)
    if cursor is None:
        raise ConfigurationError(_without_column(engine, table, name, schema or None))
    if remove:
        plan = plan_removal(engine, name, schema or None, cursor)
    else:
        keys = source.pk_columns if source is not None else primary_key(engine, name, schema or None)
        plan = plan_installation(engine, name, schema or None, cursor, keys)
    action = "remove" if remove else "install"
    _carry_out(hf, engine, plan, action, yes=yes, dry_run=dry_run, as_json=as_json)


def _without_column(engine: Engine, title: str, table: str, schema: str | None) -> str:
    """Return what to do where no trigger names the column: first of all the table has to be there."""
    if not inspect(engine).has_table(table, schema):
        return f"{missing_table_message(engine, table, schema)} Name one of them, or SCHEMA.TABLE."
    return f"No declared trigger polls '{title}'. Name the column, such as --column updated_at."


def _sources_over(
    hf: Holdfast, table: str, schema: str | None, trigger: str | None
) -> list[tuple[str, SqlAlchemySource]]:
    """Return who polls a table, and through what; a declaration that cannot be looked at does not."""
    found: list[tuple[str, SqlAlchemySource]] = []
    for poller in pollers(hf):
        if not poller.is_declared or trigger not in (None, poller.name):
            continue
        try:
            source = poller.source()
        except DbError:
            continue
        if isinstance(source, SqlAlchemySource) and source.settings.polls(table, schema):
            found.append((poller.name, source))
    return found


def _one_of(table: str, column: str | None, sources: Sequence[tuple[str, SqlAlchemySource]]) -> SqlAlchemySource | None:
    """Return the source that tells the database, and the column unless it is given; None where nobody polls the table.

    Raises:
        ConfigurationError: they name different ones.
    """
    if len({(source.database.url, column or source.cursor_column) for _, source in sources}) > 1:
        names = ", ".join(name for name, _ in sources)
        raise ConfigurationError(
            f"The triggers {names} poll a table '{table}' in different databases or by different columns. Say which "
            "one is meant, with --trigger NAME."
        )
    return sources[0][1] if sources else None


def _carry_out(
    hf: Holdfast, engine: Engine, plan: CursorPlan, action: str, *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Show a plan, ask, run it, and say what was done."""
    outcome = _done_already(plan, action)
    if plan.statements:
        _show(plan, as_json)
        outcome = "Nothing was changed (dry run)."
    if plan.statements and not dry_run:
        effect = f"These {len(plan.statements)} statement(s) will be run on '{plan.table}'."
        confirm(effect, word=plan.table, what="the table's name", yes=yes)
        carry_out(engine, plan, _audited(audit_database(hf), engine, plan, action))
        outcome = f"Done: 'holdfast trigger show' tells what is proved of '{plan.table}' now."
    details = {"table": plan.table, "column": plan.column, "action": action, "statements": list(plan.statements)}
    print_answer({**details, "dry_run": dry_run}, as_json, outcome)


def _audited(database: Engine | None, engine: Engine, plan: CursorPlan, action: str) -> Audited:
    """Return what writes statements down before they are run; nothing where the application keeps no audit."""
    if database is None:
        return lambda statements: nullcontext()
    details = {"database": safe_url(engine.url), "column": plan.column, "action": action}
    return lambda statements: audited_change(
        database,
        present_user(),
        "trigger install-cursor",
        plan.table,
        {**details, "statements": "; ".join(statements)},
        is_in_database=False,
    )


def _done_already(plan: CursorPlan, action: str) -> str:
    fact = "has no trigger of Holdfast's" if action == "remove" else "is kept by the database already"
    return f"Nothing to do: column '{plan.column}' of '{plan.table}' {fact}."


def _show(plan: CursorPlan, as_json: bool) -> None:
    if not as_json:
        for statement in plan.statements:
            print_line(f"{statement};")
    for note in plan.notes:
        print_note(note)
