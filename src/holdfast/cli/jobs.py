"""``holdfast jobs``: what is in the queue, and changing it by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from ..app import Holdfast
from ..core.errors import ConfigurationError
from ..core.types import JsonObject
from ..jobs.listing import JobFilter, ListedJob, find, jobs_by_id, topics_of
from ..jobs.model import JobId, JobStatus, TopicStats, item_id
from ..jobs.operator import cancel_jobs, pause_topic, refuse_messages, retry_jobs
from ..jobs.overview import NextRun
from ..jobs.store import job_store
from ..records.audit import present_user
from ..records.dead_letters import DeadLetter, DeadLetters
from ..records.history import History, HistoryEntry
from .confirmation import YesOption, confirm, conflicts_refused
from .dlq import LETTER_PAYLOAD
from .engine import engine_topics
from .filters import (
    DEFAULT_LIMIT,
    AfterOption,
    CorrelationOption,
    ErrorOption,
    FromOption,
    LimitOption,
    ToOption,
    job_number,
    status_option,
)
from .options import AppOption, JsonOption, argument, group, option
from .output import print_answer, print_fields, print_json, print_line, print_table
from .records import (
    TO_COPY,
    app_with_tables,
    counted,
    described_fields,
    described_in_listing,
    in_one_cell,
    print_page,
    shown_error,
    shown_fields,
    shown_moment,
)

jobs_app = group(
    "See the queue and change it. Messages that wait for engines are jobs, too: of the topic engine.QUEUE."
)

_COLUMNS = (
    *("id", "topic", "operation", "status", "attempt", "failures", "added", "due", "running for"),
    *("correlation id", "last error"),
)
_PAYLOAD = ("payload", "progress")
_SHOWN_STATUSES = [status for status in JobStatus if status is not JobStatus.DONE]  # what is done has succeeded

_TopicOption = Annotated[str | None, option("--topic", metavar="TOPIC", help="Only of this topic.")]
_StatusOption = Annotated[JobStatus | None, status_option(JobStatus)]
_TagOption = Annotated[str | None, option("--tag", metavar="TAG", help="Only with this tag.")]
_IdArgument = Annotated[int, argument(metavar="ID", parser=job_number, help="The job.")]
_IdsArgument = Annotated[list[int], argument(metavar="ID...", parser=job_number, help="The jobs.")]
_TopicArgument = Annotated[str, argument(metavar="TOPIC", help="The topic.")]
_ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; handlers and the history are told.")]


@jobs_app.command("list")
def list_jobs(
    app: AppOption = None,
    topic: _TopicOption = None,
    status: _StatusOption = None,
    tag: _TagOption = None,
    correlation_id: CorrelationOption = None,
    error: ErrorOption = None,
    since: FromOption = None,
    until: ToOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    after: AfterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, the newest first. Those that succeeded are in 'history list'. With --json without payloads.

    Messages that wait for an engine are listed as jobs of the topic engine.QUEUE, such as engine.hmac-queue.
    """
    hf = app_with_tables(app)
    wanted = JobFilter(
        topic=topic, status=status, tag=tag, correlation_id=correlation_id, error=error, since=since, until=until
    )
    page = find(hf.database, wanted, limit, after)
    print_page(page, _COLUMNS, _row, _described_job, nothing="No job in the queue fits.", as_json=as_json)


