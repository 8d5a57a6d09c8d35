"""``holdfast trigger list`` and ``holdfast trigger show``: where every trigger stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

import typer

from ..core.errors import DbError
from ..core.redaction import shown
from ..core.types import JsonObject
from ..lease.reset import audit_entries
from ..trigger.source_history import SourceHistory
from .exits import CommandError, ExitCode
from .options import AppOption, JsonOption, TriggerName, group
from .output import print_fields, print_json, print_line, print_table, shown_cursor, shown_time
from .records import app_with_tables
from .trigger_views import (
    CountingSource,
    Poller,
    described_audit,
    described_source,
    described_state,
    find_poller,
    lag_seconds,
    pollers,
    shown_failure,
    shown_lag,
    shown_lease,
    summary,
)

trigger_app = group("See where triggers stand, and move their checkpoints by hand.")

_CountOption = Annotated[bool, typer.Option("--count", help="Also count the rows that wait; may read a large index.")]


@trigger_app.command("list")
def list_triggers(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List the triggers: who holds each lease, how far each has come, and how old the oldest row is that waits."""
    hf = app_with_tables(app)
    faults = {name: shown(str(fault)) for name, fault in hf.trigger_faults().items()}
    found = [_listed(poller, faults) for poller in pollers(hf)]
    if as_json:
        print_json(found)
    elif found:
        print_table(("trigger", "lease", "token", "checkpoint", "last commit", "lag", "failures"), map(_row, found))
        for name, fault in faults.items():
            print_line(f"Trigger '{name}' does not run: {fault}")
    else:
        print_line("No trigger is declared, and none has state.")
    unreadable = [str(item["error"]) for item in found if item["error"]]
    if unreadable:
        raise CommandError(" ".join(unreadable), ExitCode.FAILED)


def _listed(poller: Poller, faults: Mapping[str, str]) -> JsonObject:
    return {**summary(poller), "does_not_run": faults.get(poller.name) if poller.bound is None else None}


def _row(item: JsonObject) -> tuple[str, ...]:
    name = item["name"] if item["declared"] else f"{item['name']} (not declared)"
    if item["error"]:
        return (name, "unreadable", "", "", "", "", "")
    token = "" if item["fencing_token"] is None else str(item["fencing_token"])
    lease = "stopped" if item["stopped"] else shown_lease(item["lease"])
    failures = "" if item["failure"] is None else shown_failure(item["failure"])
    lag = shown_lag(item["lag_seconds"])
    return (name, lease, token, shown_cursor(item["cursor"]), shown_time(item["updated_at"]), lag, failures)


@trigger_app.command("show")
def show(name: TriggerName, app: AppOption = None, count: _CountOption = False, as_json: JsonOption = False) -> None:
    """Show one trigger: its lease, checkpoint, source, progress and the changes made by hand.

    With --json the output can be kept in a file and given to reset-to-checkpoint.
    """
    hf = app_with_tables(app)
    poller = find_poller(hf, name)
    details, source_error = _details(poller, count)
    if as_json:
        print_json(details)
    else:
        _print_details(details)
    if source_error is not None:
        raise source_error


def _details(poller: Poller, count: bool) -> tuple[JsonObject, DbError | None]:
    """Return everything known, and what is wrong with the source: the state is worth seeing even then."""
    document = None if poller.view is None else poller.view.document
    details: JsonObject = {
        **described_state(poller),
        "progress": ((document or {}).get("lease") or {}).get("progress"),
        "source": None,
        "lag_seconds": None,
        "rows_waiting": None,
        "audit": [described_audit(entry) for entry in audit_entries(poller.store, poller.name)],
        "document": document,
    }
    try:
        source = poller.source()
        if source is not None:
            source.validate()
            history = SourceHistory.of(poller.name, source, poller.store)
            described = details["source"] = described_source(source, poller.view, history)
            is_refused = described["refused_since_restore"] is not None
            details["lag_seconds"] = None if is_refused else lag_seconds(poller, source)
            if count and isinstance(source, CountingSource):
                details["rows_waiting"] = source.count_after(poller.checkpoint)
    except DbError as error:
        return {**details, "source": {"error": shown(str(error))}}, error
    return details, None


def _print_details(details: JsonObject) -> None:
    lag, waiting, progress = details["lag_seconds"], details["rows_waiting"], details["progress"]
    fields = [
        ("trigger", details["name"]),
        ("declared", "yes" if details["declared"] else "no: only its state is left"),
        ("application", details["application"] or "not known yet"),
        ("lease", shown_lease(details["lease"])),
        *([("stopped", details["stopped"])] if details["stopped"] else []),
        *([("failures", shown_failure(details["failure"]))] if details["failure"] else []),
        ("fencing token", "none yet" if details["fencing_token"] is None else str(details["fencing_token"])),
        ("checkpoint", shown_cursor(details["cursor"])),
        ("last commit", shown_time(details["updated_at"])),
        ("lag", shown_lag(lag)),
        *([("rows waiting", f"{waiting:,}")] if waiting is not None else []),
        *([("progress", json.dumps(progress, ensure_ascii=False))] if progress is not None else []),
        *_source_fields(details["source"]),
    ]
    print_fields(fields)
    if details["audit"]:
        print_table(
            ("changed by hand", "command", "by", "audit id"),
            [(shown_time(item["at"]), item["command"], item["by"], item["audit_id"]) for item in details["audit"]],
        )


def _source_fields(source: JsonObject | None) -> list[tuple[str, str]]:
    if source is None:
        return []
    if "error" in source:
        return [("source", "cannot be used, see below")]
    capability = source["capability"]
    updates = "updates" if capability["updates"] == "proved" else f"updates ({capability['updates']})"
    finds = ["inserts", *([updates] if capability["detects_updates"] else [])]
    finds += ["soft deletes"] if capability["detects_deletes"] else []
    is_safe = capability["safe_from_late_commits"]
    missed = capability["misses"] or "a row that commits late can be missed"
    safe = f"none is missed of {capability['covers']}" if is_safe else missed
    matches = "matches the checkpoint" if source["matches_state"] else "differs from the checkpoint's: it will not run"
    return [
        ("source", f"{source['name']} ({source['kind']}): {', '.join(finds)}"),
        ("updates", f"{capability['updates']}: {capability['updates_because']}"),
        *([("prove with", capability["prove_updates_with"])] if capability["prove_updates_with"] else []),
        ("horizon", f"{capability['horizon']}: {safe}"),
        *([("hidden rows", capability["hidden"])] if capability["hidden"] else []),
        ("restore", "the state goes back with the rows" if source["state_is_beside_rows"] else capability["restore"]),
        *([("does not run", source["refused_since_restore"])] if source["refused_since_restore"] else []),
        ("fingerprint", f"{source['fingerprint']}, {matches}"),
    ]
