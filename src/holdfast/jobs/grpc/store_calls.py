"""What the calls do, in terms of the store. Everything here blocks on the database and runs on threads.

Nothing is remembered between calls: a claim is good or stale by its row alone, so any server may answer any call, and a
server that dies takes nothing with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from sqlalchemy.engine import Connection

from ...core.errors import ConfigurationError, InvalidTransition
from ...database.repeating import repeated
from ...records import audit
from ..definition import JobDefinition
from ..model import Claim, Failure, JobId, JobStatus, NewJob, PutBack, Stopped, Success, WorkerId, item_id
from ..payload import MAX_PAYLOAD_BYTES
from ..reporter import Report
from ..settings import MAX_NAME_LENGTH, checked_key, checked_topic
from ..stores.answers import translated
from ..stores.base import SqlJobStore
from . import holdfast_jobs_pb2 as wire
from .new_jobs import NewJobReader
from .receipts import Receipt, Receipts
from .reports import claim_of, report_of
from .security import Client
from .texts import checked_json

MOST_AT_ONCE = 10_000


def owner_of(client: Client, worker: str) -> WorkerId:
    """Return under what name a remote worker's claims are kept: nobody else's token can touch them.

    Raises:
        ConfigurationError: it is no name.
    """
    if not worker:
        raise ConfigurationError(
            f"The request names no worker. Set worker to the name given in Start: 1 to {MAX_NAME_LENGTH} characters, "
            "unique to the process."
        )
    prefix = "remote" if client.name is None else f"remote-{client.name}"
    return WorkerId(checked_key("Worker", f"{prefix}:{checked_topic('Worker', worker)}"))


class StoreCalls:
    """Answers beats, reports and enqueues.

    Args:
        store: for beats and reports, on connections that nothing else uses.
        queue: for new jobs.
        receipts: returns whether a beat or a report is about what its sender was given.
        definitions: what the server's application declares.
    """

    def __init__(
        self,
        store: SqlJobStore,
        queue: SqlJobStore,
        receipts: Receipts,
        definitions: Iterable[JobDefinition] = (),
        *,
        most_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self._store = store
        self._queue = queue
        self._receipts = receipts
        self._most_bytes = most_bytes
        declared = {(item.topic, item.operation): item for item in definitions}
        self._reader = NewJobReader(declared, queue.now, most_bytes)

    def heartbeat(self, client: Client, request: wire.HeartbeatRequest) -> wire.HeartbeatResponse:
        """Extend leases; the answer tells which were still the worker's."""
        owner = owner_of(client, request.worker)
        _check_count("jobs", request.jobs)
        claims = [claim_of(f"jobs[{place}]", job) for place, job in enumerate(request.jobs)]
        for claim, job in zip(claims, request.jobs, strict=True):
            self._receipts.read(f"The beat for job {claim.id}", owner, claim, job.receipt)
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

    def report_one(self, client: Client, request: wire.ReportResultRequest) -> wire.ReportResultResponse:
        """End one attempt.

        Raises:
            InvalidTransition: the claim is stale.
        """
        [outcome] = self._report(client, request.worker, [request.report], ["The report"])
        if not outcome.is_accepted:
            raise InvalidTransition(
                f"Job {outcome.job_id}, attempt {outcome.attempt}, is not worker {request.worker}'s any more: its "
                "lease ran out, it was reported before, or another worker has the job. Nothing was changed; stop "
                "working on it."
            )
        return wire.ReportResultResponse(outcome=outcome)

    def report_many(self, client: Client, request: wire.ReportResultsRequest) -> wire.ReportResultsResponse:
        """End attempts; the answer tells which were stale."""
        _check_count("reports", request.reports)
        names = [f"reports[{place}]" for place in range(len(request.reports))]
        return wire.ReportResultsResponse(outcomes=self._report(client, request.worker, request.reports, names))

    def _report(
        self, client: Client, worker: str, messages: Sequence[wire.Report], names: Sequence[str]
    ) -> list[wire.Outcome]:
        owner = owner_of(client, worker)
        reports: list[Report] = []
        receipts: dict[Claim, Receipt] = {}
        for name, message in zip(names, messages, strict=True):
            claim = claim_of(name, message)
            receipts[claim] = receipt = self._receipts.read(f"{name}, job {claim.id},", owner, claim, message.receipt)
            reports.append(report_of(name, claim, receipt, message, most_bytes=self._most_bytes))
        _check_distinct(reports)
        accepted = self._ended(owner, reports, receipts)
        return [_outcome(report.claim, accepted) for report in reports]

    def _ended(
        self, owner: WorkerId, reports: Sequence[Report], receipts: Mapping[Claim, Receipt]
    ) -> dict[Claim, JobStatus | None]:
        """Write the reports; return those that counted, with the status a failure led to."""
        accepted: dict[Claim, JobStatus | None] = {}
        if successes := [report for report in reports if isinstance(report, Success)]:
            accepted |= dict.fromkeys(self._completed(owner, successes, receipts))
        if failures := [report for report in reports if isinstance(report, Failure)]:
            accepted |= self._store.fail(owner, failures)
        if put_back := [report for report in reports if isinstance(report, PutBack)]:
            accepted |= self._store.put_back(owner, put_back)
        if stopped := [report for report in reports if isinstance(report, Stopped)]:
            accepted |= dict.fromkeys(self._store.end_cancelled(owner, stopped))
        return accepted

    def _completed(
        self, owner: WorkerId, successes: Sequence[Success], receipts: Mapping[Claim, Receipt]
    ) -> set[Claim]:
        """Complete jobs. A success that was recorded before counts again: its first answer was lost on the way."""
        accepted = self._store.complete(owner, successes)
        for claim in {report.claim for report in successes} - accepted:
            if self._store.has_recorded(claim, receipts[claim].correlation_id):
                accepted.add(claim)
        return accepted

    def enqueue(self, client: Client, request: wire.EnqueueRequest) -> wire.EnqueueResponse:
        """Add jobs, all or none; who has a token with a name is in the audit with them."""
        client.require_topics(job.topic for job in request.jobs)
        if not request.jobs:
            raise ConfigurationError("The request has no jobs. Give at least one.")
        _check_count("jobs", request.jobs)
        jobs = [self._reader.read(f"jobs[{place}]", message) for place, message in enumerate(request.jobs)]
        if client.name is None:
            return self._added(jobs)
        return repeated(partial(self._added_and_audited, client.name, jobs))

    def _added_and_audited(self, actor: str, jobs: Sequence[NewJob]) -> wire.EnqueueResponse:
        topics = sorted({job.topic for job in jobs})
        with self._queue.transaction() as connection, translated(self._queue.engine):
            answer = self._added(jobs, connection)
            target = item_id(JobId(answer.job.job_id)) if answer.HasField("job") else topics[0]
            audit.record(connection, actor, "jobs enqueue", target, {"topics": topics, "added": answer.added})
        return answer

    def _added(self, jobs: Sequence[NewJob], connection: Connection | None = None) -> wire.EnqueueResponse:
        if len(jobs) > 1:
            return wire.EnqueueResponse(added=self._queue.enqueue_many(jobs, connection))
        added = self._queue.enqueue(jobs[0], connection)
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
