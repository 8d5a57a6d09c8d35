"""The queue as a worker sees it, when it is behind a server: the same worker runs here as beside the database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from sqlalchemy.engine import Connection

from ...core.clock import Clock
from ...core.errors import Ambiguous, ConfigurationError, DbError, PayloadError
from ..model import (
    Attempt,
    Claim,
    ClaimedJob,
    Due,
    Failure,
    JobId,
    JobStatus,
    PutBack,
    Stopped,
    Success,
    Suspect,
    WaitingSuspect,
    Wanted,
    WorkerId,
)
from ..payload import MAX_PAYLOAD_BYTES
from ..reporter import Report
from . import holdfast_jobs_pb2 as wire
from .assignments import RemoteClaim, RemoteJob
from .connection import RemoteConnection
from .receiving import Receiving
from .reports import message_of

_MOST_REPORTS = 1000
_UNKNOWN_SECONDS = 30.0
_MOST_BEATS = 5000
_MOST_BYTES = MAX_PAYLOAD_BYTES  # of one message; a single report may need twice that
_log = logging.getLogger("holdfast.jobs")


class RemoteJobStore:
    """What ``JobWorker`` needs, by calls to a server.

    What a worker beside the database does for everybody (the watchdog, letting scheduled jobs be claimed) the server
    does, so it is nothing here.

    Args:
        connection: the server.
        stop: set when the worker drains.
    """

    engine = None
    notifies = True

    def __init__(self, connection: RemoteConnection, worker: WorkerId, stop: threading.Event) -> None:
        self._connection = connection
        self._worker = worker
        self._stop = stop
        self._receiving: Receiving | None = None

    def wake_ups(
        self, wanted: Wanted, clock: Clock, *, on_jobs: Callable[[], None], on_cancel: Callable[[], None]
    ) -> Receiving:
        """Return the stream: jobs come through it, and the news that some were cancelled."""
        self._receiving = Receiving(
            self._connection,
            self._worker,
            wanted,
            clock,
            self._stop,
            on_jobs=on_jobs,
            on_cancel=on_cancel,
            give_back=self._give_back,
        )
        return self._receiving

    def check(self) -> None:
        """Ask the server whether it lets this worker in.

        Raises:
            ConfigurationError: it does not. A server that does not answer is waited for later.
        """
        try:
            self._connection.call("Heartbeat", wire.HeartbeatRequest(worker=self._worker))
        except Ambiguous as error:
            _log.warning("The jobs server cannot be reached and is tried again: %s", error)

    # Claiming: the server claims, and this takes what it sent

    def claim(
        self, worker: WorkerId, wanted: Wanted, capacity: int, mosts: Mapping[str, int] | None = None
    ) -> list[ClaimedJob]:
        """Return the jobs that were sent, and ask for more.

        A server of a release before sends any operation of a topic; what the worker cannot run is put back.
        """
        assert self._receiving is not None
        jobs = self._receiving.take(capacity)
        unknown = [job for job in jobs if job.operation not in wanted.get(job.topic, ())]
        if unknown:
            reason = f"worker {worker} has no handler for it, and its server does not ask which it has"
            self.put_back(worker, [PutBack(job.claim, _UNKNOWN_SECONDS, reason) for job in unknown])
        return [job for job in jobs if job not in unknown]

    def claim_limited(self, worker: WorkerId, topic: str, operations: Sequence[str], capacity: int) -> list[ClaimedJob]:
        """Return nothing: the server keeps the limits."""
        return []

    def rate_opens_in(self, topic: str) -> None:
        """Return None: the server keeps the limits."""

    def announce(self, worker: WorkerId, operations: Mapping[str, Sequence[str] | None]) -> None:
        """Do nothing: the stream has informed the server, which announces it."""

    def withdraw(self, worker: WorkerId) -> None:
        """Do nothing: the server does when the stream ends."""

    def limited_topics(self) -> list[str]:
        """Return nothing: the server keeps the limits."""
        return []

    def promote(self, limit: int = 1000) -> int:
        """Do nothing: the server does."""
        return 0

    def next_due(self) -> Due:
        """Return whether the server has sent a suspect; it looks itself for what is due."""
        return Due(has_suspects=self._receiving is not None and self._receiving.wants_suspect)

    def suspects(self, can_run: Callable[[str, str], bool]) -> list[WaitingSuspect]:
        """Return the suspect that the server has sent, or ask for another when the last is over.

        One that cannot run now is put back.
        """
        assert self._receiving is not None
        job = self._receiving.next_suspect()
        if job is None:
            return []
        if can_run(job.topic, job.operation):
            return [WaitingSuspect(job.id, job.topic, job.operation)]
        if self._receiving.take_suspect(job.id):
            self._give_back([job])
        return []

    def claim_suspect(self, worker: WorkerId, waiting: WaitingSuspect) -> Suspect | None:
        """Take the suspect that the server has sent, unless it was lost meanwhile."""
        assert self._receiving is not None
        job = self._receiving.take_suspect(waiting.id)
        return None if job is None else Suspect(job, job.suspicions)

    def begin(self, worker: WorkerId, claim: Claim) -> bool:
        """Record that an attempt begins; False when the claim is stale."""
        return claim in self._beat([_held(claim, is_tested=True)])

    def clear(self, worker: WorkerId, claim: Claim) -> bool:
        """Record that an attempt is not to be charged any more if this worker is lost."""
        return claim in self._beat([_held(claim, is_tested=False)])

    def give_back_waiting(self) -> None:
        """Give back what the server has sent and nobody has taken."""
        if self._receiving is not None and (arrived := self._receiving.take_all()):
            self._give_back(arrived)

    def reap(self, limit: int = 1000) -> dict[Claim, JobStatus]:
        """Do nothing: the server does."""
        return {}

    # Holding

    def heartbeat(self, worker: WorkerId, claims: Sequence[Claim]) -> dict[Claim, str | None]:
        """Extend leases, also those of jobs that have arrived and wait to be taken."""
        waiting = self._receiving.waiting() if self._receiving is not None else []
        every = list(dict.fromkeys([*claims, *waiting]))
        held: dict[Claim, str | None] = {}
        for start in range(0, len(every), _MOST_BEATS):
            jobs = [_held(claim) for claim in every[start : start + _MOST_BEATS]]
            held |= self._beat(jobs)
        if self._receiving is not None:
            for claim in waiting:
                if claim not in held:
                    self._receiving.drop(claim)
        return held

    def progress(self, worker: WorkerId, claim: Claim, progress: str | None) -> bool:
        """Extend one lease and say how far the work is; return whether it is still ours."""
        return claim in self._beat([_held(claim, progress=progress)])

    def _beat(self, jobs: Sequence[wire.HeldJob]) -> dict[Claim, str | None]:
        answer: wire.HeartbeatResponse = self._connection.call(
            "Heartbeat", wire.HeartbeatRequest(worker=self._worker, jobs=jobs)
        )
        return {
            Claim(JobId(state.job_id), Attempt(state.attempt)): (
                state.cancel_reason if state.HasField("cancel_reason") else None
            )
            for state in answer.jobs
            if state.is_held
        }

    # Reporting

    def complete(self, worker: WorkerId, reports: Sequence[Success]) -> set[Claim]:
        """End jobs that succeeded. The server recognizes those it has recorded before."""
        return set(self._report(reports))

    def hold_on(self, connection: Connection, worker: WorkerId, claim: Claim) -> NoReturn:
        """Refuse: a remote worker has no connection to the database."""
        raise AssertionError("a remote worker has no transaction to hold anything in")

    def complete_on(self, connection: Connection, worker: WorkerId, report: Success) -> NoReturn:
        """Refuse: there is no transaction to complete in.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError("A remote worker has no access to the queue's database.")

    def fail(self, worker: WorkerId, reports: Sequence[Failure]) -> dict[Claim, JobStatus]:
        """End attempts that failed; return what became of those that counted."""
        return {claim: JobStatus(status) for claim, status in self._report(reports).items()}

    def put_back(self, worker: WorkerId, reports: Sequence[PutBack]) -> dict[Claim, JobStatus | None]:
        """Give jobs back; those with a status failed instead."""
        unbegun = [report.claim for report in reports if report.is_unbegun]
        if unbegun:
            self._beat([_held(claim, is_tested=False) for claim in unbegun])
        return {claim: JobStatus(status) if status else None for claim, status in self._report(reports).items()}

    def end_cancelled(self, worker: WorkerId, reports: Sequence[Stopped]) -> set[Claim]:
        """End jobs that were asked to stop and did."""
        return set(self._report(reports))

    def has_landed(self, job: ClaimedJob) -> bool:
        """Return False: what was recorded before, the server has accepted again."""
        return False

    def _report(self, reports: Sequence[Report]) -> Mapping[Claim, str]:
        accepted: dict[Claim, str] = {}
        for batch in _batches([_sendable(report) for report in reports]):
            request = wire.ReportResultsRequest(worker=self._worker, reports=batch)
            answer: wire.ReportResultsResponse = self._connection.call("ReportResults", request)
            for outcome in answer.outcomes:
                if outcome.is_accepted:
                    accepted[Claim(JobId(outcome.job_id), Attempt(outcome.attempt))] = outcome.status
        return accepted

    def _give_back(self, jobs: list[RemoteJob]) -> None:
        try:
            self.put_back(self._worker, [PutBack(job.claim) for job in jobs])
        except DbError as error:
            _log.warning("%d jobs arrived too late and come back when their leases run out: %s", len(jobs), error)


def _sendable(report: Report) -> wire.Report:
    try:
        return message_of(report, most_bytes=MAX_PAYLOAD_BYTES)
    except PayloadError as error:
        assert isinstance(report, Success)
        _log.warning("%s It was not kept.", error)
        return message_of(report._replace(output=None), most_bytes=MAX_PAYLOAD_BYTES)


def _batches(messages: Sequence[wire.Report]) -> Iterator[list[wire.Report]]:
    """Yield the messages in groups that fit into one call."""
    batch: list[wire.Report] = []
    size = 0
    for message in messages:
        added: int = message.ByteSize()
        if batch and (len(batch) >= _MOST_REPORTS or size + added > _MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += added
    if batch:
        yield batch


def _held(claim: Claim, **said: Any) -> wire.HeldJob:
    receipt = claim.receipt if isinstance(claim, RemoteClaim) else ""
    return wire.HeldJob(job_id=claim.id, attempt=claim.attempt, receipt=receipt, **said)
