"""``holdfast processor``: where processors stand, and what people do with them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..app import Holdfast
from ..core.clock import SystemClock
from ..core.errors import ConfigurationError, NotFoundError, OutboxError
from ..core.types import JsonObject
from ..outbox.message import Checkpoint
from ..outbox.operator import ProcessorView
from ..records.audit import present_user
from ..runtime.leased_part import LeasedPart
from ..runtime.supervisor import Supervisor
from .confirmation import YesOption, confirm, conflicts_refused
from .options import AppOption, JsonOption, argument, group, option
from .output import console, print_answer, print_json, print_line, print_note, print_table
from .records import app_with_tables, counted, shown_moment

processor_app = group("See where processors stand, and promote, rebuild, stop or move them.")

_LOOK_SECONDS = 0.2
_COLUMNS = ("processor", "role", "status", "checkpoint", "behind", "run by", "waiting", "last change")

_IdArgument = Annotated[str, argument(metavar="ID", help="The processor's id.")]
_SomeIdArgument = Annotated[str | None, argument(metavar="ID", help="Only this processor.")]
_VersionOption = Annotated[
    int | None, option("--version", metavar="N", min=1, help="Which version; the newest when left out.")
]
_ForceOption = Annotated[bool, typer.Option("--force", help="Although it has not caught up.")]
_RestartOption = Annotated[
    bool, typer.Option("--restart", help="Empty the tables and begin anew, although a rebuild is under way.")
]
_TablesOption = Annotated[
    list[str] | None,
    typer.Option("--truncate", metavar="TABLE", help="Empty this table first; may be given several times."),
]
_ToArgument = Annotated[str, argument(metavar="PLACE", help="beginning, end, or a checkpoint from a listing.")]
_FirstKeptOption = Annotated[
    str | None,
    typer.Option("--first-kept", metavar="PLACE", help="Begin with this message, although retention deleted others."),
]
_ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Shown in listings.")]


@processor_app.command("list")
def list_processors(app: AppOption = None, processor_id: _SomeIdArgument = None, as_json: JsonOption = False) -> None:
    """List the processors: who runs each, who waits for it, and how far it has come."""
    hf = app_with_tables(app)
    with _unknown_refused():
        views = hf.processors.operator.views(processor_id)
    held = hf.processors.operator.held_back_by()
    faults = {title: str(fault) for title, fault in hf.processors.faults().items()}
    if as_json:
        described = [{**described_processor(view), "does_not_run": faults.get(_title(view))} for view in views]
        shown_held = None if held is None else str(held)
        print_json({"processors": described, "held_back_by": shown_held, "does_not_run": faults})
        return
    if views:
        print_table(_COLUMNS, map(_row, views))
    else:
        print_line("No processor is registered. One is when it first runs.")
    if held is not None:
        print_line(f"Messages wait for {held}.")
    for view in views:
        if view.place.reason:
            print_line(f"{view.place.id}: {view.place.reason}")
    for title, fault in faults.items():
        print_line(f"{title}, as it is declared, does not run: {fault}")


def _title(view: ProcessorView) -> str:
    return f"Processor '{view.place.id.processor_id}' version {view.place.id.version}"


@processor_app.command("promote")
def promote(
    processor_id: _IdArgument,
    app: AppOption = None,
    version: _VersionOption = None,
    force: _ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put the version that runs beside the active one in its place. The other is retired and stops."""
    hf = app_with_tables(app)
    with conflicts_refused(), _unknown_refused():
        chosen = hf.processors.operator.promote(processor_id, version, actor=present_user(), force=force)
    print_answer({"processor_id": processor_id, "active_version": chosen}, as_json, f"Version {chosen} is active now.")


