"""``holdfast history``: what happened, to which item, and how it ended."""

from __future__ import annotations

from typing import Annotated

import typer

from ..core.errors import ConfigurationError
from ..core.types import JsonObject
from ..records.history import HistoryEntry, HistoryFilter, HistoryStatus
from ..records.row_keys import check_history_key
from .exits import EXIT_CODES_HELP
from .filters import (
    DEFAULT_LIMIT,
    AfterOption,
    CorrelationOption,
    EngineOption,
    ErrorOption,
    FromOption,
    InstanceOption,
    LimitOption,
    ToOption,
    one_of,
)
from .options import AppOption, JsonOption, help_when_alone
from .output import print_fields, print_json
from .records import app_with_tables, described_fields, print_page, shown_fields, shown_moment, shown_text

history_app = typer.Typer(help="See what happened.", epilog=EXIT_CODES_HELP, invoke_without_command=True)

_COLUMNS = ("ended", "engine", "operation", "status", "took", "attempt", "correlation id", "row key", "error")
_PAYLOAD = ("input", "output")
_STORED_KEY = ("key",)  # where a table stores the row key; it is told once

_StatusOption = Annotated[
    HistoryStatus | None,
    typer.Option(
        "--status",
        parser=one_of(HistoryStatus),
        metavar="STATUS",
        help="Only these: Succeeded, Failed or Unknown.",
        show_default=False,
    ),
]
_OperationOption = Annotated[
    str | None, typer.Option("--operation", metavar="NAME", help="Only of this operation.", show_default=False)
]
_EngineArgument = Annotated[str, typer.Argument(metavar="ENGINE", help="Such as jobs:email.", show_default=False)]
_RowKeyArgument = Annotated[str, typer.Argument(metavar="ROWKEY", help="From a listing.", show_default=False)]


history_app.callback()(help_when_alone)


@history_app.command("list")
def list_history(
    app: AppOption = None,
    engine: EngineOption = None,
    status: _StatusOption = None,
    operation: _OperationOption = None,
    instance_id: InstanceOption = None,
    correlation_id: CorrelationOption = None,
    error: ErrorOption = None,
    since: FromOption = None,
    until: ToOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    after: AfterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List attempts that ended, the newest first; by engine and key in Azure. Inputs, outputs: see 'history show'."""
    hf = app_with_tables(app)
    wanted = HistoryFilter(
        engine=engine,
        status=status,
        operation=operation,
        instance_id=instance_id,
        correlation_id=correlation_id,
        error=error,
        since=since,
        until=until,
    )
    page = hf.history.page(wanted, limit, after)
    nothing = "Nothing has happened that fits."
    print_page(page, _COLUMNS, _row, described_entry, nothing=nothing, as_json=as_json)


@history_app.command("show")
def show(engine: _EngineArgument, row_key: _RowKeyArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show one attempt that ended, with its input and output."""
    found = app_with_tables(app).history.get(engine, row_key)
    if found is None:
        check_history_key(row_key)
        raise ConfigurationError(
            f"There is no history entry '{row_key}' of engine '{engine}'. It may be past its retention; look with "
            "'holdfast history list'."
        )
    described = {"row_key": found.row_key, **described_fields(found, without=_STORED_KEY)}
    if as_json:
        print_json(described)
    else:
        print_fields(shown_fields(described))


def described_entry(entry: HistoryEntry) -> JsonObject:
    """Return an entry as JSON, without what the item held."""
    return {"row_key": entry.row_key, **described_fields(entry, without=_PAYLOAD + _STORED_KEY)}


def _row(entry: HistoryEntry) -> tuple[str, ...]:
    return (
        shown_moment(entry.created_at),
        entry.engine,
        entry.operation,
        entry.status.value,
        f"{entry.duration_ms:,} ms",
        "" if entry.attempt is None else str(entry.attempt),
        entry.correlation_id,
        entry.row_key,
        shown_text(entry.error),
    )
