"""Moving a trigger's checkpoint by hand, with guardrails: look first, then name the trigger, then one audited write."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import ConfigurationError, DbError, RestoredSourceError
from ..core.types import JsonObject, SourceDescriptor
from ..lease import document as doc
from ..lease import reset as kernel
from ..lease.history import Fit
from ..lease.reset import AuditEntry
from ..lease.store import StateStore
from ..trigger.operator import audited_state, moved, resume_audited
from ..trigger.source_history import SourceHistory
from ..trigger.sources.protocol import SourceAdapter
from .confirmation import confirm
from .options import AppOption, JsonOption, TriggerName, argument
from .output import print_answer, print_json, print_line, shown_cursor
from .records import app_with_tables, audit_database
from .trigger import trigger_app
from .trigger_views import CountingSource, Poller, TypableSource, described_audit, find_poller

_LONGEST_LEASE_SECONDS = 120.0

_YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for the trigger's name to be typed.")]
_DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show how many rows would be delivered.")]


@dataclass(frozen=True, slots=True)
class Guard:
    """How a change is confirmed, tried out and reported."""

    yes: bool
    dry_run: bool
    as_json: bool


@dataclass(frozen=True, slots=True)
class Preview:
    """What a change would deliver. Counts are None where the source cannot count."""

    rows_after: int | None
    rows_again: int | None
    rows_skipped: int | None

    def sentence(self) -> str:
        """Return it for people."""
        if self.rows_after is None:
            return "How many rows would be delivered cannot be told: the source does not count."
        parts = [f"{_rows(self.rows_after)} would be delivered from there"]
        if self.rows_again:
            parts.append(f"{self.rows_again:,} of them again")
        if self.rows_skipped:
            parts.append(f"{_rows(self.rows_skipped)} now waiting would NOT be delivered")
        return ", ".join(parts) + "."


@trigger_app.command("reset-to-beginning")
def reset_to_beginning(
    name: TriggerName,
    app: AppOption = None,
    yes: _YesOption = False,
    dry_run: _DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Deliver every row again."""
    poller = _poller(app, name)
    source = poller.source()
    apply = partial(kernel.reset_to_beginning, poller_name=name, source=_descriptor(source))
    _change(poller, "reset-to-beginning", source, {}, apply, Guard(yes, dry_run, as_json))