@processor_app.command("stop")
def stop(
    processor_id: _IdArgument,
    app: AppOption = None,
    reason: _ReasonOption = "stopped by hand",
    as_json: JsonOption = False,
) -> None:
    """Deliver nothing more until it is resumed. A batch that is being handled is finished first."""
    hf = app_with_tables(app)
    with _unknown_refused():
        count = hf.processors.operator.stop(processor_id, actor=present_user(), reason=reason)
    print_answer({"processor_id": processor_id, "stopped": count}, as_json, f"Stopped: {counted(count, 'partition')}.")


@processor_app.command("resume")
def resume(processor_id: _IdArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let a stopped processor go on."""
    hf = app_with_tables(app)
    with _unknown_refused():
        count = hf.processors.operator.resume(processor_id, actor=present_user())
    said = (
        f"Resumed: {counted(count, 'partition')}."
        if count
        else f"Processor '{processor_id}' was not stopped, it was running: it only looks again where it stands."
    )
    print_answer({"processor_id": processor_id, "resumed": count}, as_json, said)


@processor_app.command("reset")
def reset(
    processor_id: _IdArgument,
    place: _ToArgument,
    app: AppOption = None,
    version: _VersionOption = None,
    first_kept: _FirstKeptOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Move the checkpoint by hand: to the beginning, the end, or a checkpoint."""
    hf = app_with_tables(app)
    operator, accepted = hf.processors.operator, _parsed(first_kept)
    with conflicts_refused(), _unknown_refused():
        views = [view for view in operator.views(processor_id) if version in (None, view.place.id.version)]
        if not views:
            raise NotFoundError(f"Processor '{processor_id}' has no version {version}.")
        view = max(views, key=lambda found: found.place.id.version)
        target = (
            operator.end_of(view.place) if place == "end" else None if place == "beginning" else Checkpoint.parse(place)
        )
        if target is None:
            operator.require_everything(processor_id, view.place.id.version, accepted)
        again = operator.behind(view.place, target)
        confirm(
            f"Processor '{processor_id}' would go on {_shown_place(target)}: {counted(again, 'message')} from there, "
            f"{view.behind:,} from where it is now.",
            word=processor_id,
            what="the processor's id",
            yes=yes,
        )
        count = operator.reset(processor_id, target, actor=present_user(), version=version, first_kept=accepted)
    answer: JsonObject = {"processor_id": processor_id, "to": None if target is None else str(target), "moved": count}
    print_answer(answer, as_json, f"Moved: {counted(count, 'partition')}.")


@processor_app.command("forget")
def forget(
    processor_id: _IdArgument,
    app: AppOption = None,
    version: _VersionOption = None,
    yes: YesOption = False,
    force: Annotated[bool, typer.Option("--force", help="Although someone runs it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete what is stored of a processor that is no more, so that retention does not wait for it."""
    hf = app_with_tables(app)
    effect = f"The checkpoints of processor '{processor_id}' would be deleted; if it runs again, it starts anew."
    with conflicts_refused(), _unknown_refused():
        hf.processors.operator.views(processor_id)
        confirm(effect, word=processor_id, what="the processor's id", yes=yes)
        count = hf.processors.operator.forget(processor_id, version, actor=present_user(), force=force)
    print_answer(
        {"processor_id": processor_id, "forgotten": count}, as_json, f"Forgotten: {counted(count, 'partition')}."
    )


@processor_app.command("rebuild")
def rebuild(
    processor_id: _IdArgument,
    app: AppOption = None,
    truncate: _TablesOption = None,
    version: _VersionOption = None,
    restart: _RestartOption = False,
    first_kept: _FirstKeptOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Empty the tables a processor fills and deliver every message again.

    Both are one transaction. If this ends half-way, run it again: it goes on, and nothing is emptied twice.
    """
    hf = app_with_tables(app)
    processor = hf.processors.get(processor_id, version)
    hf.processors.register()
    operator, accepted = hf.processors.operator, _parsed(first_kept)
    tables = truncate or []
    is_under_way = operator.is_rebuilding(processor_id, processor.version) and not restart
    if not is_under_way:
        with conflicts_refused():
            operator.require_everything(processor_id, processor.version, accepted)
        emptied = (
            f"table {', '.join(tables)} would be emptied and "
            if tables
            else "NO table would be emptied (--truncate), so effects that are there already would double, and "
        )
        confirm(
            f"Processor '{processor_id}' version {processor.version}: {emptied}every message would be delivered again.",
            word=processor_id,
            what="the processor's id",
            yes=yes,
        )
    with conflicts_refused():
        began = operator.start_rebuild(
            processor_id,
            tables,
            actor=present_user(),
            version=processor.version,
            restart=restart,
            first_kept=accepted,
        )
    begun = "The tables are empty; replaying." if tables else "Replaying; no table was emptied."
    print_note(begun if began else "A rebuild is under way; going on with it.")
    replayed = _replay(hf, processor_id, processor.version)
    print_answer(
        {"processor_id": processor_id, "replayed": replayed}, as_json, f"Rebuilt: {counted(replayed, 'message')}."
    )


def _parsed(first_kept: str | None) -> Checkpoint | None:
    return None if first_kept is None else Checkpoint.parse(first_kept)


def _replay(hf: Holdfast, processor_id: str, version: int) -> int:
    """Run the processor beside whoever else does, show how far it is, and return how many messages there were."""
    operator, clock, pause = hf.processors.operator, SystemClock(), threading.Event()
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with _worker(hf, processor_id, version), Progress(*columns, console=console(stderr=True)) as bar:
        task = bar.add_task("replay", total=None)
        while True:
            progress = operator.rebuild_progress(processor_id, version)
            bar.update(task, completed=progress.done, total=progress.total)
            if progress.is_over:
                operator.end_rebuild(processor_id)
                return progress.total
            for view in operator.views(processor_id):
                if view.place.id.version == version and not view.place.may_run:
                    raise OutboxError(f"Processor {view.place.id} was stopped: {view.place.reason}. The rebuild waits.")
            clock.wait(pause, _LOOK_SECONDS)


@contextmanager
def _worker(hf: Holdfast, processor_id: str, version: int) -> Iterator[None]:
    stop = threading.Event()
    works = hf.processors.works(processor_id, version, stop)
    parts = [LeasedPart(work, stop, clock=SystemClock()) for work in works]
    thread = threading.Thread(target=Supervisor(parts, stop).run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _unknown_refused() -> Iterator[None]:
    try:
        yield
    except NotFoundError as error:
        raise ConfigurationError(f"{error} Nothing was changed. Look with 'holdfast processor list'.") from None


def described_processor(view: ProcessorView) -> JsonObject:
    """Return a partition of a processor as JSON."""
    place = view.place
    return {
        "processor_id": place.id.processor_id,
        "version": place.id.version,
        "partition": place.id.partition,
        "partitions": place.partitions,
        "order": place.reading_order,
        "role": place.role.value,
        "status": view.status,
        "reason": place.reason,
        "checkpoint": None if place.checkpoint is None else str(place.checkpoint),
        "behind": view.behind,
        "fencing_token": place.fencing_token,
        "run_by": view.holder,
        "lease_until": None if view.lease_until is None else view.lease_until.isoformat(),
        "waiting": view.waiting,
        "rebuild_to": None if place.rebuild_to is None else str(place.rebuild_to),
        "updated_at": place.updated_at.isoformat(),
    }


def _row(view: ProcessorView) -> tuple[str, ...]:
    place = view.place
    return (
        str(place.id),
        place.role.value,
        view.status,
        _shown_place(place.checkpoint),
        f"{view.behind:,}",
        view.holder or "nobody",
        ", ".join(view.waiting) or "nobody",
        shown_moment(place.updated_at),
    )


def _shown_place(checkpoint: Checkpoint | None) -> str:
    return "at the beginning" if checkpoint is None else f"behind {checkpoint}"
