"""``holdfast history``: what happened, to which item, and how it ended."""

from __future__ import annotations

from typing import Annotated

from ..core.errors import ConfigurationError
from ..core.types import JsonObject
from ..records.history import HistoryEntry, HistoryFilter, HistoryStatus
from ..records.row_keys import check_history_key
from .filters import (
    DEFAULT_LIMIT,
    AfterOption,
    CorrelationOption,
    EngineArgument,
    EngineOption,
    ErrorOption,
    FromOption,
    InstanceOption,
    LimitOption,
    RowKeyArgument,
    ToOption,
    status_option,
)
from .options import AppOption, JsonOption, group, option
from .records import (
    app_with_tables,
    described_fields,
    described_in_listing,
    print_one,
    print_page,
    shown_error,
    shown_moment,
)

history_app = group("See what happened.")

_COLUMNS = ("ended", "engine", "operation", "status", "took", "attempt", "correlation id", "row key", "error")
_PAYLOAD = ("input", "output", "traceback")
_STORED_KEY = ("key",)  # where a table stores the row key; it is shown once

_StatusOption = Annotated[HistoryStatus | None, status_option(HistoryStatus)]
_OperationOption = Annotated[str | None, option("--operation", metavar="NAME", help="Only of this operation.")]


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
def show(engine: EngineArgument, row_key: RowKeyArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show one attempt that ended, with its input and output."""
    found = app_with_tables(app).history.get(engine, row_key)
    if found is None:
        check_history_key(row_key)
        raise ConfigurationError(
            f"There is no history entry '{row_key}' of engine '{engine}'. It may be past its retention; look with "
            "'holdfast history list'."
        )
    described = {"row_key": found.row_key, **described_fields(found, without=_STORED_KEY)}
    print_one(described, as_json)


def described_entry(entry: HistoryEntry) -> JsonObject:
    """Return an entry as JSON, without what the item held."""
    return {"row_key": entry.row_key, **described_in_listing(entry, _PAYLOAD + _STORED_KEY)}


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
        shown_error(entry.error),
    )
