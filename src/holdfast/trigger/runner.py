"""The algorithm of a trigger: hold the lease, fetch, deliver, commit, and again.

Delivery is at least once: a batch that was handled but not committed comes again. It is exactly once for effects
written through ``context.transaction``, which commit together with the checkpoint or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..core.clock import SystemClock, new_id
from ..core.errors import CommitError as CommitError
from ..core.errors import (
    DbError,
    EventLoopUnavailable,
    FetchError,
    HandlerError,
    LeaseAcquireError,
    LeaseConflictError,
    LostLeaseError,
    SerializationError,
    StoppedError,
    TransactionEndedError,
)
from ..core.events import RowChange
from ..core.keywords import picked, require_known, takes
from ..core.names import checked_name
from ..core.normalizer import EventNormalizer, normalize
from ..core.patience import until_lost
from ..core.renewed import Recurring
from ..core.retry import RetryPolicy
from ..core.telemetry import MetricsCollector
from ..core.types import JsonObject
from ..database.connection_slots import slots_of
from ..database.error_text import error_text, public_error_text
from ..lease.foreign import ForeignLease, ForeignStateStore
from ..lease.held_lease import HeldLease, Lease
from ..lease.store import StateStore
from ..lease.stores.sql import SqlDocumentStore
from ..runtime.context import lent_to
from ..runtime.invocation import HandlerInvoker
from ..runtime.keeper import keeping
from ..runtime.pending_stop import PendingStop
from ..runtime.transaction import HandlerTransaction, after_loss, left_behind, outranking
from .context import PollContext
from .definition import RunnerSettings, check_counts, check_parts
from .failures import FailureRecord
from .history_watch import HistoryWatch
from .sources.protocol import FetchResult, SimpleSource, SourceAdapter, adapted, checkpoint_after
from .telemetry import BatchTrace, TriggerTelemetry

if TYPE_CHECKING:
    from typing import Unpack

    from .options import RunnerOptions

_RELEASE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """How many events were delivered and committed, and whether there is nothing more to read now."""

    delivered: int
    caught_up: bool


class PollRunner:
    """Runs one trigger. ``tick`` does bounded work under a lease; ``leased`` is for workers that keep one."""

    @takes(RunnerSettings)
    def __init__(
        self,
        *,
        name: str,
        source: SourceAdapter | SimpleSource,
        state_store: StateStore | ForeignStateStore,
        handler: Callable[..., Any],
        normalizer: EventNormalizer | None = None,
        batch_size: int = 100,
        max_batches_per_tick: int = 1,
        lease_ttl_seconds: float = 120,
        retry_policy: RetryPolicy | None = None,
        metrics: MetricsCollector | None = None,
        **options: Unpack[RunnerOptions],
    ) -> None:
        require_known("PollRunner", options, RunnerSettings)
        own = picked(RunnerSettings, options)
        check_counts(
            batch_size=batch_size, max_batches_per_tick=max_batches_per_tick, lease_ttl_seconds=lease_ttl_seconds
        )
        check_parts(source, state_store, retry_policy)
        own.check(lease_ttl_seconds)
        if isinstance(state_store, StateStore):
            state_store.skew_margin(lease_ttl_seconds)
        self._name = checked_name("The trigger name", name)
        self._source = adapted(source)
        self._state_store = state_store
        self._normalizer = normalizer
        self._invoker = HandlerInvoker(handler, own.loop)
        self._batch_size = batch_size
        self._max_batches = max_batches_per_tick
        self._lease_seconds = lease_ttl_seconds
        self._retry_policy = retry_policy or RetryPolicy(max_retries=0)
        self._own = own
        self._clock = own.clock or SystemClock()
        self._stop = own.stop or threading.Event()
        self._pending_stop = PendingStop(self.title, self._clock)
        self._open_transaction: HandlerTransaction | None = None
        documents = state_store.documents if isinstance(state_store, StateStore) else None
        self._transaction_engine = (
            (own.transaction_engine or documents.engine) if isinstance(documents, SqlDocumentStore) else None
        )
        self._watch = HistoryWatch(name, self._source, state_store, self._clock)
        self._failures = FailureRecord(name, own.history)
        self._last_trace: BatchTrace | None = None
        source_name = self._source.source_descriptor.name
        self._telemetry = own.telemetry or TriggerTelemetry(name, source_name, metrics, self._clock)

    @property
    def name(self) -> str:
        """Return the poller's name."""
        return self._name

    @property
    def title(self) -> str:
        """Return what people call it."""
        return f"Trigger '{self._name}'"

    @property
    def telemetry(self) -> TriggerTelemetry:
        """Return what tells how it goes, to be handed to the next runner of the same trigger."""
        return self._telemetry

    @property
    def source(self) -> SourceAdapter:
        """Return where the changes come from."""
        return self._source

    def tick(self) -> int:
        """Take the lease, deliver up to ``max_batches_per_tick`` batches, give it back; return the events delivered.

        Returns 0 when another worker holds the lease. If the process dies here, the lease frees itself, and the next
        holder starts from the last committed checkpoint.

        Raises:
            HandlerError: the handler failed; its batch will come again.
            LostLeaseError: another worker took over; it delivers what is open.
            StoppedError: it was stopped, and nobody has resumed it.
            OtherApplicationError: another application is at work on it.
            TransactionEndedError: the handler ended ``context.transaction`` itself; the trigger is stopped now.
            FetchError, CommitError, SourceConfigurationError, FingerprintMismatchError: as their names say.
        """
        started = self._clock.monotonic()
        self._telemetry.tick_started()
        delivered = 0
        try:
            with self.leased() as lease:
                for _ in range(self._max_batches):
                    outcome = self._recorded(lease)
                    delivered += outcome.delivered
                    if outcome.caught_up or self._is_over(started):
                        break
        except StoppedError:
            raise
        except LeaseConflictError:
            return 0
        self._telemetry.tick_done(delivered, started)
        return delivered

    @contextmanager
    def leased(self) -> Iterator[HeldLease]:
        """Hold the lease, with a heartbeat beside whatever runs inside, and give it back at the end.

        Raises:
            LeaseConflictError: another worker holds it.
        """
        with self._telemetry.acquiring(LeaseAcquireError):
            self._invoker.require_loop()
            lease = self._acquire()
        try:
            with (
                keeping(lease, self._clock, interval_seconds=self._own.heartbeat_interval_seconds),
                keeping(self._lag_beside(lease), self._clock),
            ):
                yield lease
        finally:
            self._release(lease)

    def process_batch(self, lease: HeldLease) -> BatchOutcome:
        """Fetch one batch after the lease's checkpoint, deliver it, and commit the checkpoint under the lease.

        Whoever calls this hands a failure to ``record_failure``, with the time at which it tries again.
        """
        self._require_stop_written(lease)
        invocation_id = new_id()
        trace = BatchTrace(invocation_id, f"batch_{invocation_id}", self._batch_size, lease_owner=lease.owner_id)
        trace.checkpoint_before = lease.checkpoint
        self._last_trace = trace
        outcome = self._process(trace, lease)
        self._failures.clear(outcome.delivered, lease)
        return outcome

    def record_failure(self, lease: HeldLease, error: Exception, retry_seconds: float | None) -> None:
        """Keep why the last batch failed where people see it; ``retry_seconds`` is None where nobody knows the next."""
        if self._last_trace is not None:
            self._failures.add(error, self._last_trace, lease, retry_seconds)

    def _recorded(self, lease: HeldLease) -> BatchOutcome:
        try:
            return self.process_batch(lease)
        except Exception as error:
            self.record_failure(lease, error, None)
            raise

    def _process(self, trace: BatchTrace, lease: HeldLease) -> BatchOutcome:
        with self._telemetry.batch(trace, lease.now):
            failed = f"Changes of '{self._name}' could not be read"
            with self._telemetry.step(trace, "fetch", FetchError, failed), until_lost(lease.lost):
                found = self._watch.read(lease, lambda: self._source.fetch_changes(lease.checkpoint, self._batch_size))
            trace.checkpoint_before = lease.checkpoint
            self._telemetry.found(found, trace, lease.now())
            if not found.records:
                self._telemetry.nothing_found(trace)
                return BatchOutcome(0, found.caught_up)
            trace.fetched_count = len(found.records)
            self._deliver(found, trace, lease)
            trace.committed = True
            self._telemetry.lag.delivered(found, lease.now())
        return BatchOutcome(trace.fetched_count, found.caught_up)

    def abandon(self, lease: HeldLease) -> None:
        """Cut off a handler that is left to itself, and stop if it had ended its transaction: nobody may repeat it.

        If the process dies before the stop is written, whoever takes over delivers the same again.
        """
        reason = left_behind(self._open_transaction)
        if reason is not None:
            self._stop_for(reason, lease)

    def _require_stop_written(self, lease: HeldLease) -> None:
        """Stop before anything is delivered if the stop of an earlier batch could not be written."""
        if self._pending_stop.reason is not None:
            reason = self._pending_stop.reason
            self._stop_for(reason, lease)
            raise StoppedError(f"{self.title} was stopped: {reason}")

    def _acquire(self) -> HeldLease:
        if not isinstance(self._state_store, StateStore):
            return ForeignLease(self._state_store, self._name, int(self._lease_seconds), self._clock)
        try:
            return self._state_store.acquire(
                self._name,
                ttl_seconds=self._lease_seconds,
                source=self._source.source_descriptor,
                on_source_change=self._own.on_source_change,
            )
        except StoppedError:
            self._write_lag_of_stopped(self._state_store)
            raise

    def _write_lag_of_stopped(self, state: StateStore) -> None:
        """Write the lag of a trigger that nobody runs: rows may wait since it was stopped."""
        with suppress(DbError, ValueError):  # it is stopped: that is what to say
            view = state.read(self._name)
            if view is not None and view.stopped_at is not None:
                self._telemetry.unread(view.read_at, view.stopped_at)

    def _lag_beside(self, lease: HeldLease) -> Recurring:
        """Return what writes the lag as often as the lease is extended, whatever a handler is busy with."""

        def write() -> None:
            if not lease.lost.is_set():
                self._telemetry.waits(lease.now())

        return Recurring(self._clock, self._own.heartbeat_interval_seconds or lease.ttl_seconds / 3, write)

    def _release(self, lease: HeldLease) -> None:
        try:
            lease.release(wait_seconds=_RELEASE_SECONDS)
        except Exception as error:  # whatever it is, the lease frees itself when it runs out
            self._telemetry.release_failed(error)

    def _is_over(self, started: float) -> bool:
        if self._stop.is_set():
            return True
        limit = self._own.tick_deadline_seconds
        return limit is not None and self._clock.monotonic() - started >= limit

    def _events(self, found: FetchResult) -> list[RowChange]:
        try:
            return normalize(found.records, self._source.source_descriptor, self._normalizer)
        except Exception as error:
            raise SerializationError(f"A record of '{self._name}' could not become an event: {error}") from error

    def _checkpoint_after(self, found: FetchResult, events: list[RowChange], batch_id: str) -> JsonObject:
        position = found.next_checkpoint
        if position is None:
            position = checkpoint_after(events[-1].cursor, self._source.source_descriptor.name)
        return {**position, "last_successful_batch_id": batch_id, "metadata": {"row_count": len(events)}}

    def _deliver(self, found: FetchResult, trace: BatchTrace, lease: HeldLease) -> None:
        """Call the handler until it succeeds or its tries are used up, then commit.

        Every try gets events of its own: what an earlier try did to its list must not hide rows from the next.
        """
        attempts = self._retry_policy.max_retries + 1
        tick_started_at = self._clock.now()
        for attempt in range(1, attempts + 1):
            trace.attempt = attempt
            events = self._events(found)
            trace.checkpoint_after = self._checkpoint_after(found, events, trace.batch_id)
            transaction = self._open_transaction = self._transaction_of(lease)
            try:
                context = self._context(trace, lease, transaction, tick_started_at)
                self._handle(events, context, trace, lease, transaction)
                self._commit(trace, lease, transaction)
                return
            except TransactionEndedError as error:
                self._stop_for(public_error_text(error), lease)
                raise
            except HandlerError as error:
                if attempt == attempts or not self._is_retried(error):
                    raise
                delay = self._retry_policy.delay_for_attempt(attempt - 1)
                self._telemetry.retrying(trace, error, delay, lease.now())
            finally:
                self._open_transaction = None
                if transaction is not None:
                    transaction.close()
            self._clock.wait(lease.lost, delay)
            self._require_held(lease)

    def _is_retried(self, error: HandlerError) -> bool:
        """Return whether the policy wants another try after what the handler raised."""
        retries = getattr(self._retry_policy, "retries", None)  # a policy of the user's own need not choose
        return retries is None or bool(retries(error.__cause__ or error))

    def _transaction_of(self, lease: HeldLease) -> HandlerTransaction | None:
        """Return a delivery's transaction, not open yet; None when the state is not kept in SQL."""
        if self._transaction_engine is None or not isinstance(lease, Lease):
            return None
        return HandlerTransaction(
            self._transaction_engine,
            lease.ttl_seconds,
            check=lease.check_on,
            protect=lease.protect,
            is_held=lambda: not lease.lost.is_set(),
            when_lost=lease.when_lost,
            title=self.title,
            places=slots_of(self._transaction_engine),
        )

    def _stop_for(self, reason: str, lease: HeldLease) -> None:
        """Deliver no more until someone has looked at what the handler kept: the next delivery would repeat it."""
        if isinstance(lease, Lease):
            self._pending_stop.write(reason, lease, lease.stop)
            self._telemetry.stopped(reason)

    def _context(
        self,
        trace: BatchTrace,
        lease: HeldLease,
        transaction: HandlerTransaction | None,
        tick_started_at: datetime,
    ) -> PollContext:
        limit = self._own.tick_deadline_seconds
        return PollContext(
            poller_name=self._name,
            invocation_id=trace.invocation_id,
            batch_id=trace.batch_id,
            lease_owner=lease.owner_id,
            checkpoint_before=dict(trace.checkpoint_before or {}),
            checkpoint_after_candidate=dict(trace.checkpoint_after or {}),
            tick_started_at=tick_started_at,
            source_name=self._source.source_descriptor.name,
            correlation_id=trace.batch_id,
            fencing_token=lease.fencing_token,
            attempt=trace.attempt,
            lease_lost=lease.lost,
            _beat=lease.heartbeat,
            _is_async=self._invoker.is_async,
            deadline=None if limit is None else tick_started_at + timedelta(seconds=limit),
            _transaction=lent_to(transaction, is_async=self._invoker.is_async),
        )

    def _handle(
        self,
        events: list[RowChange],
        context: PollContext,
        trace: BatchTrace,
        lease: HeldLease,
        transaction: HandlerTransaction | None,
    ) -> None:
        message = f"The handler of '{self._name}' failed on batch {trace.batch_id}"
        with self._telemetry.step(trace, "handler", HandlerError, message):
            try:
                self._invoker.invoke(events, context, lease)
            except BaseException as error:  # one of ours too: a handler writes through DbOut, or has its own lease
                instead = outranking(transaction, error)
                if not isinstance(instead, TransactionEndedError):
                    self._require_held(lease)
                if instead is not None:
                    raise instead from error
                if not isinstance(error, Exception) or isinstance(error, EventLoopUnavailable):
                    raise
                raise HandlerError(f"{message}: {error_text(error)}") from error
        self._require_held(lease, transaction)

    def _commit(self, trace: BatchTrace, lease: HeldLease, transaction: HandlerTransaction | None) -> None:
        message = f"The checkpoint of '{self._name}' could not be recorded"
        joined = transaction if transaction is not None and transaction.is_used else None
        with self._telemetry.step(trace, "commit", CommitError, message):
            checkpoint = trace.checkpoint_after or {}
            history = self._watch.after(checkpoint)
            lease.commit(checkpoint, joined, history)
            self._watch.committed(history)

    def _require_held(self, lease: HeldLease, transaction: HandlerTransaction | None = None) -> None:
        if lease.lost.is_set():
            lost = LostLeaseError(
                f"The lease of '{self._name}' was lost while a batch was handled. Nothing was committed; the present "
                "holder delivers the batch again."
            )
            raise after_loss(transaction, lost)
