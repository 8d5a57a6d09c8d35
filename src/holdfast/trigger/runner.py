"""The algorithm of a trigger: hold the lease, fetch, deliver, commit, and again.

Delivery is at least once: a batch that was handled but not committed comes again. It is exactly once for effects
written through ``context.transaction``, which commit together with the checkpoint or not at all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.engine import Engine

from ..core.clock import Clock, SystemClock, new_id
from ..core.errors import CommitError as CommitError
from ..core.errors import (
    ConfigurationError,
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
from ..core.invocation import HandlerInvoker
from ..core.names import checked_name
from ..core.normalizer import EventNormalizer, normalize
from ..core.retry import RetryPolicy
from ..core.telemetry import MetricsCollector
from ..core.telling import first_line
from ..core.types import JsonObject
from ..runtime.context import lent_to
from ..runtime.keeper import checked_interval, keeping
from ..runtime.transaction import HandlerTransaction, ended_itself
from ..state.foreign import ForeignLease, ForeignStateStore
from ..state.lease import HeldLease, Lease
from ..state.store import SourceChange, StateStore
from ..state.stores.sql import SqlDocumentStore
from .context import PollContext
from .settings import check_counts, check_parts
from .sources.protocol import FetchResult, SimpleSource, SourceAdapter, adapted, checkpoint_after
from .telemetry import BatchTrace, TriggerTelemetry

_RELEASE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """How many events were delivered and committed, and whether there is nothing more to read now."""

    delivered: int
    caught_up: bool


class PollRunner:
    """Runs one trigger. ``tick`` does bounded work under a lease; ``leased`` is for workers that keep one."""

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
        heartbeat_interval_seconds: float | None = None,
        tick_deadline_seconds: float | None = None,
        on_source_change: SourceChange = "reject",
        transaction_engine: Engine | None = None,
        clock: Clock | None = None,
        stop: threading.Event | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        check_counts(
            batch_size=batch_size, max_batches_per_tick=max_batches_per_tick, lease_ttl_seconds=lease_ttl_seconds
        )
        check_parts(source, state_store, retry_policy)
        if on_source_change not in ("reject", "reset"):
            raise ConfigurationError(f"on_source_change={on_source_change!r} is not known: use 'reject' or 'reset'.")
        checked_interval(heartbeat_interval_seconds, lease_ttl_seconds)
        if isinstance(state_store, StateStore):
            state_store.skew_margin(lease_ttl_seconds)
        self._name = checked_name("The trigger name", name)
        self._source = adapted(source)
        self._state_store = state_store
        self._normalizer = normalizer
        self._invoker = HandlerInvoker(handler, loop)
        self._batch_size = batch_size
        self._max_batches = max_batches_per_tick
        self._ttl_seconds = lease_ttl_seconds
        self._retry_policy = retry_policy or RetryPolicy(max_retries=0)
        self._heartbeat_interval = heartbeat_interval_seconds
        self._tick_deadline_seconds = tick_deadline_seconds
        self._on_source_change = on_source_change
        self._clock = clock or SystemClock()
        self._stop = stop or threading.Event()
        documents = state_store.documents if isinstance(state_store, StateStore) else None
        self._transaction_engine = (
            (transaction_engine or documents.engine) if isinstance(documents, SqlDocumentStore) else None
        )
        self._telemetry = TriggerTelemetry(name, self._source.source_descriptor.name, metrics, self._clock)

    @property
    def name(self) -> str:
        """Return the poller's name."""
        return self._name

    @property
    def title(self) -> str:
        """Return what people call it."""
        return f"Trigger '{self._name}'"

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
            TransactionEndedError: the handler ended ``context.transaction`` itself; the trigger is stopped now.
            FetchError, CommitError, SourceConfigurationError, FingerprintMismatchError: as their names say.
        """
        started = self._clock.monotonic()
        delivered = 0
        try:
            with self.leased() as lease:
                for _ in range(self._max_batches):
                    outcome = self.process_batch(lease)
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
            lease = self._acquire()
        try:
            with keeping(lease, self._clock, interval_seconds=self._heartbeat_interval):
                yield lease
        finally:
            self._release(lease)

    def process_batch(self, lease: HeldLease) -> BatchOutcome:
        """Fetch one batch after the lease's checkpoint, deliver it, and commit the checkpoint under the lease."""
        invocation_id = new_id()
        trace = BatchTrace(invocation_id, f"batch_{invocation_id}", self._batch_size, lease_owner=lease.owner_id)
        trace.checkpoint_before = lease.checkpoint
        with self._telemetry.batch(trace):
            with self._telemetry.step(trace, "fetch", FetchError, f"Changes of '{self._name}' could not be read"):
                found = self._source.fetch_changes(lease.checkpoint, self._batch_size)
            self._telemetry.held_back(found.held_back_by)
            if not found.records:
                if found.caught_up:
                    self._telemetry.caught_up()
                return BatchOutcome(0, found.caught_up)
            trace.fetched_count = len(found.records)
            self._deliver(found, trace, lease)
            trace.committed = True
            trace.lag_seconds = self._telemetry.lag(found.newest_at, lease.now())
        return BatchOutcome(trace.fetched_count, found.caught_up)

    def _acquire(self) -> HeldLease:
        if isinstance(self._state_store, StateStore):
            return self._state_store.acquire(
                self._name,
                ttl_seconds=self._ttl_seconds,
                source=self._source.source_descriptor,
                on_source_change=self._on_source_change,
            )
        return ForeignLease(self._state_store, self._name, int(self._ttl_seconds), self._clock)

    def _release(self, lease: HeldLease) -> None:
        try:
            lease.release(wait_seconds=_RELEASE_SECONDS)
        except Exception as error:  # whatever it is, the lease frees itself when it runs out
            self._telemetry.release_failed(error)

    def _is_over(self, started: float) -> bool:
        if self._stop.is_set():
            return True
        limit = self._tick_deadline_seconds
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
            transaction = self._transaction_of(lease)
            try:
                context = self._context(trace, lease, transaction, tick_started_at)
                self._handle(events, context, trace, lease, transaction)
                self._commit(trace, lease, transaction)
                return
            except TransactionEndedError as error:
                self._stop_for(error, lease)
                raise
            except HandlerError as error:
                if attempt == attempts:
                    raise
                delay = self._retry_policy.delay_for_attempt(attempt - 1)
                self._telemetry.retrying(trace, error, delay)
            finally:
                if transaction is not None:
                    transaction.close()
            self._clock.wait(lease.lost, delay)
            self._require_held(lease)

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
        )

    def _stop_for(self, error: TransactionEndedError, lease: HeldLease) -> None:
        """Deliver no more until someone has looked at what the handler kept: the next delivery would repeat it."""
        if isinstance(lease, Lease):
            lease.stop(first_line(str(error)))
            self._telemetry.stopped(str(error))

    def _context(
        self,
        trace: BatchTrace,
        lease: HeldLease,
        transaction: HandlerTransaction | None,
        tick_started_at: datetime,
    ) -> PollContext:
        limit = self._tick_deadline_seconds
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
                ended = ended_itself(transaction, error)
                if ended is not None:
                    raise ended from error
                if not isinstance(error, Exception):
                    raise
                self._require_held(lease)
                raise HandlerError(f"{message}: {type(error).__name__}: {error}") from error
        self._require_held(lease)

    def _commit(self, trace: BatchTrace, lease: HeldLease, transaction: HandlerTransaction | None) -> None:
        message = f"The checkpoint of '{self._name}' could not be recorded"
        joined = transaction if transaction is not None and transaction.is_used else None
        with self._telemetry.step(trace, "commit", CommitError, message):
            lease.commit(trace.checkpoint_after or {}, joined)

    def _require_held(self, lease: HeldLease) -> None:
        if lease.lost.is_set():
            raise LostLeaseError(
                f"The lease of '{self._name}' was lost while a batch was handled. Nothing was committed; the present "
                "holder delivers the batch again."
            )
