"""One attempt from its payload to its report. What the handler raises decides how the attempt ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from sqlalchemy.engine import Engine

from ..core.clock import Clock
from ..core.errors import Ambiguous, ConfigurationError, InvalidTransition, LostLeaseError, PayloadError, Unavailable
from .context import JobContext
from .correlation import current_correlation_id
from .model import Failure, PutBack, Stopped, Success, WorkerId
from .outcomes import Discard, JobCancelled, Retry, Snooze
from .reporter import Report
from .running import Running
from .stores.protocol import WorkerStore
from .telemetry import WorkerTelemetry
from .transaction import JobTransaction

_log = logging.getLogger("holdfast.jobs")
_MOST_ERROR_CHARACTERS = 20_000


class Execution:
    """Runs attempts and says how they ended."""

    def __init__(
        self,
        store: WorkerStore,
        worker: WorkerId,
        transaction_engine: Engine | None,
        telemetry: WorkerTelemetry,
        clock: Clock,
        report: Callable[[Report], None],
        forget: Callable[[Running], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._transaction_engine = transaction_engine
        self._telemetry = telemetry
        self._clock = clock
        self._report = report
        self._forget = forget

    def run(self, running: Running) -> None:
        """Call a ``def`` handler and report."""
        running.started_at = self._clock.monotonic()
        if self._was_stopped(running):
            return
        token = current_correlation_id.set(running.job.correlation_id)
        try:
            output = running.handler.function(*self._context(running), **self._arguments(running))
        except BaseException as error:  # sys.exit() in a handler is a failure like any other
            self._failed(running, error)
        else:
            self._succeeded(running, output)
        finally:
            current_correlation_id.reset(token)

    async def run_async(self, running: Running) -> None:
        """Call an ``async def`` handler and report. Its transaction ends on a thread: the loop is never blocked."""
        running.started_at = self._clock.monotonic()
        if self._was_stopped(running):
            return
        current_correlation_id.set(running.job.correlation_id)
        try:
            output = await running.handler.function(*self._context(running), **self._arguments(running))
        except BaseException as error:
            await self._off_loop(running, self._failed, error)
        else:
            await self._off_loop(running, self._succeeded, output)

    def _was_stopped(self, running: Running) -> bool:
        """Return whether a job was cancelled or lost before its turn came; then it has been reported."""
        if running.is_lost:
            self._end(running, PutBack(running.claim))
        elif running.cancel_reason is not None:
            self._end(running, Stopped(running.claim, 0))
        else:
            return False  # what comes after this look stops the handler
        return True

    async def _off_loop(self, running: Running, end: Callable[[Running, Any], None], value: object) -> None:
        if running.transaction is None:
            end(running, value)
        else:
            await asyncio.shield(asyncio.to_thread(end, running, value))

    def _context(self, running: Running) -> tuple[JobContext, ...]:
        return (JobContext(running, self._open, self._beat),) if running.handler.takes_context else ()

    def _open(self, running: Running) -> JobTransaction:
        if self._transaction_engine is None:
            raise ConfigurationError(
                "context.transaction needs the queue's database, and a remote worker has no access to one. Deduplicate "
                "effects by context.job_id, or run this job in a worker beside the database."
            )
        return JobTransaction.of(self._transaction_engine, running, self._clock)

    def _arguments(self, running: Running) -> dict[str, Any]:
        return running.handler.codec.decode(running.job.payload)

    def _beat(self, running: Running, progress: str | None) -> bool:
        return self._store.progress(self._worker, running.claim, progress)

    def _succeeded(self, running: Running, output: object) -> None:
        keeps_key = running.job.unique_seconds is not None
        report = Success(running.claim, self._duration_ms(running), _as_json(running, output), keeps_key)
        if isinstance(running.transaction, JobTransaction) and running.transaction.is_used:
            self._complete_together(running, running.transaction, report)
        else:
            self._end(running, report)

    def _complete_together(self, running: Running, transaction: JobTransaction, report: Success) -> None:
        running.is_reported = True
        try:
            transaction.complete(self._store, self._worker, report)
        except InvalidTransition:
            self._telemetry.stale([running.claim])
            self._forget(running)
        except BaseException as error:
            running.is_reported = False
            self._failed(running, error)
        else:
            self._telemetry.succeeded(1)
            self._forget(running)

    def _failed(self, running: Running, error: BaseException) -> None:
        if running.transaction is not None:
            running.transaction.close()
        self._telemetry.raised(running, error)
        self._end(running, ending(running, error, self._duration_ms(running)))

    def _end(self, running: Running, report: Report) -> None:
        if running.is_taken:
            self._telemetry.stale([running.claim])
            self._forget(running)
        else:
            running.is_reported = True
            self._report(report)

    def _duration_ms(self, running: Running) -> int:
        return int((self._clock.monotonic() - running.started_at) * 1000)


def ending(running: Running, error: BaseException, duration_ms: int) -> Report:
    """Return the report for an attempt that raised."""
    report = _ending(running, error, duration_ms)
    if isinstance(report, Failure):
        return report._replace(error=storable(report.error))
    return report._replace(reason=storable(report.reason)) if isinstance(report, PutBack) and report.reason else report


def _ending(running: Running, error: BaseException, duration_ms: int) -> Report:
    claim = running.claim
    match error:
        case Snooze():
            return PutBack(claim, error.in_seconds, str(error))
        case Discard():
            return Failure(claim, duration_ms, str(error) or "discarded", is_final=True)
        case PayloadError():
            return Failure(claim, duration_ms, str(error), is_final=True)
        case Retry():
            return Failure(claim, duration_ms, str(error), error.in_seconds)
        case JobCancelled() | asyncio.CancelledError() if running.cancel_reason is not None:
            return Stopped(claim, duration_ms)
        case asyncio.CancelledError() | LostLeaseError() if running.is_lost:
            return PutBack(claim)
        case Unavailable() | Ambiguous():
            return Failure(claim, duration_ms, f"The commit failed, and everything was undone: {error}")
    return Failure(claim, duration_ms, _told(error))


def _told(error: BaseException) -> str:
    try:
        told = str(error)
    except Exception:  # an exception of the user's own may fail at this too
        told = "it cannot be shown"
    return f"{type(error).__name__}: {told}"


def storable(text: str) -> str:
    """Return a text that every database takes: without NUL, without halves of surrogate pairs, and not endless."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")[:_MOST_ERROR_CHARACTERS]


def _as_json(running: Running, output: object) -> str | None:
    if output is None:
        return None
    try:
        return json.dumps(output, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        _log.warning("The result of job %d is not JSON and was not kept: %s", running.job.id, error)
        return None
