"""One attempt from its payload to its report. What the handler raises decides how the attempt ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy.engine import Connection, Engine

from ..core.blocking_calls import on_own_thread
from ..core.clock import Clock
from ..core.errors import (
    Ambiguous,
    ConfigurationError,
    HandlerError,
    InvalidTransition,
    LostLeaseError,
    PayloadError,
    TransactionEndedError,
    Unavailable,
    UndoneError,
)
from ..database.connection_slots import slots_of
from ..database.error_text import bounded_traceback, error_text, public_error_text
from ..records.failure_text import failure_text
from ..records.storable_text import plain
from ..runtime.awaited import require_run
from ..runtime.own_context import in_own_context, own_decimals
from ..runtime.transaction import HandlerTransaction, outranking
from .context import JobContext
from .correlation import current_correlation_id
from .model import (
    MISFIT_SECONDS,
    Failure,
    PutBack,
    Stopped,
    Success,
    WorkerId,
    put_back_undone,
)
from .once import may_run_once
from .outcomes import Discard, JobCancelled, Retry, Snooze, decisive, require_raised
from .overdue import overdue_error
from .payload import OtherVersionError
from .reporter import Report
from .running import Delivering, Running, current_running
from .stores.protocol import WorkerStore
from .telemetry import WorkerTelemetry
from .texts import storable

_log = logging.getLogger("holdfast.jobs")
_MOST_RESULT_BYTES = 1024 * 1024
_MAY_HAVE_EFFECTS = (
    "It may run once, and what it did elsewhere was not undone, so it is not begun again. Look at that, then let it "
    "run with 'holdfast dlq retry'; declare a job that does nothing elsewhere with transactional=True."
)
_LEAST_SNOOZE_SECONDS = 0.001  # what is put back for no time at all keeps its place, in front of others

_DECISIONS = (Discard, JobCancelled, LostLeaseError, Retry, Snooze, asyncio.CancelledError)


class _UnreadableError(PayloadError):
    """The payload of the job itself does not fit its handler."""


class _MisfitError(_UnreadableError):
    """The payload of the job is for another version of its handler."""


class Execution:
    """Runs attempts and says how they ended.

    No more transactions are open at once than there are connections for them, on threads and on the event loop
    together. Jobs that wait for one keep their leases.
    """

    def __init__(
        self,
        store: WorkerStore,
        worker: WorkerId,
        transaction_engine: Engine | None,
        telemetry: WorkerTelemetry,
        clock: Clock,
        report: Callable[[Report], None],
        forget: Callable[[Running], None],
        *,
        most_result_bytes: int = _MOST_RESULT_BYTES,
    ) -> None:
        self._store = store
        self.worker = worker
        self._transaction_engine = transaction_engine
        self._telemetry = telemetry
        self.clock = clock
        self._report = report
        self._forget = forget
        self._most_result_bytes = most_result_bytes
        self._places = None if transaction_engine is None else slots_of(transaction_engine)

    def run(self, running: Running) -> None:
        """Call a ``def`` handler and report."""
        running.begin(self.clock.monotonic())
        if self._was_stopped(running) or (may_run_once(running) and not self._may_begin(running)):
            return
        in_own_context(partial(self._run_here, running))

    def _run_here(self, running: Running) -> None:
        current_correlation_id.set(running.job.correlation_id)
        current_running.set(running)
        try:
            if running.handler.delivering is not None:
                self._deliver(running, running.handler.delivering)
                return
            output = running.handler.function(*self._context(running), **self._arguments(running))
            require_run(output, awaits=False)
            require_raised(output)
        except BaseException as error:  # sys.exit() in a handler is a failure like any other
            self._failed(running, error)
        else:
            self._succeeded(running, output)

    def _deliver(self, running: Running, delivering: Delivering) -> None:
        """Let a workload of its own take the job to its end; what it leaves open, because it is lost, is given back."""
        with self._never_lost(running):
            try:
                delivering.deliver(running, self)
            finally:
                self._close(running)
            if not running.is_reported:
                self.end(running, PutBack(running.claim))

    async def run_async(self, running: Running) -> None:
        """Call an ``async def`` handler and report. Its transaction ends on a thread: the loop is never blocked."""
        running.begin(self.clock.monotonic())
        if self._was_stopped(running):
            return
        own_decimals()
        current_correlation_id.set(running.job.correlation_id)
        current_running.set(running)
        try:
            if may_run_once(running) and not await self._may_begin_soon(running):
                return
            output = await running.handler.function(*self._context(running), **self._arguments(running))
            require_run(output, awaits=True)
            require_raised(output)
        except BaseException as error:
            await self._off_loop(running, self._failed, error)
        else:
            await self._off_loop(running, self._succeeded, output)

    def _was_stopped(self, running: Running) -> bool:
        """Return whether a job was cancelled or lost before its turn came; then it has been reported."""
        if running.is_lost:
            self.end(running, PutBack(running.claim))
        elif running.cancel_reason is not None:
            self.end(running, Stopped(running.claim, 0))
        else:
            return False  # what comes after this look stops the handler
        return True

    def _may_begin(self, running: Running) -> bool:
        """Record the begin of a job that may run once [ONCE-1]; when that is not answered it is given back unbegun."""
        try:
            if self._store.begin(self.worker, running.claim):
                return True
        except (Unavailable, Ambiguous) as error:
            self._telemetry.unavailable("Recording the begin of a job", error)
            self.end(running, PutBack(running.claim, is_unbegun=True))
            return False
        running.lose(is_certain=True)
        self.end(running, PutBack(running.claim))
        return False

    async def _may_begin_soon(self, running: Running) -> bool:
        """Record the begin off the loop. A cancellation meanwhile waits for it: nothing may be recorded after it."""
        recorded = on_own_thread(partial(self._may_begin, running))
        try:
            return await asyncio.shield(recorded)
        except asyncio.CancelledError:
            if await recorded:
                self.end(running, PutBack(running.claim, is_unbegun=True))
            return False

    async def _off_loop(self, running: Running, end: Callable[[Running, Any], None], value: object) -> None:
        if running.transaction is None:
            return end(running, value)
        try:
            ended = on_own_thread(partial(end, running, value))
        except RuntimeError:  # no thread can be had
            return end(running, value)
        await asyncio.shield(ended)
        return None

    def _context(self, running: Running) -> tuple[JobContext, ...]:
        return (JobContext(running, self),) if running.handler.takes_context else ()

    def open(self, running: Running) -> HandlerTransaction:
        """Return the transaction of an attempt, made when it is first asked for."""
        if self._transaction_engine is None:
            raise ConfigurationError(
                "context.transaction needs the queue's database, and a remote worker has no access to one. Deduplicate "
                "effects by context.job_id, or run this job in a worker beside the database."
            )
        if running.transaction is None:
            running.transaction = HandlerTransaction(
                self._transaction_engine,
                running.job.lease_seconds,
                check=lambda connection: self._store.hold_on(connection, self.worker, running.claim),
                protect=partial(self._protect, running),
                is_held=lambda: not running.is_lost,
                title=f"job {running.job.id} ('{running.handler.operation}')",
                places=self._places,
            )
        return running.transaction

    def _protect(self, running: Running, is_locked: bool) -> None:
        """Note since when the handler holds SQLite's write lock: nobody can beat meanwhile, nor take the job."""
        if is_locked:
            running.locked_since = self.clock.monotonic()
        elif running.locked_since is not None:
            held, running.locked_since = self.clock.monotonic() - running.locked_since, None
            if held > running.job.lease_seconds / 3:
                self._telemetry.locked_for_long(running, held)

    def _arguments(self, running: Running) -> dict[str, Any]:
        try:
            return running.handler.codec.decode(running.job.payload)
        except PayloadError as error:
            kind = _MisfitError if isinstance(error, OtherVersionError) else _UnreadableError
            raise kind(str(error)) from error

    def report_progress(self, running: Running, progress: str | None) -> bool:
        """Tell progress, unless the handler itself holds SQLite's write lock: nobody can take its lease meanwhile."""
        return running.locked_since is not None or self._store.progress(self.worker, running.claim, progress)

    def _succeeded(self, running: Running, output: object) -> None:
        try:
            keeps_key = running.job.unique_seconds is not None
            result = None if output is None else _as_json(running, output, self._most_result_bytes)
            report = Success(running.claim, self._duration_ms(running), result, keeps_key)
            if running.transaction is not None and running.transaction.is_used:
                self._complete_together(running, running.transaction, report)
            else:
                self._close(running)
                self.end(running, report)
        except BaseException as error:
            self._end_anyhow(running, error)

    def _complete_together(self, running: Running, transaction: HandlerTransaction, report: Success) -> None:
        """Commit the handler's writes and the completion, fenced by owner and attempt."""
        if not running.take_report():
            self._close(running)
            return self._refuse(running)
        try:
            self._settle(running, transaction, report)
        except InvalidTransition:
            self._refuse(running)
        except BaseException as error:
            running.is_reported = False
            self._failed(running, error)
        else:
            self._telemetry.succeeded(1)
            self.forget(running)
        return None

    def _settle(self, running: Running, transaction: HandlerTransaction, report: Success) -> None:
        def record(connection: Connection) -> None:
            if not self._store.complete_on(connection, self.worker, report):
                raise InvalidTransition(f"Job {running.job.id} is no longer this worker's. Its writes were undone.")

        transaction.settle_or_look(record, lambda: self._store.has_landed(running.job))

    def _failed(self, running: Running, error: BaseException) -> None:
        with self._never_lost(running):
            instead = outranking(running.transaction, error)
            if isinstance(instead, TransactionEndedError) or not isinstance(decisive(error), _DECISIONS):
                error = instead or error
            self._close(running)
            self._telemetry.raised(running, error)
            if isinstance(error, _MisfitError):
                self._telemetry.misfit(running, str(error))
            self.end(running, ending(running, error, self._duration_ms(running)))

    def _close(self, running: Running) -> None:
        if running.transaction is not None:
            running.transaction.close()

    @contextmanager
    def _never_lost(self, running: Running) -> Iterator[None]:
        """Report a failure when ending an attempt fails itself: a job that nobody reports would be held for ever."""
        try:
            yield
        except BaseException as error:
            self._end_anyhow(running, error)

    def _end_anyhow(self, running: Running, error: BaseException) -> None:
        _log.exception("Job %d could not be ended as it should", running.job.id)
        if not running.is_reported:
            failure = Failure(running.claim, self._duration_ms(running), error_text(error))
            self.end(running, _with_traceback(failure, error))

    def end(self, running: Running, report: Report) -> None:
        """Report how an attempt ended, unless it is surely someone else's by now."""
        if running.is_taken or not running.take_report():
            self._refuse(running)
        else:
            self._report(report)

    def _refuse(self, running: Running) -> None:
        self._telemetry.stale([running.claim])
        self.forget(running)

    def forget(self, running: Running) -> None:
        """Let go of an attempt whose end was recorded in its transaction, or is nobody's business any more."""
        running.is_reported = True
        self._forget(running)

    def _duration_ms(self, running: Running) -> int:
        return int((self.clock.monotonic() - running.started_at) * 1000)


