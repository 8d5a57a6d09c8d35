"""An application's jobs: what is declared, the queue they wait in, and the worker that runs them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Engine

from ..core.clock import Clock
from ..core.errors import ConfigurationError
from ..core.keywords import options_of, picked, require_known, takes
from ..core.telemetry import MetricsCollector
from ..database.budget import PoolName
from ..database.pools import Pools
from ..records.history import History, HistoryStatus
from ..runtime.housekeeping import Chore, pruning
from .declared_limits import declare_limits
from .definition import BoundJob, JobDefinition
from .model import JobId, JobStatus, JobView, TopicLimits, TopicStats, item_id
from .overview import LiveWorker, NextRun, live_workers, next_runs, with_successes
from .payload import MAX_PAYLOAD_BYTES
from .periodic import Periodic, PeriodicEnqueuer
from .running import JobHandler
from .settings import (
    AttemptSettings,
    JobSettings,
    LimitSettings,
    WorkerSettings,
    checked_job_id,
    checked_topic,
    limits_of,
)
from .store import job_store
from .stores.base import SqlJobStore
from .worker import JobWorker
from .wrong_clock import QueueMoments

if TYPE_CHECKING:
    from typing import Unpack

    from .options import JobOptions

_LOOK_SECONDS = 60.0
_PRUNED_AT_ONCE = 1000
_ENDED_JOBS_SECONDS = 90 * 86_400.0


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: done with what its handler returned, or dead or cancelled with why."""

    status: JobStatus
    value: Any
    error: str | None


