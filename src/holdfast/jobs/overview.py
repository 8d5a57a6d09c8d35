"""What people want to know of the queue as a whole: successes, live workers, and when periodic jobs run next.

Reading only, and apart from the store's statements: these queries need not be fast, only harmless.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Integer, String, column, select, table
from sqlalchemy.engine import Engine

from ..core.moments_ahead import TOLERATED_SECONDS
from ..records.database import reading
from ..records.history import History
from ..records.times import UtcMoment, database_now
from .model import TopicStats
from .periodic import Periodic, row_of
from .stores.base import ALIVE_SECONDS, SqlJobStore

MOST_SUCCESSES = 100_000
_HISTORY_OF = "jobs:{}"

_workers = table(
    "holdfast_workers",
    column("id", String),
    column("host", String),
    column("pid", Integer),
    column("operations", String),
    column("started_at", UtcMoment),
    column("seen_at", UtcMoment),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorker:
    """A worker of jobs and engines that was seen lately; ``operations`` by topic, None for any of a topic."""

    id: str
    host: str
    pid: int
    operations: dict[str, list[str] | None]
    started_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """When a periodic job runs next; ``last_slot`` is None until a worker has seen it. A slot in the past is due."""

    name: str
    cron: str
    timezone: str
    topic: str
    operation: str
    last_slot: datetime | None
    next_slot: datetime


def live_workers(engine: Engine) -> list[LiveWorker]:
    """Return the workers that were seen within the last three announcements, the oldest first."""
    with reading(engine) as connection:
        now = database_now(connection)
        is_alive = _workers.c.seen_at.between(
            now - timedelta(seconds=ALIVE_SECONDS), now + timedelta(seconds=TOLERATED_SECONDS)
        )
        query = select(_workers).where(is_alive).order_by(_workers.c.started_at, _workers.c.id)
        rows = connection.execute(query).mappings().all()
    return [LiveWorker(**{**row, "operations": json.loads(row["operations"])}) for row in rows]


def next_runs(store: SqlJobStore, periodics: Sequence[Periodic]) -> list[NextRun]:
    """Return when each periodic job runs next, the soonest first. What was missed runs as soon as a worker is there."""
    now, places = store.now(), store.places()
    found = [(each, places.get(row_of(each.name, store.application, places))) for each in periodics]
    return sorted(
        (_next_run(each, None if place is None else place.last_slot, now) for each, place in found), key=_by_time
    )


def _next_run(periodic: Periodic, last_slot: datetime | None, now: datetime) -> NextRun:
    due = None if last_slot is None else periodic.latest_slot(last_slot, now)
    new_job = periodic.job_at(now)
    return NextRun(
        name=periodic.name,
        cron=periodic.cron,
        timezone=periodic.timezone,
        topic=new_job.topic,
        operation=new_job.operation,
        last_slot=last_slot,
        next_slot=due or periodic.next_after(now),
    )


def _by_time(run: NextRun) -> tuple[datetime, str]:
    return run.next_slot, run.name


def with_successes(
    engine: Engine, found: Sequence[TopicStats], topics: Iterable[str], engines: Mapping[str, str | None]
) -> list[TopicStats]:
    """Return the counts of topics with their successes; of ``topics`` also those that have nothing else.

    ``engines`` says which topics hold messages, and under which name their history is; None when it is elsewhere.
    """
    history, by_topic = History(engine), {stats.topic: stats for stats in found}
    counted: list[TopicStats] = []
    for topic in sorted({*by_topic, *topics}):
        name = engines.get(topic, _HISTORY_OF.format(topic))
        succeeded = None if name is None else history.count_succeeded(name, MOST_SUCCESSES)
        if topic in by_topic or succeeded:
            counted.append(replace(by_topic.get(topic, TopicStats(topic)), succeeded=succeeded))
    return counted