def ending(running: Running, error: BaseException, duration_ms: int) -> Report:
    """Return the report for an attempt that raised."""
    if isinstance(error, UndoneError):
        report = _undone(running, str(error), duration_ms)
    else:
        report = _ending(running, decisive(error), duration_ms)
    if isinstance(report, Failure):
        return _with_traceback(report, error)
    return report._replace(reason=storable(report.reason)) if isinstance(report, PutBack) and report.reason else report


def _ending(running: Running, error: BaseException, duration_ms: int) -> Report:
    claim = running.claim
    match error:
        case Snooze():
            return PutBack(claim, max(_LEAST_SNOOZE_SECONDS, error.in_seconds), str(error))
        case Discard():
            return Failure(claim, duration_ms, str(error) or "discarded", is_final=True)
        case _MisfitError():
            return PutBack(claim, MISFIT_SECONDS, str(error), is_unbegun=True, is_misfit=True)
        case TransactionEndedError() | _UnreadableError():
            return Failure(claim, duration_ms, str(error), is_final=True)
        case Retry():
            return Failure(claim, duration_ms, str(error), error.in_seconds)
        case JobCancelled() | asyncio.CancelledError() if running.cancel_reason is not None:
            return Stopped(claim, duration_ms)
        case asyncio.CancelledError() | LostLeaseError() if running.is_lost:
            return PutBack(claim)
        case asyncio.CancelledError() if running.is_overdue:
            return Failure(claim, duration_ms, overdue_error(running))
        case HandlerError():
            return Failure(claim, duration_ms, str(error))
    return Failure(claim, duration_ms, error_text(error))


