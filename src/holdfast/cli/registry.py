"""``holdfast registry``: what an application's engines share, who has its lock, and what people do about that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

import typer
from sqlalchemy import inspect

from ..app import Holdfast
from ..core.errors import ConfigurationError, Conflict
from ..core.types import JsonObject
from ..engines.by_hand import registry_by_hand
from ..engines.registry import EngineTablesConfig, Registry, RegistryView
from ..engines.registry_shape import DEFAULT_LOCK_SECONDS
from ..records import audit
from ..records.database import reading
from ..records.schema import audit_table
from ..state.document import format_time
from .exits import EXIT_CODES_HELP
from .filters import seconds
from .guard import YesOption, confirm, conflicts_refused
from .options import AppOption, JsonOption, help_when_alone
from .output import print_fields, print_json, print_line, print_note, shown_time
from .records import app_with_tables

registry_app = typer.Typer(
    help="See the registry that engines share; make, lock and unlock it.",
    epilog=EXIT_CODES_HELP,
    invoke_without_command=True,
)
registry_app.callback()(help_when_alone)

_USUAL = EngineTablesConfig()
_JobOption = Annotated[
    str,
    typer.Option("--job-id", metavar="ID", help="Who is to have the lock; any name.", show_default=False),
]
_OwnJobOption = Annotated[
    str | None,
    typer.Option("--job-id", metavar="ID", help="Whose lock it is; then nothing is asked.", show_default=False),
]
_DurationOption = Annotated[
    timedelta | None,
    typer.Option(
        "--duration", parser=seconds, metavar="TIME", help="For how long: 900 or 900s, 30m, 12h, 2d; one hour."
    ),
]
_AccountOption = Annotated[
    str, typer.Option("--storage-account", metavar="NAME", help="Of the engines' tables; empty when they are in SQL.")
]
_LettersOption = Annotated[str, typer.Option("--dlq-table", metavar="NAME", help="Where dead letters are kept.")]
_HistoryOption = Annotated[str, typer.Option("--history-table", metavar="NAME", help="Where history is kept.")]
_RetentionOption = Annotated[int, typer.Option("--retention-days", min=0, help="How long both are kept.")]


@registry_app.command("show")
def show(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show the registry, and who has its lock."""
    view = _existing(app_with_tables(app))
    if as_json:
        print_json(described_registry(view))
        return
    own = [(name, json.dumps(value, ensure_ascii=False)) for name, value in view.state.items()]
    known = [("registry", view.name), ("version", str(view.version)), ("lock", _shown_lock(view))]
    print_fields([*known, *_shown_tables(view.tables), *own])


@registry_app.command("init")
def init(
    app: AppOption = None,
    storage_account: _AccountOption = _USUAL.storage_account_name,
    dlq_table: _LettersOption = _USUAL.dlq_table_name,
    history_table: _HistoryOption = _USUAL.history_table_name,
    retention_days: _RetentionOption = int(_USUAL.retention_days),
    as_json: JsonOption = False,
) -> None:
    """Make the registry. One that is there is never overwritten."""
    hf = app_with_tables(app)
    tables = EngineTablesConfig(
        storage_account_name=storage_account,
        dlq_table_name=dlq_table,
        history_table_name=history_table,
        retention_days=retention_days,
    )
    with conflicts_refused():
        _require_none(hf)
        with _audited(hf, "registry init", tables.as_json()) as registry:
            view = registry.init(tables)
    _tell(view, as_json, f"Made the registry '{view.name}'.")


@registry_app.command("lock")
def lock(
    job_id: _JobOption, app: AppOption = None, lasting: _DurationOption = None, as_json: JsonOption = False
) -> None:
    """Take the lock by hand, so that no engine changes the registry. Nothing extends it: it ends by itself.

    A registry that is not there yet is made, as the first job that takes the lock would.
    """
    hf = app_with_tables(app)
    seconds = DEFAULT_LOCK_SECONDS if lasting is None else lasting.total_seconds()
    with conflicts_refused():
        hf.registry.require_free(job_id)
        with _audited(hf, "registry lock", {"job_id": job_id, "duration_seconds": seconds}) as registry:
            view = registry.acquire(job_id, duration_seconds=seconds)
    _tell(view, as_json, f"Locked by {_shown_lock(view)}.")


