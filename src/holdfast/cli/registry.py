"""``holdfast registry``: what an application's engines share, who has its lock, and what people do about that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from shlex import quote
from typing import Annotated

import typer

from ..app import Holdfast
from ..core.errors import ConfigurationError, Conflict
from ..core.types import JsonObject
from ..engines.operator import audited_registry
from ..engines.registry import EngineTablesConfig, Registry, RegistryView
from ..engines.registry_shape import DEFAULT_LOCK_SECONDS, tables_elsewhere
from ..lease.document import format_time
from ..records import audit
from ..records.retention import check_configured_days
from .confirmation import YesOption, confirm, conflicts_refused
from .filters import seconds
from .options import AppOption, JsonOption, group, option
from .output import print_answer, print_fields, print_json, shown_time
from .records import app_with_tables, audit_database

registry_app = group("See the registry that engines share; make, lock and unlock it.")

_USUAL = EngineTablesConfig()
_JobOption = Annotated[str, option("--job-id", metavar="ID", help="Who is to have the lock; any name.")]
_OwnJobOption = Annotated[str | None, option("--job-id", metavar="ID", help="Whose lock it is; then nothing is asked.")]
_DurationOption = Annotated[
    timedelta | None,
    typer.Option(
        "--duration", parser=seconds, metavar="TIME", help="For how long: 900 or 900s, 30m, 12h, 2d; one hour."
    ),
]
_InstanceOption = Annotated[
    str | None, option("--instance-id", metavar="ID", help="The registry of that instance, not the application's.")
]
_AccountOption = Annotated[
    str, typer.Option("--storage-account", metavar="NAME", help="Of the engines' tables; empty when they are in SQL.")
]
_LettersOption = Annotated[str, typer.Option("--dlq-table", metavar="NAME", help="Where dead letters are kept.")]
_HistoryOption = Annotated[str, typer.Option("--history-table", metavar="NAME", help="Where history is kept.")]
_RetentionOption = Annotated[int, typer.Option("--retention-days", min=0, help="How long both are kept; at least 7.")]


@registry_app.command("show")
def show(app: AppOption = None, instance_id: _InstanceOption = None, as_json: JsonOption = False) -> None:
    """Show the registry, and who has its lock."""
    view = _existing(app_with_tables(app).registry.instance(instance_id))
    if as_json:
        print_json(described_registry(view))
        return
    own = [(name, json.dumps(value, ensure_ascii=False)) for name, value in view.state.items()]
    known = [("registry", view.name), ("version", str(view.version)), ("lock", _shown_lock(view))]
    print_fields([*known, *([] if instance_id is not None else _shown_tables(view.tables)), *own])


@registry_app.command("init")
def init(
    app: AppOption = None,
    instance_id: _InstanceOption = None,
    storage_account: _AccountOption = _USUAL.storage_account_name,
    dlq_table: _LettersOption = _USUAL.dlq_table_name,
    history_table: _HistoryOption = _USUAL.history_table_name,
    retention_days: _RetentionOption = int(_USUAL.retention_days),
    as_json: JsonOption = False,
) -> None:
    """Make the registry. One that is there is never overwritten."""
    check_configured_days(retention_days)
    hf = app_with_tables(app)
    own = hf.registry.instance(instance_id)
    tables = EngineTablesConfig(
        storage_account_name=storage_account,
        dlq_table_name=dlq_table,
        history_table_name=history_table,
        retention_days=retention_days,
    )
    if instance_id is not None and tables != _USUAL:
        raise tables_elsewhere(own.name, instance_id)
    given = tables if instance_id is None else None
    with conflicts_refused():
        _require_none(own)
        with _audited(hf, own, "registry init", {} if given is None else given.as_json()) as registry:
            view = registry.init(given)
    _print_view(view, as_json, f"Made the registry '{view.name}'.")


@registry_app.command("lock")
def lock(
    job_id: _JobOption,
    app: AppOption = None,
    instance_id: _InstanceOption = None,
    lasting: _DurationOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take the lock by hand, so that no engine changes the registry. Nothing extends it: it ends by itself.

    A registry that is not there yet is made, as the first job that takes the lock would.
    """
    hf = app_with_tables(app)
    own = hf.registry.instance(instance_id)
    seconds = DEFAULT_LOCK_SECONDS if lasting is None else lasting.total_seconds()
    with conflicts_refused():
        own.require_free(job_id)
        with _audited(hf, own, "registry lock", {"job_id": job_id, "duration_seconds": seconds}) as registry:
            view = registry.acquire(job_id, duration_seconds=seconds)
    _print_view(view, as_json, f"Locked by {_shown_lock(view)}.")


@registry_app.command("unlock")
def unlock(
    app: AppOption = None,
    instance_id: _InstanceOption = None,
    job_id: _OwnJobOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Free the lock. The job that had it can change nothing from then on, even if it is still at work."""
    hf = app_with_tables(app)
    own = hf.registry.instance(instance_id)
    view = _existing(own)
    seen = view.lock
    if not seen.job_id:
        _print_view(view, as_json, "The registry is not locked.")
        return
    if job_id is None and view.is_locked:
        confirm(
            f"The lock is held by {_shown_lock(view)}, and that job may be at work. It could change nothing more, and "
            "another job could begin.",
            word=seen.job_id,
            what="the id of the job that has the lock",
            yes=yes,
        )
    with conflicts_refused(), _audited(hf, own, "registry unlock", described_lock(view)) as registry:
        view = registry.force_unlock(seen) if job_id is None else registry.release(job_id)
    _print_view(view, as_json, f"Unlocked: '{seen.job_id}' no longer has the lock.")


@contextmanager
def _audited(hf: Holdfast, own: Registry, action: str, details: JsonObject) -> Iterator[Registry]:
    """Yield the registry to change by hand; the change is written down. Where there is no audit, a warning says so."""
    database = audit_database(hf)
    if database is None:
        yield own
        return
    with audited_registry(own, database, audit.present_user(), action, details) as registry:
        yield registry


def _require_none(own: Registry) -> None:
    """Look whether a registry can be made. Only making it makes sure.

    Raises:
        Conflict: there is one.
    """
    if own.read() is not None:
        raise Conflict(f"There is a registry '{own.name}' already; nothing was changed.")


def _existing(own: Registry) -> RegistryView:
    view = own.read()
    if view is None:
        whose = "" if own.instance_id is None else f" --instance-id {quote(own.instance_id)}"
        raise ConfigurationError(
            f"There is no registry '{own.name}' yet. Make it with 'holdfast registry init{whose}'."
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


def _print_view(view: RegistryView, as_json: bool, sentence: str) -> None:
    print_answer(described_registry(view), as_json, sentence)