def _undone(running: Running, reason: str, duration_ms: int) -> Report:
    """Return the report for an attempt that the database undid: it comes again uncharged, but not for ever.

    What may run once is not begun again unless it has no other effects [ONCE-1]: those were not undone.
    """
    if may_run_once(running) and not running.handler.is_transactional:
        return Failure(running.claim, duration_ms, f"{reason.rstrip('.')}. {_MAY_HAVE_EFFECTS}")
    return put_back_undone(running.job, reason) or Failure(running.claim, duration_ms, reason)


def _with_traceback(report: Failure, error: BaseException) -> Failure:
    return report._replace(error=storable(failure_text(report.error, bounded_traceback(error))))


def _as_json(running: Running, output: object, most_bytes: int) -> str | None:
    """Return a result as it is kept, None when it cannot be: the job has succeeded all the same."""
    try:
        result = plain(json.dumps(output, ensure_ascii=False, allow_nan=False))
        size = len(result.encode())
    except Exception as error:  # objects of the user's own may fail in ways of their own
        _log.warning("The result of job %d is not JSON and was not kept: %s", running.job.id, public_error_text(error))
        return None
    if size > most_bytes:
        _log.warning(
            "The result of job %d was not kept: it has %d bytes, and at most %d are. Return where it can be found.",
            running.job.id,
            size,
            most_bytes,
        )
        return None
    return result
