"""A claimed job on its way from the server to the worker.

In the worker its receipt travels inside the claim, so that the worker need not know of it.
"""

from __future__ import annotations

import json

from ..model import Attempt, Claim, ClaimedJob, JobId
from . import holdfast_jobs_pb2 as wire
from .moments import moment_of, timestamp_of


class RemoteClaim(Claim):
    """A claim that carries its receipt. It is equal to the same claim without."""

    receipt: str


class RemoteJob(ClaimedJob):
    """A job as a remote worker gets it."""

    receipt: str
    suspicions: int = 0

    @property
    def claim(self) -> RemoteClaim:
        """Return the token to report with."""
        claim = RemoteClaim(self.id, self.attempt)
        claim.receipt = self.receipt
        return claim


def assignment_of(job: ClaimedJob, receipt: str, suspicions: int = 0) -> wire.JobAssignment:
    """Return the message that assigns a job; with suspicions, one that the worker is to test."""
    return wire.JobAssignment(
        job_id=job.id,
        attempt=job.attempt,
        topic=job.topic,
        operation=job.operation,
        payload=job.payload,
        correlation_id=job.correlation_id,
        lease_seconds=job.lease_seconds,
        failures=job.failures,
        max_attempts=job.max_attempts,
        tags=json.loads(job.tags) if job.tags else (),
        instance_id=job.instance_id,
        priority=job.priority,
        run_at=None if job.run_at is None else timestamp_of(job.run_at),
        created_at=timestamp_of(job.created_at),
        limit_key=job.limit_key,
        receipt=receipt,
        is_suspect=suspicions > 0,
        suspicions=suspicions,
    )


def job_of(message: wire.JobAssignment) -> RemoteJob:
    """Return the job of an assignment. How long its unique key stays taken is the server's business."""
    job = RemoteJob(
        id=JobId(message.job_id),
        topic=message.topic,
        operation=message.operation,
        payload=message.payload,
        attempt=Attempt(message.attempt),
        failures=message.failures,
        max_attempts=message.max_attempts if message.HasField("max_attempts") else None,
        priority=message.priority,
        lease_seconds=message.lease_seconds,
        named_correlation_id=message.correlation_id,
        instance_id=message.instance_id if message.HasField("instance_id") else None,
        unique_seconds=None,
        limit_key=message.limit_key if message.HasField("limit_key") else None,
        tags=json.dumps(list(message.tags), ensure_ascii=False) if message.tags else None,
        run_at=moment_of("run_at", message.run_at) if message.HasField("run_at") else None,
        created_at=moment_of("created_at", message.created_at),
    )
    job.receipt = message.receipt
    job.suspicions = message.suspicions
    return job
