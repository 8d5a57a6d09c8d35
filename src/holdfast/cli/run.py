"""``holdfast run`` and ``holdfast migrate``."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated, NoReturn

import typer

from ..app import Holdfast
from ..core.errors import DbError, WorkerDiedError
from ..database.migrations import Difference
from .exits import CommandError, ExitCode
from .loading import load_app
from .logs import configure_logging
from .options import AppArgument, JsonOption, VerboseOption, option
from .output import print_answer, print_error, print_line

_DrainOption = Annotated[
    float, typer.Option("--drain-seconds", min=0.0, help="How long running handlers may take to finish when stopping.")
]
_ConcurrencyOption = Annotated[
    int | None,
    option(
        "--concurrency",
        min=1,
        help="How many jobs run at once; as many as handlers have connections when left out. Engines declare theirs.",
    ),
]
_TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        help="Of the jobs, run those of this topic only; may be given several times. All else runs as ever.",
    ),
]
_StrictOption = Annotated[
    bool, typer.Option("--strict", help="End when something declared cannot run, instead of running the rest.")
]
_CheckOption = Annotated[
    bool, typer.Option("--check", help="Change nothing; say whether this version can work on the tables.")
]
_ToOption = Annotated[
    int | None,
    typer.Option(
        "--to",
        min=1,
        help="Let an older release start that refuses newer tables: forget that migrations after this number were "
        "applied. The tables stay as they are.",
    ),
]
_MigrateOption = Annotated[bool, typer.Option("--migrate", help="Create or upgrade Holdfast's tables first.")]


def run(
    app: AppArgument = None,
    drain_seconds: _DrainOption = 30.0,
    concurrency: _ConcurrencyOption = None,
    topic: _TopicsOption = None,
    migrate: _MigrateOption = False,
    strict: _StrictOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Run all that an application declares until SIGTERM or Ctrl-C, then let running handlers finish.

    What does not fit the database does not run, is logged as an error and tried again; everything else runs.

    Ends with 0 when all handlers finished, with 1 when one did not (its work is done again by the next worker), when a
    part of the worker died, or when nothing can run.
    """
    hf = load_app(app)
    configure_logging(verbose)
    if migrate:
        print_line(_shown_migrations(hf.migrate()))

    def started() -> None:
        for name in hf.triggers:
            print_line(_prepared(hf, name))
        for line in _prepared_jobs(hf, topic):
            print_line(line)
        for line in _prepared_processors(hf):
            print_line(line)
        for line in _prepared_engines(hf):
            print_line(line)
        print_line(f"Running in process {os.getpid()}. Stop with SIGTERM or Ctrl-C.")

    try:
        has_drained = hf.run(
            drain_seconds=drain_seconds, concurrency=concurrency, topics=topic, strict=strict, on_started=started
        )
    except WorkerDiedError as error:
        print_error(str(error))
        _leave_without_waiting()
    if has_drained:
        print_line("Stopped: every handler finished, and no lease is held any more.")
    else:
        print_error(
            f"A handler did not finish within {drain_seconds:g} s and was abandoned. Nothing of its work was "
            "committed; its lease was given up, and the next worker does the work again, except where the log says "
            "that the handler had ended its transaction itself."
        )
        _leave_without_waiting()


def migrate(
    app: AppArgument = None, check: _CheckOption = False, to: _ToOption = None, as_json: JsonOption = False
) -> None:
    """Create or upgrade Holdfast's tables. Safe to repeat, and safe while workers run.

    With --check nothing is changed: ends with 0 when this version can work on the tables, with 1 when it cannot yet,
    with 2 when they are those of a version too new for it.
    """
    hf = load_app(app)
    configure_logging()
    if check and to is not None:
        raise CommandError("Give --check or --to, not both.", ExitCode.WRONG_CONFIGURATION)
    if check:
        _check_tables(hf, as_json)
    elif to is not None:
        forgotten = hf.step_back(to)
        print_answer({"forgotten": forgotten}, as_json, _shown_way_back(forgotten, to))
    else:
        applied = hf.migrate()
        print_answer({"applied": applied, "up_to_date": not applied}, as_json, _shown_migrations(applied))


def _check_tables(hf: Holdfast, as_json: bool) -> None:
    found = hf.compared_tables()
    answer = {"up_to_date": not found.missing, "missing": found.missing, "newer": found.newer}
    print_answer(answer, as_json, _shown_check(found))
    if found.missing:
        raise typer.Exit(ExitCode.FAILED)


def _shown_check(found: Difference) -> str:
    if found.missing:
        return f"Missing: {', '.join(found.missing)}. Run 'holdfast migrate'; workers that run go on meanwhile."
    if found.newer:
        return f"The tables are those of a newer Holdfast ({', '.join(found.newer)}), and this one can work on them."
    return "The tables are up to date."


def _shown_way_back(forgotten: list[str], to: int) -> str:
    if not forgotten:
        return f"No migration after {to} was applied; nothing was changed."
    return (
        f"Forgotten: {', '.join(forgotten)}. The tables are as they were; releases that know migration {to} can start. "
        "'holdfast migrate' of this one applies them again."
    )


def _prepared(hf: Holdfast, name: str) -> str:
    """Return a line about a trigger that is about to run."""
    try:
        source = hf.runner(name).source
        descriptor, capability = source.source_descriptor, source.capability()
    except DbError as error:
        return f"Trigger {name}: does not run until this is mended: {error}"
    sentence = f"horizon {capability.horizon}, updates {capability.updates}"
    return f"Trigger {name}: reads {descriptor.name} ({descriptor.kind}), {sentence}"


def _prepared_processors(hf: Holdfast) -> list[str]:
    """Return a line about each processor: what it is about to read, or why it does not run."""
    faults = hf.processors.faults()
    return [
        f"Processor {item.id}: version {item.version}, "
        + (f"does not run: {faults[item.title]}" if item.title in faults else _shown_types(item.settings.types))
        for item in hf.processors.declared
    ]


def _prepared_jobs(hf: Holdfast, topics: list[str] | None) -> list[str]:
    """Return a line about each topic whose jobs are about to run, and about each periodic job."""
    found: dict[str, list[str]] = {}
    for item in hf.jobs.definitions:
        if topics is None or item.topic in topics:
            found.setdefault(item.topic, []).append(item.operation)
    jobs = [f"Topic {topic}: runs {', '.join(sorted(names))}" for topic, names in sorted(found.items())]
    return jobs + [f"Periodic {item.name}: '{item.cron}' {item.timezone}" for item in hf.jobs.periodics]


def _prepared_engines(hf: Holdfast) -> list[str]:
    """Return a line about each engine: whose messages are about to be taken, or why none are."""
    faults = hf.engines.faults_by_name()
    return [
        f"Engine {name}: does not run until this is mended: {faults[name]}"
        if name in faults
        else f"Engine {name}: takes {', '.join(operations)} from {next(iter(operations.values())).settings.queue}"
        for name, operations in hf.engines.declared.items()
    ]


def _shown_types(types: tuple[str, ...] | None) -> str:
    return "every message" if types is None else f"messages of type {', '.join(types)}"


def _shown_migrations(applied: list[str]) -> str:
    return f"Applied: {', '.join(applied)}" if applied else "The tables are up to date."


def _leave_without_waiting() -> NoReturn:
    """End the process although a handler still runs: a normal exit could wait for its threads for ever."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ExitCode.FAILED)