@registry_app.command("unlock")
def unlock(
    app: AppOption = None, job_id: _OwnJobOption = None, yes: YesOption = False, as_json: JsonOption = False
) -> None:
    """Free the lock. The job that had it can change nothing from then on, even if it is still at work."""
    hf = app_with_tables(app)
    view = _existing(hf)
    seen = view.lock
    if not seen.job_id:
        _tell(view, as_json, "The registry is not locked.")
        return
    if job_id is None and view.is_locked:
        confirm(
            f"The lock is held by {_shown_lock(view)}, and that job may be at work. It could change nothing more, and "
            "another job could begin.",
            word=seen.job_id,
            what="the id of the job that has the lock",
            yes=yes,
        )
    with conflicts_refused(), _audited(hf, "registry unlock", described_lock(view)) as registry:
        view = registry.force_unlock(seen) if job_id is None else registry.release(job_id)
    _tell(view, as_json, f"Unlocked: '{seen.job_id}' no longer has the lock.")


@contextmanager
def _audited(hf: Holdfast, action: str, details: JsonObject) -> Iterator[Registry]:
    """Yield the registry to change by hand; the change is written down. Where there is no audit, that is told."""
    if not _has_audit(hf):
        print_note("Not audited: the application keeps no records in SQL.")
        yield hf.registry
        return
    with registry_by_hand(hf.registry, hf.database, audit.present_user(), action, details) as registry:
        yield registry


def _has_audit(hf: Holdfast) -> bool:
    with reading(hf.database) as connection:
        return bool(inspect(connection).has_table(audit_table.name))


def _require_none(hf: Holdfast) -> None:
    """Look whether a registry can be made. Only making it makes sure.

    Raises:
        Conflict: there is one.
    """
    if hf.registry.read() is not None:
        raise Conflict(f"There is a registry '{hf.registry.name}' already; nothing was changed.")


def _existing(hf: Holdfast) -> RegistryView:
    view = hf.registry.read()
    if view is None:
        raise ConfigurationError(
            f"There is no registry '{hf.registry.name}' yet. Make it with 'holdfast registry init'."
        )
    return view


def described_registry(view: RegistryView) -> JsonObject:
    """Return the registry as JSON: the document as it is, and what it means now."""
    return {
        "name": view.name,
        "registry_version": view.version,
        "lock": described_lock(view),
        "registry": view.document,
    }


def described_lock(view: RegistryView) -> JsonObject:
    """Return who has the lock: ``held``, ``free``, or ``expired`` when a job ended without releasing it."""
    lock = view.lock
    state = "free" if not lock.job_id else "held" if view.is_locked else "expired"
    return {
        "state": state,
        "job_id": lock.job_id or None,
        "until": None if lock.until is None else format_time(lock.until),
        "duration_seconds": int(lock.duration_seconds) if lock.duration_seconds.is_integer() else lock.duration_seconds,
        "fencing_token": lock.fencing_token,
    }


def _shown_lock(view: RegistryView) -> str:
    lock = described_lock(view)
    match lock["state"]:
        case "held":
            return f"'{lock['job_id']}' until {shown_time(lock['until'])}"
        case "expired":
            return f"ran out at {shown_time(lock['until'])} ('{lock['job_id']}')"
    return "free"


def _shown_tables(tables: EngineTablesConfig) -> list[tuple[str, str]]:
    return [
        ("storage account", tables.storage_account_name or "none"),
        ("dead letters", tables.dlq_table_name),
        ("history", tables.history_table_name),
        ("retention days", str(tables.retention_days)),
    ]


def _tell(view: RegistryView, as_json: bool, sentence: str) -> None:
    if as_json:
        print_json(described_registry(view))
    else:
        print_line(sentence)
