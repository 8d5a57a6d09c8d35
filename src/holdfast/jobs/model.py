"""The values that travel between queue, store and worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, NewType, Protocol

JobId = NewType("JobId", int)
WorkerId = NewType("WorkerId", str)
Attempt = NewType("Attempt", int)
LARGEST_ID = 2**63 - 1
MOST_MISFITS = 120
"""How often a job waits for a worker whose handler takes its arguments before it is a dead letter."""
MISFIT_SECONDS = 30.0
"""How long it waits each time; all in all an hour, more than a rolling deploy takes."""
MOST_UNDONE = 10
"""How often in a row an attempt that the database undid comes again uncharged before it counts as a failure."""
UNDONE_SECONDS = 1.0
"""How long it waits each time: nothing is put back while the database takes no writes."""
Wanted = Mapping[str, Sequence[str]]  # the operations that a worker can run, by topic; earlier topics come first


class JobStatus(StrEnum):
    """Where a job stands. Jobs that succeeded leave the queue and stand in the history."""

    READY = "ready"
    SCHEDULED = "scheduled"
    SUSPECT = "suspect"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Claim(NamedTuple):
    """The token of one claim: only who shows it may change the job. A tuple, because workers hold thousands."""

    id: JobId
    attempt: Attempt


class ClaimedJob(NamedTuple):
    """A job as a worker gets it, its columns in the order of the claim statements."""

    id: JobId
    topic: str
    operation: str
    payload: str
    attempt: Attempt
    failures: int
    max_attempts: int | None
    priority: int
    lease_seconds: float
    named_correlation_id: str | None
    instance_id: str | None
    unique_seconds: float | None
    limit_key: str | None
    tags: str | None
    run_at: datetime | None
    created_at: datetime
    ready_at: datetime | None = None  # what jobs of one priority are ordered by; not sent to remote workers
    losses: int = 0  # workers that were lost with it and are not charged to it; not sent to remote workers
    undone: int = 0  # attempts in a row that the database undid, uncharged; not sent to remote workers

    @property
    def claim(self) -> Claim:
        """Return the token to report with."""
        return Claim(self.id, self.attempt)

    @property
    def item_id(self) -> str:
        """Return the name of the job in history and dead letters."""
        return item_id(self.id)

    @property
    def correlation_id(self) -> str:
        """Return the id that ties together what belongs to one piece of business."""
        return self.named_correlation_id or item_id(self.id)


def item_id(job_id: JobId) -> str:
    """Return the name of a job in history and dead letters."""
    return f"job-{job_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be added. ``payload`` is JSON."""

    topic: str
    operation: str
    payload: str
    priority: int = 0
    limit_key: str | None = None
    max_attempts: int | None = 5
    retry_base_seconds: float = 1.0
    retry_max_seconds: float = 3600.0
    lease_seconds: float = 30.0
    run_at: datetime | None = None
    unique_key: str | None = None
    unique_seconds: float | None = None
    correlation_id: str | None = None
    instance_id: str | None = None
    tags: str | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of a job that was handed in: ``is_new`` is False when its unique key was taken by ``id``."""

    id: JobId
    correlation_id: str
    is_new: bool = True


class Due(NamedTuple):
    """What is to come: in how many seconds the next job or suspect is due, and whether a suspect waits for its test."""

    seconds: float | None = None
    has_suspects: bool = False


class WaitingSuspect(NamedTuple):
    """A job that waits to be tested, because a worker was lost that held it."""

    id: JobId
    topic: str
    operation: str
    limit_key: str | None = None
    is_limited: bool = False


class Suspect(NamedTuple):
    """A job that was claimed to be tested, and how often its worker was lost before."""

    job: ClaimedJob
    suspicions: int


class Success(NamedTuple):
    """A report: the handler returned."""

    claim: Claim
    duration_ms: int
    output: str | None = None
    keeps_key: bool = False


class Failure(NamedTuple):
    """A report: the handler failed. ``is_final`` sends the job to the dead letters at once, uncounted."""

    claim: Claim
    duration_ms: int
    error: str
    retry_seconds: float | None = None
    is_final: bool = False


class PutBack(NamedTuple):
    """A report: the job is to be run later or by someone else, and this was not a failure.

    ``is_unbegun`` means that its handler was surely not called, although its begin may have been recorded.
    ``is_misfit`` means that its payload is for another version of the handler: that happens ``MOST_MISFITS`` times.
    ``is_undone`` means that the database undid all that its handler wrote.
    """

    claim: Claim
    seconds: float = 0.0
    reason: str | None = None
    is_unbegun: bool = False
    is_misfit: bool = False
    is_undone: bool = False


def failure_of(report: PutBack) -> Failure:
    """Return what is reported instead of a job that may run once and has begun [ONCE-1], or that never fitted."""
    if report.is_misfit:
        waited = f"It waited for a worker of that version {MOST_MISFITS} times."
        return Failure(report.claim, 0, f"{report.reason} {waited}" if report.reason else waited, is_final=True)
    return Failure(report.claim, 0, report.reason or "it was given back after it had begun")


def put_back_undone(job: ClaimedJob, reason: str) -> PutBack | None:
    """Return the report for an attempt that the database undid; None when that happened too often and counts now."""
    if job.undone >= MOST_UNDONE:
        return None
    return PutBack(job.claim, UNDONE_SECONDS, reason, is_undone=True)


class Stopped(NamedTuple):
    """A report: the handler stopped because the job was cancelled."""

    claim: Claim
    duration_ms: int


class Settler(Protocol):
    """Ends attempts for a workload that records their ends itself, such as engines."""

    def settle(self, worker: WorkerId, batch: Sequence[Settled]) -> set[Claim]:
        """End attempts, all in one transaction; return those that were still ours.

        Raises:
            Unavailable: nothing was changed.
            Ambiguous: all of it was, or nothing.
        """
        ...


class Settled(NamedTuple):
    """A report: ``by`` knows what to record of it. ``characters`` is how much of a statement it takes."""

    claim: Claim
    by: Settler
    value: Any
    characters: int = 0
    comes_again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """How many jobs of a topic, and of each of its keys, may run at once and start per time."""

    max_running: int | None = None
    max_running_per_key: int | None = None
    rate_count: int | None = None
    rate_seconds: float | None = None
    rate_count_per_key: int | None = None
    rate_seconds_per_key: float | None = None

    @property
    def is_limited(self) -> bool:
        """Return whether there is any limit at all."""
        return any((self.max_running, self.max_running_per_key, self.rate_count, self.rate_count_per_key))


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that was declared, limited or paused; ``limited_by`` is the application whose limits it has."""

    name: str
    is_paused: bool
    limits: TopicLimits
    limited_by: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """How far a periodic job has come, and whose it is; nobody's from before there were applications."""

    last_slot: datetime
    application: str | None = None


@dataclass(frozen=True, slots=True)
class TopicStats:
    """How many jobs of a topic are in each status.

    ``without_worker`` counts, by operation, the ready ones that no live worker has announced that it can run, and those
    that wait because they fitted no worker that tried. Workers announce themselves when they start and then every half
    minute. ``succeeded`` counts what the history has, up to
    100,000; None where nobody counted, or the history is elsewhere.
    """

    topic: str
    jobs: dict[JobStatus, int] = field(default_factory=dict)
    oldest_ready_seconds: float | None = None
    without_worker: dict[str, int] = field(default_factory=dict)
    succeeded: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as people see it: every column, and when it was read by the database's clock."""

    id: JobId
    status: JobStatus
    columns: dict[str, Any]