@jobs_app.command("show")
def show(job_id: _IdArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show one job and every attempt of it, also when it has ended."""
    hf = app_with_tables(app)
    item = item_id(JobId(job_id))
    job = jobs_by_id(hf.database, [JobId(job_id)]).get(JobId(job_id))
    attempts = History(hf.database).of_item(item)
    letters = DeadLetters(hf.database).of_item(item)
    if job is None and not attempts and not letters:
        raise ConfigurationError(
            f"There is no job {job_id}: not in the queue, the history or the dead letters. It may be past its "
            "retention; look with 'holdfast jobs list'."
        )
    if as_json:
        print_json(_described(job_id, job, attempts, letters))
    else:
        _print_job(job_id, job, attempts, letters)


@jobs_app.command("retry")
def retry(job_ids: _IdsArgument, app: AppOption = None, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Let dead, cancelled or scheduled jobs run now: the same jobs, their attempts counted on."""
    ids = _unique(job_ids)
    store = job_store(app_with_tables(app).database)
    with conflicts_refused():  # before anything is asked
        refuse_messages(topics_of(store.engine, ids))
    if len(ids) > 1:
        confirm(f"{counted(len(ids), 'job')} would be retried.", word=str(len(ids)), what="how many", yes=yes)
    with conflicts_refused():
        retry_jobs(store, ids, present_user())
    print_answer({"retried": ids}, as_json, f"Put back: {_shown_ids(ids)}.")


@jobs_app.command("cancel")
def cancel(
    job_ids: _IdsArgument,
    app: AppOption = None,
    reason: _ReasonOption = "cancelled by hand",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Cancel waiting jobs at once, and ask the workers of running ones to stop."""
    ids = _unique(job_ids)
    store = job_store(app_with_tables(app).database)
    found = topics_of(store.engine, ids)
    with conflicts_refused():  # before anything is asked
        refuse_messages(found)
    topics = sorted(set(found.values()))
    if found:
        effect = f"{counted(len(ids), 'job')} of {', '.join(topics)} would be cancelled."
        word, what = (topics[0], "the topic") if len(topics) == 1 else (str(len(ids)), "how many")
        confirm(effect, word=word, what=what, yes=yes)
    with conflicts_refused():
        changed = cancel_jobs(store, ids, reason, present_user())
    if as_json:
        print_json({"cancelled": [{"id": job_id, "status": status.value} for job_id, status in changed.items()]})
        return
    for job_id, status in sorted(changed.items()):
        is_running = status is JobStatus.RUNNING
        print_line(f"Job {job_id}: {'its worker was asked to stop' if is_running else 'cancelled'}.")


@jobs_app.command("stats")
def stats(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Count the jobs of every topic by status; the topic engine.QUEUE has the messages that wait for an engine.

    'succeeded' counts what the history has, up to 100,000. 'no worker' counts the ready ones, by operation, that no
    live worker has announced that it can run, and those that wait for another version of their handler.
    """
    found = _topic_stats(app_with_tables(app))
    if as_json:
        print_json(found)
    elif found:
        statuses = (status.value for status in _SHOWN_STATUSES)
        columns = ("topic", *statuses, "succeeded", "oldest ready", "no worker", "paused")
        print_table(columns, map(_stats_row, found))
    else:
        print_line("There are no jobs, and no topic was declared.")


@jobs_app.command("periodic")
def periodic(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List the periodic jobs of the application and when each runs next. Slots that were missed run as one."""
    found = app_with_tables(app).jobs.next_runs()
    if as_json:
        print_json([described_fields(run) for run in found])
    elif found:
        print_table(("name", "schedule", "topic", "operation", "last slot", "next run"), map(_periodic_row, found))
    else:
        print_line("No periodic job is declared. Declare one with hf.periodic(…).")


@jobs_app.command("pause")
def pause(topic: _TopicArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let no more jobs of a topic start; those that run go on. The topic engine.QUEUE pauses an engine."""
    _set_paused(app_with_tables(app), topic, True, as_json)


@jobs_app.command("resume")
def resume(topic: _TopicArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let the jobs of a paused topic, or the messages of a paused engine, start again."""
    _set_paused(app_with_tables(app), topic, False, as_json)


def _set_paused(hf: Holdfast, topic: str, is_paused: bool, as_json: bool) -> None:
    declared = {item.topic for item in hf.jobs.definitions} | set(engine_topics(hf).values())
    changed = pause_topic(job_store(hf.database), topic, is_paused, present_user(), declared)
    if as_json:
        print_json({"topic": topic, "paused": is_paused, "changed": changed})
    else:
        state = "paused" if is_paused else "not paused"
        print_line(f"Topic '{topic}' is {state}{'' if changed else ' already'}.")


def _topic_stats(hf: Holdfast) -> list[JsonObject]:
    are_here = hf.engines.are_in_database
    engines = {topic: name if are_here else None for name, topic in engine_topics(hf).items()}
    paused = {topic.name: topic.is_paused for topic in job_store(hf.database).topics()}
    counts = {stats.topic: stats for stats in hf.jobs.stats(engines)}
    names = sorted({*paused, *counts})
    return [_described_stats(counts.get(name, TopicStats(name)), paused.get(name, False)) for name in names]


def _described_stats(stats: TopicStats, is_paused: bool) -> JsonObject:
    oldest = stats.oldest_ready_seconds
    return {
        "topic": stats.topic,
        **{status.value: stats.jobs.get(status, 0) for status in JobStatus},
        "succeeded": stats.succeeded,
        "oldest_ready_seconds": None if oldest is None else round(max(0.0, oldest), 3),
        "without_worker": stats.without_worker,
        "paused": is_paused,
    }


def _stats_row(stats: JsonObject) -> tuple[str, ...]:
    oldest = stats["oldest_ready_seconds"]
    return (
        stats["topic"],
        *(f"{stats[status.value]:,}" for status in _SHOWN_STATUSES),
        "" if stats["succeeded"] is None else f"{stats['succeeded']:,}",
        "" if oldest is None else f"{oldest:,.0f} s",
        ", ".join(f"{operation} {jobs:,}" for operation, jobs in sorted(stats["without_worker"].items())),
        "yes" if stats["paused"] else "",
    )


def _periodic_row(run: NextRun) -> tuple[str, ...]:
    last = "no worker has seen it yet" if run.last_slot is None else shown_moment(run.last_slot)
    schedule = f"{run.cron} ({run.timezone})"
    return run.name, schedule, run.topic, run.operation, last, shown_moment(run.next_slot)


def _described(
    job_id: int, job: ListedJob | None, attempts: list[HistoryEntry], letters: list[DeadLetter]
) -> JsonObject:
    return {
        "id": job_id,
        "job": None if job is None else described_fields(job),
        "attempts": [{"row_key": entry.row_key, **described_fields(entry)} for entry in attempts],
        "dead_letters": [described_fields(letter, without=LETTER_PAYLOAD) for letter in letters],
    }


def _print_job(job_id: int, job: ListedJob | None, attempts: list[HistoryEntry], letters: list[DeadLetter]) -> None:
    if job is not None:
        print_fields(shown_fields(described_fields(job)))
    else:
        print_fields([("id", str(job_id)), ("status", _end_of(attempts, letters))])
    if attempts:
        rows = [
            (str(entry.attempt), shown_moment(entry.created_at), entry.status.value, f"{entry.duration_ms:,} ms")
            for entry in attempts
        ]
        texts = [in_one_cell(entry.error or entry.output) for entry in attempts]
        print_table(
            ("attempt", "ended", "status", "took", "error or result"),
            [(*row, text) for row, text in zip(rows, texts, strict=True)],
        )
    if letters:
        print_table(
            ("dead letter", "status", "engine", "row key"),
            [(shown_moment(item.last_failure_at), item.status.value, item.engine, item.row_key) for item in letters],
            whole=TO_COPY,
        )


def _end_of(attempts: list[HistoryEntry], letters: list[DeadLetter]) -> str:
    """Return how a job that left the queue ended."""
    if attempts:
        return f"ended, {attempts[-1].status.value}: no longer in the queue"
    return f"dead letter, {letters[-1].status.value}: no longer in the queue"


def _described_job(job: ListedJob) -> JsonObject:
    return described_in_listing(job, _PAYLOAD)


def _row(job: ListedJob) -> tuple[str, ...]:
    most = "" if job.max_attempts is None else f" of {job.max_attempts}"
    return (
        str(job.id),
        job.topic,
        job.operation,
        "under test" if job.is_tested else job.status.value,
        str(job.attempt),
        f"{job.failures}{most}",
        shown_moment(job.created_at),
        shown_moment(job.run_at) if job.status is JobStatus.SCHEDULED else "",
        "" if job.running_seconds is None else _shown_seconds(job.running_seconds),
        job.correlation_id,
        shown_error(job.last_error),
    )


def _shown_seconds(seconds: float) -> str:
    """Return how long something has taken so far, as people say it."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _unique(job_ids: list[int]) -> list[JobId]:
    return [JobId(job_id) for job_id in sorted(set(job_ids))]


def _shown_ids(ids: list[JobId]) -> str:
    return f"job{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"