@trigger_app.command("reset-to-cursor")
def reset_to_cursor(
    name: TriggerName,
    value: Annotated[str, argument(metavar="VALUE", help="The cursor column's value.")],
    key: Annotated[
        list[str],
        typer.Option("--key", "-k", metavar="PART", help="A key column's value, in order; once per key column."),
    ],
    app: AppOption = None,
    yes: _YesOption = False,
    dry_run: _DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue behind the row with this cursor value and key."""
    poller = _poller(app, name)
    source = poller.source()
    if not isinstance(source, TypableSource):
        raise ConfigurationError(
            f"The cursor of '{name}' cannot be typed: the application does not declare it over a SQL table or query."
        )
    cursor = source.cursor_from_text(value, key)
    apply = partial(kernel.reset_to_cursor, poller_name=name, cursor=cursor, source=_descriptor(source))
    _change(poller, "reset-to-cursor", source, {"cursor": cursor.to_json()}, apply, Guard(yes, dry_run, as_json))


@trigger_app.command("reset-to-checkpoint")
def reset_to_checkpoint(
    name: TriggerName,
    file: Annotated[Path, argument(metavar="FILE", help="A state document, as 'trigger show --json' prints it.")],
    app: AppOption = None,
    yes: _YesOption = False,
    dry_run: _DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue at the checkpoint kept in a file."""
    poller = _poller(app, name)
    source = poller.source()
    apply = partial(kernel.reset_to_checkpoint, poller_name=name, file=file, source=_descriptor(source))
    checkpoint = kernel.checkpoint_from_file(file, kernel.accepted_sources(poller.store, name, _descriptor(source)))
    _change(poller, "reset-to-checkpoint", source, checkpoint, apply, Guard(yes, dry_run, as_json))


@trigger_app.command("adopt")
def adopt(
    name: TriggerName,
    app: AppOption = None,
    yes: _YesOption = False,
    dry_run: _DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Keep the place after the source was restored, or moved to a database of another name.

    What was delivered is not delivered again; rows that the restore has taken back and that come anew below the place
    are missed.
    """
    poller = _poller(app, name)
    source = poller.source()
    history = SourceHistory.of(name, source, poller.store)
    if poller.view is None or _fits(poller, source, history):
        raise ConfigurationError(f"The checkpoint of trigger '{name}' fits its source, so there is nothing to adopt.")
    present = None if history is None else history.to_adopt(poller.view.document)
    apply = partial(kernel.adopt, poller_name=name, source=_descriptor(source), history=present)
    _change(poller, "adopt", source, poller.checkpoint, apply, Guard(yes, dry_run, as_json))


def _fits(poller: Poller, source: SourceAdapter | None, history: SourceHistory | None) -> bool:
    document = {} if poller.view is None else poller.view.document
    if source is not None and not doc.is_of_source(document, source.source_descriptor):
        return False
    try:
        finding = None if history is None else history.finding(document)
    except RestoredSourceError:
        return False
    return finding is None or finding.fit is Fit.SAME


@trigger_app.command("undo")
def undo(
    name: TriggerName,
    app: AppOption = None,
    yes: _YesOption = False,
    dry_run: _DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put back the checkpoint from before the last change by hand. Undoing twice gives the change back."""
    poller = _poller(app, name)
    last = poller.last_change()
    if last is None:
        raise ConfigurationError(f"There is nothing to undo for trigger '{name}': its checkpoint was never changed.")
    checkpoint = (last.before or {}).get("checkpoint") or {}
    apply = partial(kernel.undo, poller_name=name)
    _change(poller, "undo", poller.source(), checkpoint, apply, Guard(yes, dry_run, as_json))


@trigger_app.command("resume")
def resume(name: TriggerName, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let a trigger that was stopped deliver again, from where it stands."""
    poller = _poller(app, name)
    entry = resume_audited(poller.store, audit_database(poller.hf), name)
    if entry is None:
        raise ConfigurationError(f"Trigger '{name}' is not stopped, so there is nothing to resume.")
    print_answer(
        described_audit(entry),
        as_json,
        f"Trigger '{name}' may run again; its checkpoint: {shown_cursor(poller.checkpoint.get('cursor'))}.",
    )


@trigger_app.command("clone")
def clone(
    name: TriggerName,
    new_name: Annotated[str, argument(metavar="NEW_NAME", help="The trigger that shall start there.")],
    app: AppOption = None,
    yes: _YesOption = False,
    dry_run: _DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let another trigger start at this one's checkpoint. This one is not changed."""
    poller = _poller(app, name)
    if poller.store.read(new_name) is not None:
        raise ConfigurationError(f"Trigger '{new_name}' has state already; nothing was changed. Choose another name.")
    guard = Guard(yes, dry_run, as_json)
    waiting = _counted(poller.source(), poller.checkpoint)
    preview = Preview(waiting, None, None)
    target = f"'{new_name}' will start {_position(poller.checkpoint)}"
    if dry_run:
        _print_dry_run(name, "clone", preview, target, guard)
        return
    _confirm(name, f"{target}: {preview.sentence()}", guard)
    with _audited(poller, "clone", {"to_trigger": new_name}) as store:
        entry = kernel.clone_checkpoint(store, name, new_name)
    _print_done(entry, preview, guard, undo_command=None)


def _poller(app: str | None, name: str) -> Poller:
    hf = app_with_tables(app)
    return find_poller(hf, name)


def _audited(poller: Poller, command: str, details: JsonObject) -> AbstractContextManager[StateStore]:
    """Return the state to change by hand; the change is written down. Where there is no audit, that is said."""
    return audited_state(poller.store, audit_database(poller.hf), command, poller.name, details)


def _change(
    poller: Poller,
    command: str,
    source: SourceAdapter | None,
    checkpoint: JsonObject,
    apply: Callable[[StateStore], AuditEntry],
    guard: Guard,
) -> None:
    """Show what a change of the checkpoint does, ask, make it, and say how to undo it.

    Raises:
        LeaseConflictError: a worker holds the lease.
        CommandError: it was not confirmed.
    """
    preview = _previewed(poller, source, checkpoint)
    target = f"'{poller.name}' will continue {_position(checkpoint)}"
    if guard.dry_run:
        _print_dry_run(poller.name, "reset", preview, target, guard)
        return
    _refuse_live_lease(poller, checkpoint)
    _confirm(poller.name, f"{target}: {preview.sentence()}", guard)
    with _audited(poller, command, moved(poller.checkpoint, checkpoint)) as store:
        entry = apply(store)
    _print_done(entry, preview, guard, undo_command=f"holdfast trigger undo {poller.name}")


def _previewed(poller: Poller, source: SourceAdapter | None, checkpoint: JsonObject) -> Preview:
    after = _counted(source, checkpoint)
    try:
        waiting = None if after is None else _counted(source, poller.checkpoint)
    except DbError:  # the checkpoint to be left behind need not fit the source: that may be why it is left
        waiting = None
    if after is None or waiting is None:
        return Preview(after, None, None)
    return Preview(after, max(0, after - waiting), max(0, waiting - after))


def _counted(source: SourceAdapter | None, checkpoint: JsonObject) -> int | None:
    return source.count_after(checkpoint) if isinstance(source, CountingSource) else None


def _refuse_live_lease(poller: Poller, checkpoint: JsonObject) -> None:
    """Rehearse the change before anybody is asked; the write itself checks again."""
    if poller.view is not None:
        doc.reset(
            poller.view.document,
            checkpoint,
            poller_name=poller.name,
            source=None,
            reset_id="rehearsal",
            skew_margin=poller.store.skew_margin(_LONGEST_LEASE_SECONDS),
            now=poller.view.read_at,
        )


def _confirm(name: str, effect: str, guard: Guard) -> None:
    confirm(effect, word=name, what="the trigger's name", yes=guard.yes)


def _print_dry_run(name: str, command: str, preview: Preview, target: str, guard: Guard) -> None:
    if guard.as_json:
        print_json({"trigger": name, "command": command, "dry_run": True, **asdict(preview)})
    else:
        print_line(f"{target}: {preview.sentence()} Nothing was changed (dry run).")


def _print_done(entry: AuditEntry, preview: Preview, guard: Guard, *, undo_command: str | None) -> None:
    if guard.as_json:
        report = {"trigger": entry.poller_name, "dry_run": False, **asdict(preview), "undo": undo_command}
        print_json(report | described_audit(entry))
        return
    print_line(f"Done: '{entry.poller_name}' stands {_position(entry.checkpoint_after)}. Audit id {entry.audit_id}.")
    if undo_command:
        print_line(f"Undo with: {undo_command}")


def _position(checkpoint: JsonObject) -> str:
    cursor = checkpoint.get("cursor")
    return "at the beginning" if cursor is None else f"behind {shown_cursor(cursor)}"


def _rows(count: int) -> str:
    return f"{count:,} row" if count == 1 else f"{count:,} rows"


def _descriptor(source: SourceAdapter | None) -> SourceDescriptor | None:
    return None if source is None else source.source_descriptor
