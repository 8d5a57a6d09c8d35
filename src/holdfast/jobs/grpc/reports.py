"""How attempts ended, on the wire and off it. What a worker may say is checked here, before it reaches the database."""

from __future__ import annotations

import math

from ...core.errors import ConfigurationError, PayloadError
from ..model import Attempt, Claim, Failure, JobId, PutBack, Stopped, Success
from ..reporter import Report
from ..texts import storable
from . import holdfast_jobs_pb2 as wire
from .assignments import RemoteClaim
from .receipts import Receipt
from .texts import checked_json

_MOST_SECONDS = 100 * 366 * 86_400.0


def claim_of(what: str, message: wire.Report | wire.HeldJob) -> Claim:
    """Return the claim that a beat or a report is about.

    Raises:
        ConfigurationError: it names no job, or no attempt: without one nothing could tell a stale claim [FENCE-2].
    """
    if message.job_id < 1:
        raise ConfigurationError(f"{what} names no job: job_id is {message.job_id}. Copy it from the assignment.")
    if message.attempt < 1:
        raise ConfigurationError(
            f"{what}, job {message.job_id}, has the attempt {message.attempt}. Copy attempt, which is 1 or more, from "
            "the assignment: without it a stale claim could not be told from a good one."
        )
    return Claim(JobId(message.job_id), Attempt(message.attempt))


def report_of(what: str, claim: Claim, receipt: Receipt, message: wire.Report, *, most_bytes: int) -> Report:
    """Return the report of a message.

    Raises:
        ConfigurationError: a number cannot be used, or nothing says how the attempt ended.
        PayloadError: the output is not JSON or too large.
    """
    what = f"{what}, job {claim.id}"
    duration_ms = max(0, message.duration_ms)
    match message.WhichOneof("result"):
        case "succeeded":
            output = message.succeeded.output if message.succeeded.HasField("output") else None
            if output is not None:
                checked_json(f"{what}: its output", output, most_bytes=most_bytes)
            return Success(claim, duration_ms, output, receipt.keeps_key)
        case "failed":
            return _failure_of(what, claim, duration_ms, message.failed)
        case "put_back":
            reason = storable(message.put_back.reason) if message.put_back.HasField("reason") else None
            seconds = _seconds(f"{what}: put_back.seconds", message.put_back.seconds)
            return PutBack(claim, seconds, reason, is_misfit=message.put_back.is_misfit)
        case "stopped":
            return Stopped(claim, duration_ms)
    raise ConfigurationError(
        f"{what} does not say how the attempt ended. Set one of succeeded, failed, put_back and stopped."
    )


def _failure_of(what: str, claim: Claim, duration_ms: int, message: wire.Failed) -> Failure:
    pause = message.retry_in_seconds if message.HasField("retry_in_seconds") else None
    return Failure(
        claim,
        duration_ms,
        storable(message.error) or "the worker gave no reason",
        None if pause is None else _seconds(f"{what}: failed.retry_in_seconds", pause),
        message.is_final,
    )


def _seconds(what: str, seconds: float) -> float:
    if math.isfinite(seconds) and 0 <= seconds <= _MOST_SECONDS:
        return seconds
    raise ConfigurationError(f"{what} is {seconds}. Give a number of seconds from 0 to a century.")


def message_of(report: Report, *, most_bytes: int) -> wire.Report:
    """Return the message of a report.

    Raises:
        PayloadError: the output is larger than ``most_bytes``.
    """
    message = wire.Report(job_id=report.claim.id, attempt=report.claim.attempt)
    if isinstance(report.claim, RemoteClaim):
        message.receipt = report.claim.receipt
    match report:
        case Success():
            if report.output is not None and len(report.output.encode()) > most_bytes:
                raise PayloadError(f"The result of job {report.claim.id} is larger than {most_bytes:,} bytes.")
            message.duration_ms = report.duration_ms
            message.succeeded.CopyFrom(wire.Succeeded(output=report.output))
        case Failure():
            message.duration_ms = report.duration_ms
            error = storable(report.error)
            message.failed.CopyFrom(
                wire.Failed(error=error, retry_in_seconds=report.retry_seconds, is_final=report.is_final)
            )
        case PutBack():
            reason = None if report.reason is None else storable(report.reason)
            message.put_back.CopyFrom(wire.PutBack(seconds=report.seconds, reason=reason, is_misfit=report.is_misfit))
        case Stopped():
            message.duration_ms = report.duration_ms
            message.stopped.CopyFrom(wire.Stopped())
    return message
