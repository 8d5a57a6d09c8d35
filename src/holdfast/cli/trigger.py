"""``holdfast trigger list`` and ``holdfast trigger show``: where every trigger stands."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ..core.errors import DbError
from ..core.types import JsonObject
from ..state.reset import audit_entries
from .exits import EXIT_CODES_HELP, CommandError, ExitCode
from .loading import load_app
from .logs import configure_logging
from .options import AppOption, JsonOption, TriggerName, help_when_alone
from .output import print_fields, print_json, print_line, print_table, redacted, shown_cursor, shown_time
from .pollers import (
    CountingSource,
    Poller,
    all_names,
    described_audit,
    described_source,
    described_state,
    find_poller,
    lag_seconds,
    require_tables,
    shown_lease,
    summary,
)

trigger_app = typer.Typer(
    help="See where triggers stand, and move their checkpoints by hand.",
    epilog=EXIT_CODES_HELP,
    invoke_without_command=True,
)

_CountOption = Annotated[bool, typer.Option("--count", help="Also count the rows that wait; may read a large index.")]


trigger_app.callback()(help_when_alone)


@trigger_app.command("list")
def list_triggers(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List the triggers: who holds each lease, and how far each has come."""
    hf = load_app(app)
    configure_logging()
    require_tables(hf)
    faults = {name: redacted(str(fault)) for name, fault in hf.trigger_faults().items()}
    found = [{**summary(hf, name), "does_not_run": faults.get(name)} for name in all_names(hf)]
    if as_json:
        print_json(found)
    elif found:
        print_table(("trigger", "lease", "token", "checkpoint", "last commit"), map(_row, found))
        for name, fault in faults.items():
            print_line(f"Trigger '{name}' does not run: {fault}")
    else:
        print_line("No trigger is declared, and none has state.")
    unreadable = [str(item["error"]) for item in found if item["error"]]
    if unreadable:
        raise CommandError(" ".join(unreadable), ExitCode.FAILED)


def _row(item: JsonObject) -> tuple[str, ...]:
    name = item["name"] if item["declared"] else f"{item['name']} (not declared)"
    if item["error"]:
        return (name, "unreadable", "", "", "")
    token = "" if item["fencing_token"] is None else str(item["fencing_token"])
    lease = "stopped" if item["stopped"] else shown_lease(item["lease"])
    return (name, lease, token, shown_cursor(item["cursor"]), shown_time(item["updated_at"]))


@trigger_app.command("show")
def show(name: TriggerName, app: AppOption = None, count: _CountOption = False, as_json: JsonOption = False) -> None:
    """Show one trigger: its lease, checkpoint, source, progress and the changes made by hand.

    With --json the output can be kept in a file and given to reset-to-checkpoint.
    """
    hf = load_app(app)
    configure_logging()
    require_tables(hf)
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
            details["source"] = described_source(source, poller.view)
            details["lag_seconds"] = lag_seconds(poller, source)
            if count and isinstance(source, CountingSource):
                details["rows_waiting"] = source.count_after(poller.checkpoint)
    except DbError as error:
        return {**details, "source": {"error": redacted(str(error))}}, error
    return details, None


def _print_details(details: JsonObject) -> None:
    lag, waiting, progress = details["lag_seconds"], details["rows_waiting"], details["progress"]
    fields = [
        ("trigger", details["name"]),
        ("declared", "yes" if details["declared"] else "no: only its state is left"),
        ("lease", shown_lease(details["lease"])),
        *([("stopped", details["stopped"])] if details["stopped"] else []),
        ("fencing token", "none yet" if details["fencing_token"] is None else str(details["fencing_token"])),
        ("checkpoint", shown_cursor(details["cursor"])),
        ("last commit", shown_time(details["updated_at"])),
        ("lag", "not known" if lag is None else f"{lag:g} s"),
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
    finds = ["inserts", *(kind for kind in ("updates", "deletes") if capability[f"detects_{kind}"])]
    safe = "no row is missed" if capability["safe_from_late_commits"] else "a row that commits late can be missed"
    matches = "matches the checkpoint" if source["matches_state"] else "differs from the checkpoint's: it will not run"
    return [
        ("source", f"{source['name']} ({source['kind']}): {', '.join(finds)}"),
        ("horizon", f"{capability['horizon']}: {safe}"),
        ("fingerprint", f"{source['fingerprint']}, {matches}"),
    ]
