"""Logs and metrics of a worker, attached from outside."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from ..core.errors import Ambiguous, Unavailable
from ..core.telemetry import MetricsCollector, NoOpCollector
from .model import Claim, ClaimedJob, JobStatus, WorkerId
from .running import Running

_log = logging.getLogger("holdfast.jobs")

METRIC_CLAIMED_TOTAL = "holdfast_jobs_claimed_total"
METRIC_ENDED_TOTAL = "holdfast_jobs_ended_total"
METRIC_REAPED_TOTAL = "holdfast_jobs_reaped_total"
METRIC_STALE_TOTAL = "holdfast_jobs_stale_reports_total"
METRIC_IN_FLIGHT = "holdfast_jobs_in_flight"


class WorkerTelemetry:
    """What a worker says about itself. A collector that fails never fails a job."""

    def __init__(self, worker: WorkerId, metrics: MetricsCollector | None) -> None:
        self._worker = worker
        self._metrics = metrics or NoOpCollector()

    def claimed(self, jobs: Collection[ClaimedJob], in_flight: int) -> None:
        """Count claims."""
        self._count(METRIC_CLAIMED_TOTAL, len(jobs))
        try:
            self._metrics.set_gauge(METRIC_IN_FLIGHT, in_flight, labels={"worker": self._worker})
        except Exception:
            _log.exception("The metrics collector failed")

    def succeeded(self, count: int) -> None:
        """Count jobs that ended well."""
        self._count(METRIC_ENDED_TOTAL, count, status="succeeded")

    def failed(self, decided: dict[Claim, JobStatus], errors: dict[Claim, str]) -> None:
        """Tell of attempts that failed, and what became of them."""
        for claim, status in decided.items():
            level = logging.ERROR if status is JobStatus.DEAD else logging.WARNING
            _log.log(level, "Job %d failed at attempt %d, now %s: %s", *claim, status, errors.get(claim, ""))
            self._count(METRIC_ENDED_TOTAL, 1, status=str(status))

    def raised(self, running: Running, error: BaseException) -> None:
        """Show where a handler failed, for those who debug."""
        _log.debug("The handler of job %d raised", running.job.id, exc_info=error)

    def reaped(self, decided: dict[Claim, JobStatus]) -> None:
        """Tell of leases that ran out."""
        for claim, status in decided.items():
            _log.warning("The lease of job %d, attempt %d, ran out: now %s", *claim, status)
            self._count(METRIC_REAPED_TOTAL, 1, status=str(status))

    def stale(self, claims: Iterable[Claim]) -> None:
        """Tell of reports that came too late."""
        for claim in claims:
            _log.warning("Job %d, attempt %d, is no longer this worker's: its report was refused", *claim)
            self._count(METRIC_STALE_TOTAL, 1)

    def lost(self, running: Running) -> None:
        """Tell of a lease that is gone while its handler runs."""
        _log.warning("Job %d, attempt %d, was lost: another worker may run it", *running.claim)

    def locked_for_long(self, running: Running, seconds: float) -> None:
        """Tell of a transaction that kept everybody else from writing."""
        _log.warning(
            "Job %d held SQLite's write lock for %.1f s, a third of its lease or more: no other job could report or "
            "beat meanwhile. Open context.transaction later, or do less in it.",
            running.job.id,
            seconds,
        )

    def unavailable(self, doing: str, error: BaseException) -> None:
        """Tell that the database did not answer; it is tried again."""
        _log.warning("%s did not work and is tried again: %s", doing, error)

    def failing(self, doing: str, error: Exception) -> None:
        """Tell that something begins to fail; it is tried again, and not spoken of until it works."""
        if isinstance(error, (Unavailable, Ambiguous)):
            self.unavailable(doing, error)
        else:
            self.broke(doing)

    def recovered(self, doing: str) -> None:
        """Tell that something works that has failed."""
        _log.warning("%s works again", doing)

    def broke(self, doing: str) -> None:
        """Tell of an error that should not happen; it is tried again."""
        _log.exception("%s failed unexpectedly and is tried again", doing)

    def _count(self, name: str, value: int, **labels: str) -> None:
        try:
            self._metrics.increment(name, value, labels={"worker": self._worker, **labels})
        except Exception:
            _log.exception("The metrics collector failed")