class Jobs:
    """The jobs of one application. Nothing connects until something is enqueued or run.

    Args:
        pools: the database: the queue, its beats and ``context.transaction`` each have a pool.
        application: whose limits and periodic jobs these are.
    """

    def __init__(
        self,
        pools: Pools,
        *,
        clock: Clock,
        metrics: MetricsCollector | None = None,
        application: str | None = None,
    ) -> None:
        self._application = application
        self._pools = pools
        self._clock = clock
        self._metrics = metrics
        self._store: SqlJobStore | None = None
        self._definitions: dict[tuple[str, str], JobDefinition] = {}
        self._periodics: dict[str, Periodic] = {}

    @property
    def definitions(self) -> list[JobDefinition]:
        """Return the declared jobs."""
        return list(self._definitions.values())

    @property
    def store(self) -> SqlJobStore:
        """Return the queue."""
        if self._store is None:
            self._store = self._store_on(PoolName.WORK)
        return self._store

    def database(self) -> Engine:
        """Return the pool of the queue, apart from that of the handlers."""
        return self.store.engine

    @property
    def serving_store(self) -> SqlJobStore:
        """Return the queue for what remote workers report, in a process that runs no handlers."""
        return self._store_on(PoolName.SERVING)

    def _store_on(self, name: PoolName) -> SqlJobStore:
        listening = self._pools.engine(PoolName.LISTENING)
        return job_store(self._pools.engine(name), application=self._application, listening=listening)

    @takes(AttemptSettings, LimitSettings, name=None, max_payload_bytes=MAX_PAYLOAD_BYTES)
    def job(
        self, topic: str = "default", **options: Unpack[JobOptions]
    ) -> Callable[[Callable[..., Any]], JobDefinition]:
        """Make the decorated function, ``def`` or ``async def``, a job.

        A first parameter named ``context`` gets the ``JobContext``; the others are the payload. ``name`` (the
        function's own when left out) is what its jobs are stored under, so it should not change. An attempt that runs
        longer than ``max_seconds`` has failed. ``transactional`` says that it has no effects but those in
        ``context.transaction``: what the database undoes begins again then, also with ``max_attempts=1``. The limits
        are the topic's: declare them on one of its jobs.

        Raises:
            ConfigurationError: the declaration is wrong.
        """
        if callable(topic):
            raise ConfigurationError("Write @hf.job() with parentheses, or @hf.job(topic=…).")
        require_known("job", options, AttemptSettings, LimitSettings, others=("name", "max_payload_bytes"))
        limits = limits_of(**options_of(LimitSettings, picked(LimitSettings, options)))
        attempts = picked(AttemptSettings, options)
        settings = JobSettings(limits=limits, **options_of(AttemptSettings, attempts))

        def register(function: Callable[..., Any]) -> JobDefinition:
            definition = JobDefinition(
                function,
                topic=topic,
                store=lambda: self.store,
                operation=options.get("name"),
                settings=settings,
                max_payload_bytes=options.get("max_payload_bytes", MAX_PAYLOAD_BYTES),
            )
            self._add(definition)
            return definition

        return register

    def periodic(
        self,
        job: JobDefinition | BoundJob,
        cron: str,
        *,
        timezone: str = "UTC",
        name: str | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> Periodic:
        """Enqueue a job at every slot of a cron expression, once across all workers.

        ``name`` (the job's own when left out) is what its place is remembered by, so it should not change.

        Raises:
            ConfigurationError: the expression, the zone or the name cannot be used.
            PayloadError: the arguments do not fit the handler.
        """
        definition = job.definition if isinstance(job, BoundJob) else job
        if not isinstance(definition, JobDefinition):
            raise ConfigurationError(f"Only a job can be periodic, and {job!r} is none. Decorate it with @hf.job().")
        periodic = Periodic(name or definition.operation, cron, timezone, job, arguments or {})
        if periodic.name in self._periodics:
            raise ConfigurationError(
                f"There are two periodic jobs named '{periodic.name}'. Pass name=… to one of them."
            )
        self._periodics[periodic.name] = periodic
        return periodic

    @property
    def periodics(self) -> list[Periodic]:
        """Return the declared periodic jobs."""
        return list(self._periodics.values())

    def _add(self, definition: JobDefinition) -> None:
        key = (definition.topic, definition.operation)
        if key in self._definitions:
            raise ConfigurationError(
                f"There are two jobs named '{definition.operation}' in topic '{definition.topic}'. Pass name=… to one."
            )
        for other in self._definitions.values():
            declared, wanted = other.settings.limits, definition.settings.limits
            if other.topic == definition.topic and declared.is_limited and wanted.is_limited and declared != wanted:
                raise ConfigurationError(
                    f"The jobs '{other.operation}' and '{definition.operation}' declare different limits for topic "
                    f"'{definition.topic}'. Declare them once."
                )
        self._definitions[key] = definition

    def worker(
        self,
        stop: threading.Event,
        settings: WorkerSettings,
        topics: Collection[str] | None = None,
        *,
        others: Sequence[JobHandler] = (),
    ) -> JobWorker:
        """Return a worker for the declared jobs, or for those of some topics, and for other handlers.

        Raises:
            ConfigurationError: a topic has no job.
        """
        unknown = sorted(set(topics or ()) - {item.topic for item in self.definitions})
        if unknown:
            known = ", ".join(sorted({item.topic for item in self.definitions})) or "none"
            raise ConfigurationError(f"No job is declared for topic '{unknown[0]}'. Topics with jobs: {known}.")
        chosen = [item for item in self.definitions if topics is None or item.topic in topics]
        self._declare_limits(chosen)
        return JobWorker(
            self.store,
            [*chosen, *others],
            stop,
            keeper_store=self._store_on(PoolName.BEATS),
            transaction_engine=self._pools.engine(PoolName.HANDLERS),
            settings=settings,
            metrics=self._metrics,
            clock=self._clock,
        )

    def chores(self) -> list[Chore]:
        """Return what some process must do now and then: enqueue periodic jobs, forget those that ended long ago."""
        periodic = PeriodicEnqueuer(self.store, self.periodics, self._clock)
        moments = QueueMoments(self.store, self._clock)
        return [
            Chore("enqueuing periodic jobs", periodic.tick, _LOOK_SECONDS),
            Chore("looking for moments ahead", moments.look, _LOOK_SECONDS, may_take_long=True),
            pruning("forgetting ended jobs", lambda: self.store.prune(_ENDED_JOBS_SECONDS), _PRUNED_AT_ONCE),
        ]

    def declare_limits(self) -> None:
        """Write down the limits of every declared topic, as a worker does before it claims."""
        self._declare_limits(self.definitions)

    def _declare_limits(self, definitions: Sequence[JobDefinition]) -> None:
        """Write down the limits of each topic, also that it has none any more."""
        limits = {item.topic: TopicLimits() for item in definitions}
        limits |= {item.topic: item.settings.limits for item in definitions if item.settings.limits.is_limited}
        declare_limits(self.store, limits)

    def cancel(self, *ids: int, reason: str = "cancelled by the application") -> dict[JobId, JobStatus]:
        """Cancel waiting jobs, ask running ones to stop; return what was changed and its status now."""
        return self.store.cancel([_checked_id(number) for number in ids], reason)

    def retry(self, *ids: int, actor: str = "application") -> set[JobId]:
        """Let dead, cancelled or waiting jobs run now, and resolve their dead letters."""
        return self.store.retry([_checked_id(number) for number in ids], actor)

    def get(self, job_id: int) -> JobView | None:
        """Return a job that has not ended, or ended dead or cancelled. What succeeded is in the history."""
        return self.store.get(_checked_id(job_id))

    def result(self, job_id: int) -> JobResult | None:
        """Return how a job ended, None while it has not. A dead or cancelled one may still be put back by hand."""
        entries = History(self.store.engine).of_item(item_id(_checked_id(job_id)))
        for entry in reversed(entries):
            if entry.status is HistoryStatus.SUCCEEDED:
                return JobResult(JobStatus.DONE, None if entry.output is None else json.loads(entry.output), None)
        found = self.get(job_id)
        if found is None or found.status not in (JobStatus.DEAD, JobStatus.CANCELLED):
            return None
        return JobResult(found.status, None, entries[-1].error if entries else None)

    def pause(self, topic: str) -> None:
        """Let nothing of a topic be claimed; what runs goes on."""
        self.store.pause(checked_topic("Topic", topic), True)

    def resume(self, topic: str) -> None:
        """Undo ``pause``."""
        self.store.pause(checked_topic("Topic", topic), False)

    def stats(self, engines: Mapping[str, str | None] | None = None) -> list[TopicStats]:
        """Return how many jobs of each topic are in each status, and how many have succeeded.

        ``engines`` says which topics hold messages of engines, and under which name their history is.
        """
        topics = {*(item.topic for item in self.definitions), *(topic.name for topic in self.store.topics())}
        known = engines or {}
        return with_successes(self.store.engine, self.store.stats(), topics | known.keys(), known)

    def workers(self) -> list[LiveWorker]:
        """Return the workers that are alive: those seen within the last three announcements."""
        return live_workers(self.store.engine)

    def next_runs(self) -> list[NextRun]:
        """Return when each declared periodic job runs next, the soonest first."""
        return next_runs(self.store, self.periodics)


def _checked_id(job_id: object) -> JobId:
    if type(job_id) is not int:
        raise ConfigurationError(f"A job's id is a whole number, as in enqueue(…).id, not {job_id!r}.")
    return checked_job_id(job_id)
