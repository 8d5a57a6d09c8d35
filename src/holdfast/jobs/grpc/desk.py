"""What the calls do, in terms of the store. Everything here blocks on the database and runs on threads.

Nothing is remembered between calls: a claim is good or stale by its row alone, so any server may answer any call, and a
server that dies takes nothing with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...core.errors import ConfigurationError, InvalidTransition
from ..definition import JobDefinition
from ..model import Claim, Failure, JobStatus, PutBack, Stopped, Success, WorkerId
from ..payload import MAX_PAYLOAD_BYTES
from ..reporter import Report
from ..settings import MAX_NAME_LENGTH, checked_topic
from ..stores.base import SqlJobStore
from . import holdfast_jobs_pb2 as wire
from .assignments import Receipt
from .new_jobs import NewJobReader
from .reports import claim_of, report_of
from .texts import checked_json

MOST_AT_ONCE = 10_000
_OWNER_PREFIX = "remote:"  # so that no remote worker can pass for one beside the database


def owner_of(worker: str) -> WorkerId:
    """Return under what name a remote worker's claims are kept.

    Raises:
        ConfigurationError: it is no name.
    """
    if not worker:
        raise ConfigurationError(
            f"The request names no worker. Set worker to the name given in Start: 1 to {MAX_NAME_LENGTH} characters, "
            "unique to the process."
        )
    return WorkerId(_OWNER_PREFIX + checked_topic("Worker", worker))


class Desk:
    """Answers beats, reports and enqueues.

    Args:
        store: for beats and reports, on connections that nothing else uses.
        queue: for new jobs.
        definitions: what the server's application declares.
    """

    def __init__(
        self,
        store: SqlJobStore,
        queue: SqlJobStore,
        definitions: Iterable[JobDefinition] = (),
        *,
        most_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self._store = store
        self._queue = queue
        self._most_bytes = most_bytes
        declared = {(item.topic, item.operation): item for item in definitions}
        self._reader = NewJobReader(declared, queue.now, most_bytes)

    def heartbeat(self, request: wire.HeartbeatRequest) -> wire.HeartbeatResponse:
        """Extend leases; the answer tells which were still the worker's."""
        owner = owner_of(request.worker)
        _check_count("jobs", request.jobs)
        claims = [claim_of(f"jobs[{place}]", job) for place, job in enumerate(request.jobs)]
        said = {
            claim: self._progress(f"jobs[{place}], job {claim.id}: its progress", job.progress)
            for place, (claim, job) in enumerate(zip(claims, request.jobs, strict=True))
            if job.HasField("progress")
        }
        for claim, progress in said.items():
            self._store.progress(owner, claim, progress)
        for claim, job in zip(claims, request.jobs, strict=True):
            if job.HasField("is_tested"):
                (self._store.begin if job.is_tested else self._store.clear)(owner, claim)
        held = self._store.heartbeat(owner, claims) if claims else {}
        return wire.HeartbeatResponse(jobs=[_state(claim, held) for claim in claims])

    def _progress(self, what: str, progress: str) -> str:
        checked_json(what, progress, most_bytes=self._most_bytes)
        return progress

    def report_one(self, request: wire.ReportResultRequest) -> wire.ReportResultResponse:
        """End one attempt.

        Raises:
            InvalidTransition: the claim is stale.
        """
        owner = owner_of(request.worker)
        [outcome] = self._report(owner, [request.report], ["The report"])
        if not outcome.is_accepted:
            raise InvalidTransition(
                f"Job {outcome.job_id}, attempt {outcome.attempt}, is not worker {request.worker}'s any more: its "
                "lease ran out, it was reported before, or another worker has the job. Nothing was changed; stop "
                "working on it."
            )
        return wire.ReportResultResponse(outcome=outcome)

    def report_many(self, request: wire.ReportResultsRequest) -> wire.ReportResultsResponse:
        """End attempts; the answer tells which were stale."""
        owner = owner_of(request.worker)
        _check_count("reports", request.reports)
        names = [f"reports[{place}]" for place in range(len(request.reports))]
        return wire.ReportResultsResponse(outcomes=self._report(owner, request.reports, names))

    def _report(self, owner: WorkerId, messages: Sequence[wire.Report], names: Sequence[str]) -> list[wire.Outcome]:
        reports = [
            report_of(name, message, most_bytes=self._most_bytes) for name, message in zip(names, messages, strict=True)
        ]
        _check_distinct(reports)
        receipts = {report.claim: message.receipt for report, message in zip(reports, messages, strict=True)}
        accepted = self._ended(owner, reports, receipts)
        return [_outcome(report.claim, accepted) for report in reports]

    def _ended(
        self, owner: WorkerId, reports: Sequence[Report], receipts: Mapping[Claim, str]
    ) -> dict[Claim, JobStatus | None]:
        """Write the reports; return those that counted, with the status a failure led to."""
        accepted: dict[Claim, JobStatus | None] = {}
        if successes := [report for report in reports if isinstance(report, Success)]:
            accepted |= dict.fromkeys(self._completed(owner, successes, receipts))
        if failures := [report for report in reports if isinstance(report, Failure)]:
            accepted |= self._store.fail(owner, failures)
        if put_back := [report for report in reports if isinstance(report, PutBack)]:
            accepted |= dict.fromkeys(self._store.put_back(owner, put_back))
        if stopped := [report for report in reports if isinstance(report, Stopped)]:
            accepted |= dict.fromkeys(self._store.end_cancelled(owner, stopped))
        return accepted

    def _completed(self, owner: WorkerId, successes: Sequence[Success], receipts: Mapping[Claim, str]) -> set[Claim]:
        """Complete jobs. A success that was recorded before counts again: its first answer was lost on the way."""
        accepted = self._store.complete(owner, successes)
        for claim in {report.claim for report in successes} - accepted:
            receipt = Receipt.read("The report", receipts[claim])
            if self._store.has_recorded(claim, receipt.correlation_id):
                accepted.add(claim)
        return accepted

    def enqueue(self, request: wire.EnqueueRequest) -> wire.EnqueueResponse:
        """Add jobs, all or none."""
        if not request.jobs:
            raise ConfigurationError("The request has no jobs. Give at least one.")
        _check_count("jobs", request.jobs)
        jobs = [self._reader.read(f"jobs[{place}]", message) for place, message in enumerate(request.jobs)]
        if len(jobs) > 1:
            return wire.EnqueueResponse(added=self._queue.enqueue_many(jobs))
        added = self._queue.enqueue(jobs[0])
        job = wire.EnqueuedJob(job_id=added.id, correlation_id=added.correlation_id, is_new=added.is_new)
        return wire.EnqueueResponse(added=int(added.is_new), job=job)


def _check_count(name: str, items: Sequence[object]) -> None:
    if len(items) > MOST_AT_ONCE:
        raise ConfigurationError(f"{name} has {len(items):,} items, and {MOST_AT_ONCE:,} are the most. Send several.")


def _check_distinct(reports: Sequence[Report]) -> None:
    seen: set[Claim] = set()
    for place, report in enumerate(reports):
        if report.claim in seen:
            raise ConfigurationError(
                f"reports[{place}] is the second for job {report.claim.id}, attempt {report.claim.attempt}. Send one."
            )
        seen.add(report.claim)


def _state(claim: Claim, held: Mapping[Claim, str | None]) -> wire.JobState:
    return wire.JobState(job_id=claim.id, attempt=claim.attempt, is_held=claim in held, cancel_reason=held.get(claim))


def _outcome(claim: Claim, accepted: Mapping[Claim, JobStatus | None]) -> wire.Outcome:
    return wire.Outcome(
        job_id=claim.id, attempt=claim.attempt, is_accepted=claim in accepted, status=accepted.get(claim) or ""
    )
