"""Logs and metrics of a worker, attached from outside."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from ..core.errors import Ambiguous, DbError, Unavailable
from ..core.telemetry import MetricsCollector, SafeCollector
from ..records.failure_text import public_failure
from .model import Claim, ClaimedJob, JobStatus, WorkerId
from .running import Running

_log = logging.getLogger("holdfast.jobs")

METRIC_CLAIMED_TOTAL = "holdfast_jobs_claimed_total"
METRIC_ENDED_TOTAL = "holdfast_jobs_ended_total"
METRIC_REAPED_TOTAL = "holdfast_jobs_reaped_total"
METRIC_STALE_TOTAL = "holdfast_jobs_stale_reports_total"
METRIC_IN_FLIGHT = "holdfast_jobs_in_flight"
METRIC_LOST_SLOTS = "holdfast_jobs_lost_slots"


class WorkerTelemetry:
    """What a worker says about itself."""

    def __init__(self, worker: WorkerId, metrics: MetricsCollector | None) -> None:
        self._worker = worker
        self._metrics = SafeCollector(metrics)
        self._misfits: set[tuple[str, str]] = set()

    def claimed(self, jobs: Collection[ClaimedJob], in_flight: int) -> None:
        """Count claims."""
        self._count(METRIC_CLAIMED_TOTAL, len(jobs))
        self._gauge(METRIC_IN_FLIGHT, in_flight)

    def succeeded(self, count: int) -> None:
        """Count jobs that ended well."""
        self._count(METRIC_ENDED_TOTAL, count, status="succeeded")

    def failed(self, decided: dict[Claim, JobStatus], errors: dict[Claim, str]) -> None:
        """Log attempts that failed, and what became of them."""
        for claim, status in decided.items():
            level = logging.ERROR if status is JobStatus.DEAD else logging.WARNING
            error = public_failure(errors.get(claim, ""))
            _log.log(level, "Job %d failed at attempt %d, now %s: %s", *claim, status, error)
            self._count(METRIC_ENDED_TOTAL, 1, status=str(status))

    def raised(self, running: Running, error: BaseException) -> None:
        """Show where a handler failed, for those who debug."""
        _log.debug("The handler of job %d raised", running.job.id, exc_info=error)

    def misfit(self, running: Running, why: str) -> None:
        """Log, once for each operation, that a job waits for a worker of another version."""
        operation = (running.job.topic, running.job.operation)
        if operation not in self._misfits:
            self._misfits.add(operation)
            _log.warning("Job %d, and others like it, waits for a worker of another version: %s", running.job.id, why)

    def reaped(self, decided: dict[Claim, JobStatus]) -> None:
        """Log leases that ran out."""
        for claim, status in decided.items():
            _log.warning("The lease of job %d, attempt %d, ran out: now %s", *claim, status)
            self._count(METRIC_REAPED_TOTAL, 1, status=str(status))

    def stale(self, claims: Iterable[Claim]) -> None:
        """Log reports that came too late."""
        for claim in claims:
            _log.warning("Job %d, attempt %d, is no longer this worker's: its report was refused", *claim)
            self._count(METRIC_STALE_TOTAL, 1)

    def lost(self, running: Running) -> None:
        """Log a lease that is gone while its handler runs."""
        _log.warning("Job %d, attempt %d, was lost: another worker may run it", *running.claim)

    def locked_for_long(self, running: Running, seconds: float) -> None:
        """Log a transaction that kept everybody else from writing."""
        _log.warning(
            "Job %d held SQLite's write lock for %.1f s, a third of its lease or more: no other job could report or "
            "beat meanwhile. Open context.transaction later, or do less in it.",
            running.job.id,
            seconds,
        )

    def tested(self, job: ClaimedJob) -> None:
        """Log a job that runs under test."""
        _log.warning("Job %d, attempt %d, runs under test: a worker was lost that held it", *job.claim)

    def abandoned(self, running: Running, lost: int) -> None:
        """Log a handler that did not end when its time was over."""
        _log.error(
            "The handler '%s' of job %d ran longer than max_seconds=%g and was abandoned. Places lost so far: %d.",
            running.job.operation,
            running.job.id,
            running.handler.max_seconds,
            lost,
        )
        self.lost_slots(lost)

    def lost_slots(self, lost: int) -> None:
        """Measure how many slots are taken by handlers that were abandoned."""
        self._gauge(METRIC_LOST_SLOTS, lost)

    def stuck(self, what: str, running: Iterable[Running]) -> None:
        """Log that handlers keep others from running."""
        named = ", ".join(f"job {item.job.id} ({item.job.operation})" for item in running)
        _log.error("%s: %s. No more jobs are claimed for it until that is over.", what, named or "no job")

    def unstuck(self, what: str) -> None:
        """Log that it is over."""
        _log.warning("%s: that is over, and jobs are claimed again.", what)

    def broken(self, parts: Sequence[str]) -> None:
        """Log why a worker ends."""
        _log.error(
            "Worker %s ends because a part of it died: %s. What that held is let go and the rest drained; restart it.",
            self._worker,
            ", ".join(parts),
        )

    def unavailable(self, doing: str, error: BaseException) -> None:
        """Log that the database did not answer; it is tried again."""
        _log.warning("%s did not work and is tried again: %s", doing, error)

    def failing(self, doing: str, error: Exception) -> None:
        """Log that something fails; it is tried again."""
        if isinstance(error, (Unavailable, Ambiguous)):
            self.unavailable(doing, error)
        elif isinstance(error, DbError):  # it says the cause, and what to do about it
            _log.error("%s did not work and is tried again: %s", doing, error)
        else:
            self.broke(doing)

    def recovered(self, doing: str) -> None:
        """Log that something works that has failed."""
        _log.warning("%s works again", doing)

    def broke(self, doing: str) -> None:
        """Log an error that should not happen; it is tried again."""
        _log.exception("%s failed unexpectedly and is tried again", doing)

    def _gauge(self, name: str, value: int) -> None:
        self._metrics.set_gauge(name, value, labels={"worker": self._worker})

    def _count(self, name: str, value: int, **labels: str) -> None:
        self._metrics.increment(name, value, labels={"worker": self._worker, **labels})
