"""An application's jobs: what is declared, the queue they wait in, and the worker that runs them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.engine import Engine

from ..core.clock import Clock
from ..core.config import DbConfig
from ..core.engine import EngineProvider
from ..core.errors import ConfigurationError
from ..core.telemetry import MetricsCollector
from ..records.history import History, HistoryStatus
from ..runtime.housekeeping import Chore
from .definition import BoundJob, JobDefinition
from .model import JobId, JobStatus, JobView, TopicLimits, TopicStats, item_id
from .payload import MAX_PAYLOAD_BYTES
from .periodic import Periodic, PeriodicEnqueuer
from .running import JobHandler
from .settings import JobSettings, Rate, checked_topic, limits_of
from .stores.base import SqlJobStore
from .stores.choose import job_store
from .stores.sessions import noticing_silence, prepare_engine
from .worker import JobWorker, WorkerSettings

_POOL_SIZE = 5
_POOL_RECYCLE_SECONDS = 3598  # differs from the other pools, so that none is shared
_KEEPER_RECYCLE_SECONDS = 3597
_PRUNE_SECONDS = 3600.0
_LOOK_SECONDS = 60.0
_PRUNED_AT_ONCE = 1000
_ENDED_JOBS_SECONDS = 90 * 86_400.0
_APART_RECYCLE_SECONDS = 3596


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: done with what its handler returned, or dead or cancelled with why."""

    status: JobStatus
    value: Any
    error: str | None


class Jobs:
    """The jobs of one application. Nothing connects until something is enqueued or run.

    Args:
        provider: makes the connection pools: one for the queue, one for heartbeats, apart from the handlers' own.
        config: the database.
        transaction_engine: where ``context.transaction`` is opened.
    """

    def __init__(
        self,
        provider: EngineProvider,
        config: DbConfig,
        transaction_engine: Callable[[], Engine],
        *,
        clock: Clock,
        metrics: MetricsCollector | None = None,
    ) -> None:
        self._provider = provider
        self._config = config
        self._transaction_engine = transaction_engine
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
            self._store = job_store(self._engine(_POOL_SIZE, _POOL_RECYCLE_SECONDS))
        return self._store

    def store_apart(self, pool_size: int) -> SqlJobStore:
        """Return the queue on connections of its own, for what must not wait for other users of ``store``."""
        return job_store(self._engine(pool_size, _APART_RECYCLE_SECONDS))

    def _engine(self, pool_size: int, recycle_seconds: int) -> Engine:
        own_pool = replace(self._config, pool_size=pool_size, pool_recycle=recycle_seconds)
        return prepare_engine(self._provider.get_engine(noticing_silence(own_pool)))

    def job(
        self,
        topic: str = "default",
        *,
        name: str | None = None,
        priority: int = 0,
        max_attempts: int | None = 5,
        lease_seconds: float = 30.0,
        retry_base_seconds: float = 1.0,
        retry_max_seconds: float = 3600.0,
        unique_seconds: float | None = None,
        max_seconds: float | None = None,
        concurrency: int | None = None,
        concurrency_per_key: int | None = None,
        rate: Rate | None = None,
        rate_per_key: Rate | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> Callable[[Callable[..., Any]], JobDefinition]:
        """Make the decorated function, ``def`` or ``async def``, a job.

        A first parameter named ``context`` gets the ``JobContext``; the others are the payload. ``name`` (the
        function's own when left out) is what its jobs are stored under, so it should not change. An attempt that runs
        longer than ``max_seconds`` has failed. The limits are the topic's: declare them on one of its jobs.

        Raises:
            ConfigurationError: the declaration is wrong.
        """
        if callable(topic):
            raise ConfigurationError("Write @hf.job() with parentheses, or @hf.job(topic=…).")
        limits = limits_of(
            concurrency=concurrency, concurrency_per_key=concurrency_per_key, rate=rate, rate_per_key=rate_per_key
        )
        settings = JobSettings(
            priority=priority,
            max_attempts=max_attempts,
            lease_seconds=lease_seconds,
            retry_base_seconds=retry_base_seconds,
            retry_max_seconds=retry_max_seconds,
            unique_seconds=unique_seconds,
            max_seconds=max_seconds,
            limits=limits,
        )

        def register(function: Callable[..., Any]) -> JobDefinition:
            definition = JobDefinition(
                function,
                topic=topic,
                store=lambda: self.store,
                operation=name,
                settings=settings,
                max_payload_bytes=max_payload_bytes,
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
            keeper_store=job_store(self._engine(1, _KEEPER_RECYCLE_SECONDS)),
            transaction_engine=self._transaction_engine(),
            settings=settings,
            metrics=self._metrics,
            clock=self._clock,
        )

    def chores(self) -> list[Chore]:
        """Return what some process must do now and then: enqueue periodic jobs, forget those that ended long ago."""
        periodic = PeriodicEnqueuer(self.store, self.periodics, self._clock)
        return [
            Chore("enqueuing periodic jobs", periodic.tick, _LOOK_SECONDS),
            Chore("forgetting ended jobs", self._forget_ended, _PRUNE_SECONDS),
        ]

    def declare_limits(self) -> None:
        """Write down the limits of every declared topic, as a worker does before it claims."""
        self._declare_limits(self.definitions)

    def _forget_ended(self) -> float:
        """Forget some of the jobs that ended long ago; at once again when there are more."""
        return _PRUNE_SECONDS if self.store.prune(_ENDED_JOBS_SECONDS) < _PRUNED_AT_ONCE else 0.0

    def _declare_limits(self, definitions: Sequence[JobDefinition]) -> None:
        """Write down the limits of each topic, also that it has none any more."""
        limits = {item.topic: TopicLimits() for item in definitions}
        limits |= {item.topic: item.settings.limits for item in definitions if item.settings.limits.is_limited}
        known = {topic.name: topic.limits for topic in self.store.topics()}
        for topic, wanted in limits.items():
            if known.get(topic, TopicLimits()) != wanted:
                self.store.set_limits(topic, wanted)

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

    def stats(self) -> list[TopicStats]:
        """Return how many jobs of each topic are in each status."""
        return self.store.stats()


def _checked_id(job_id: object) -> JobId:
    if type(job_id) is not int:
        raise ConfigurationError(f"A job's id is a whole number, as in enqueue(…).id, not {job_id!r}.")
    return JobId(job_id)
