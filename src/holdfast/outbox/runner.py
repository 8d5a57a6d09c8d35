"""The algorithm of a processor's partition: hold the lease, read, lock the checkpoint, handle, move it, and again.

Exactly once for effects written through ``context.transaction``: they commit with the checkpoint, and the checkpoint is
moved only from where this instance expects it and under its token. Whoever finds it elsewhere calls no handler.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.engine import Connection, Engine

from ..core.clock import Clock
from ..core.errors import (
    Ambiguous,
    CheckpointMismatchError,
    HandlerError,
    LeaseConflictError,
    LostLeaseError,
    StoppedError,
    TransactionEndedError,
    Unavailable,
)
from ..core.telling import first_line, told
from ..runtime.context import lent_to
from ..runtime.keeper import keeping
from ..runtime.transaction import Check, HandlerTransaction, ended_itself
from ..state.lease import HeldLease
from ..state.store import StateStore, new_owner_id
from .checkpoints import CheckpointResult, CheckpointStore, Move, PartitionId, Place, Role
from .cluster import Cluster
from .context import ProcessorContext, without_transaction
from .definition import Processor
from .letters import Letters, Redelivery
from .message import Checkpoint, Message
from .outcomes import Done, Skip, Stop
from .reader import Batch, OutboxReader
from .step import Step
from .telemetry import ProcessorTelemetry

_RELEASE_SECONDS = 5.0
_TELL_WAITING_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_LOOK_SECONDS_IF_TOLD = 20.0
_LOOK_AROUND_SECONDS = 0.2


class PartitionRunner:
    """Runs one partition of a processor in one process.

    Args:
        processor: what is declared.
        partition: which of its partitions.
        reader: reads its messages.
        checkpoints: where it stands, on connections the handlers do not use.
        leases: keeps its lease, on connections of their own.
        engine: where ``context.transaction`` is opened.
    """

    def __init__(
        self,
        processor: Processor,
        partition: PartitionId,
        *,
        reader: OutboxReader,
        checkpoints: CheckpointStore,
        leases: StateStore,
        cluster: Cluster,
        engine: Engine,
        telemetry: ProcessorTelemetry,
        clock: Clock,
        stop: threading.Event | None = None,
        is_told_of_changes: bool = False,
    ) -> None:
        self._processor = processor
        self._settings = processor.settings
        self.id = partition
        self._reader = reader
        self._checkpoints = checkpoints
        self._leases = leases
        self._cluster = cluster
        self._engine = engine
        self._telemetry = telemetry
        self._should_stop = stop or threading.Event()
        self._clock = clock
        self._letters = Letters(checkpoints)
        self._instance = new_owner_id()
        self._place: Place | None = None
        self._is_waiting = False
        self._told_waiting_at = 0.0
        self._redeliveries_at = 0.0
        self._look_at = 0.0
        self._look_seconds = _LOOK_SECONDS_IF_TOLD if is_told_of_changes else _LOOK_SECONDS
        self._is_failing = False

    @property
    def title(self) -> str:
        """Return what people call it."""
        return f"Processor {self.id}"

    @contextmanager
    def leased(self) -> Iterator[HeldLease]:
        """Hold the lease, with a heartbeat beside whatever runs inside, and give it back at the end.

        Raises:
            LeaseConflictError: another instance holds it, and this one is seen to wait; or nothing may run now.
        """
        with self._telemetry.step(self):
            self._require_runnable(self._checkpoints.get(self.id))
            lease = self._acquire()
        try:
            with keeping(lease, self._clock, interval_seconds=self._settings.heartbeat_seconds):
                with self._telemetry.step(self):
                    self._take_over(lease)
                yield lease
        finally:
            self._place = None
            self._release(lease)

    def is_held_back(self) -> bool:
        """Return whether messages are committed that cannot be read yet, since an older transaction is open."""
        last, place = self._reader.last(), self._place
        if last is None or place is None:
            return False
        return place.checkpoint is None or last > place.checkpoint

    def look_for_changes(self) -> None:
        """Look at the next step for what people have changed: it need not wait until it is due."""
        self._redeliveries_at = self._look_at = 0.0

    def process_batch(self, lease: HeldLease) -> Step:
        """Deliver what was put back by hand, then the next batch, and move the checkpoint."""
        with self._telemetry.step(self):
            if self._place is None:
                self._take_over(lease)
            return self._redeliver(lease) or self._next(lease)

    # Being in charge

    def _acquire(self) -> HeldLease:
        try:
            lease = self._leases.acquire(self.id.lease_name, ttl_seconds=self._settings.lease_seconds)
        except LeaseConflictError as error:
            self._tell_waiting()
            raise LeaseConflictError(f"{self.title} is run by another instance. {error}") from error
        if self._is_waiting:
            self._is_waiting = False
            self._checkpoints.forget_waiting(self.id, self._instance)
        return lease

    def _tell_waiting(self) -> None:
        """Let ``holdfast processor list`` show that there is a second instance."""
        now = self._clock.monotonic()
        if not self._is_waiting or now - self._told_waiting_at >= _TELL_WAITING_SECONDS:
            self._checkpoints.note_waiting(self.id, self._instance)
            self._is_waiting, self._told_waiting_at = True, now

    def _take_over(self, lease: HeldLease) -> None:
        """Make the stored token ours, so that a former holder can store nothing, and learn where to go on."""
        place = self._checkpoints.take_over(self.id, lease.fencing_token, lease.ttl_seconds)
        if place is None:
            lease.mark_lost()
            raise LostLeaseError(self._outdated_token(lease))
        self._require_runnable(place)
        self._cluster.check(place)
        self._place = place

    def _has_been_changed(self, lease: HeldLease) -> bool:
        """While nothing comes, notice what people do: a checkpoint moved by hand, a stop, a promotion."""
        now, known = self._clock.monotonic(), self._place
        if now < self._look_at:
            return False
        self._look_at = now + self._look_seconds
        place = self._checkpoints.get(self.id)
        self._require_runnable(place)
        self._place = place if place is not None and place.fencing_token == lease.fencing_token else None
        return self._place is None or known is None or self._place.checkpoint != known.checkpoint

    def _outdated_token(self, lease: HeldLease) -> str:
        stored = self._checkpoints.get(self.id)
        token = None if stored is None else stored.fencing_token
        return (
            f"{self.title}: the lease has token {lease.fencing_token} and the checkpoint {token}. Another instance "
            "took over; if there is none, the lease's document was deleted: run 'holdfast processor resume' "
            "to start afresh."
        )

    def _require_runnable(self, place: Place | None) -> None:
        if place is None:
            raise StoppedError(f"{self.title} is not registered any more. Start it again to register it.")
        if place.role is Role.RETIRED:
            raise StoppedError(f"{self.title} was retired when a newer version was promoted. Remove it from the code.")
        if not place.may_run:
            raise StoppedError(
                f"{self.title} is stopped{f': {place.reason}' if place.reason else ''}. "
                f"Run 'holdfast processor resume {self.id.processor_id}' when that is dealt with."
            )

    def _release(self, lease: HeldLease) -> None:
        try:
            lease.release(wait_seconds=_RELEASE_SECONDS)
        except Exception as error:  # whatever it is, the lease frees itself when it runs out
            self._telemetry.release_failed(self, error)

    # Delivering

    def _next(self, lease: HeldLease) -> Step:
        place = self._known_place()
        batch = self._reader.read(place.checkpoint, self._settings.batch_size)
        if batch.reached is None:
            return Step(0, caught_up=not self._has_been_changed(lease))
        move = Move(place.checkpoint, batch.reached, batch.highest_position)
        if batch.messages:
            self._deliver(batch, move, lease)
        else:
            self._pass_by(move, lease)
        return Step(len(batch.messages), caught_up=not batch.is_full)

    def _deliver(self, batch: Batch, move: Move, lease: HeldLease) -> None:
        failure = self._try_to_deliver(batch.messages, move, lease)
        if failure is None:
            return
        if self._settings.on_error == "stop":
            self._stop(lease, f"{failure.error}")
        if len(batch.messages) == 1:
            self._bury(batch.messages[0], failure, move, lease)
            return
        for message, step in self._one_by_one(batch.messages, move):
            alone = self._try_to_deliver([message], step, lease)
            if alone is not None:
                self._bury(message, alone, step, lease)

    def _one_by_one(self, messages: list[Message], move: Move) -> Iterator[tuple[Message, Move]]:
        """Yield each message with the step that passes it; the last one goes as far as the whole batch would have."""
        expected = move.expected
        for number, message in enumerate(messages, 1):
            to = move.to if number == len(messages) else self._reader.in_order(message.checkpoint)
            yield message, Move(expected, to, move.highest_position)
            expected = to

    def _try_to_deliver(self, messages: list[Message], move: Move, lease: HeldLease) -> Failed | None:
        """Call the handler until it succeeds or its tries are used up; return how it failed then."""
        policy = self._settings.retry_policy
        first_failed_at = None
        for attempt in range(1, policy.max_retries + 2):
            try:
                self._attempt(messages, move, attempt, lease)
                return None
            except TransactionEndedError as error:
                self._stop(lease, f"{first_line(str(error))} It is the batch behind {move.expected} up to {move.to}")
            except HandlerError as error:
                first_failed_at = first_failed_at or lease.now()
                failed = Failed(error, attempt, first_failed_at, lease.now())
                if attempt > policy.max_retries:
                    return failed
                delay = policy.delay_for_attempt(attempt - 1)
                self._telemetry.retrying(self, error, attempt, delay)
                self._note(lease, f"try {attempt} failed: {error}")
            self._rest(lease, delay)
        raise AssertionError("a policy has at least one try")

    def _note(self, lease: HeldLease, failing: str | None) -> None:
        """Let ``holdfast processor list`` show that a handler fails, and that it does no more."""
        if failing is not None or self._is_failing:
            self._checkpoints.note(self.id, lease.fencing_token, failing)
            self._is_failing = failing is not None

    def _rest(self, lease: HeldLease, seconds: float) -> None:
        """Wait before the next try, but not when told to stop.

        Raises:
            StoppedError: the process is to end; the batch comes again.
            LostLeaseError: another instance may have taken over.
        """
        until = self._clock.monotonic() + seconds
        while not self._should_stop.is_set() and (left := until - self._clock.monotonic()) > 0:
            if self._clock.wait(lease.lost, min(left, _LOOK_AROUND_SECONDS)):
                break
        self._require_held(lease)
        if self._should_stop.is_set():
            raise StoppedError(f"{self.title} stops between two tries; the batch comes again.")

    def _attempt(self, messages: list[Message], move: Move, attempt: int, lease: HeldLease) -> None:
        if self._settings.transactional:
            answer = self._attempt_in_transaction(messages, move, attempt, lease)
        else:
            self._require_place(move.expected, lease)
            answer = self._call(messages, self._context(messages, move, attempt, lease, None), lease, None)
            self._pass_by(move, lease)
        self._note(lease, None)
        self._answered(messages, answer, lease)

    def _answered(self, messages: list[Message], answer: object, lease: HeldLease) -> None:
        self._telemetry.delivered(self, len(messages), skipped=answer if isinstance(answer, Skip) else None)
        if isinstance(answer, Stop):
            self._stop(lease, _reason(answer), is_written=self._settings.transactional)

    def _require_place(self, expected: Checkpoint | None, lease: HeldLease) -> None:
        """Look whether the checkpoint is where it is expected to be, before a handler whose work cannot be undone."""
        place = self._checkpoints.get(self.id)
        self._require_runnable(place)
        if place is None or place.checkpoint != expected or place.fencing_token != lease.fencing_token:
            self._require_stored(CheckpointResult.NOT_IN_CHARGE, lease)

    def _attempt_in_transaction(self, messages: list[Message], move: Move, attempt: int, lease: HeldLease) -> object:
        def check(connection: Connection) -> str | None:
            return self._locked(connection, lease, move)

        def record(connection: Connection) -> None:
            with self._telemetry.database(self._engine):
                stored = self._checkpoints.store(connection, self.id, move, token=lease.fencing_token)
            self._require_stored(stored, lease)

        with self._transaction(lease, check) as transaction:
            context = self._context(messages, move, attempt, lease, transaction)
            answer = self._call(messages, context, lease, transaction)
            if isinstance(answer, Skip):
                transaction.close()
                self._pass_by(move, lease)
            else:
                self._settle(transaction, answer, lease, record)
                self._moved(move)
            return answer

    def _locked(self, connection: Connection, lease: HeldLease, move: Move | None) -> str | None:
        """Lock our place before the handler is called: whoever is not in charge any more learns it here."""
        with self._telemetry.database(self._engine):
            found, transaction_id = self._checkpoints.lock(connection, self.id, lease.fencing_token, move)
        self._require_stored(found, lease)
        return transaction_id

    @contextmanager
    def _transaction(self, lease: HeldLease, check: Check) -> Iterator[HandlerTransaction]:
        """Open a delivery's transaction. What was kept is read again before going on when that is not known."""
        transaction = HandlerTransaction(
            self._engine,
            lease.ttl_seconds,
            check=check,
            protect=lease.protect,
            is_held=lambda: not lease.lost.is_set(),
        )
        try:
            _ = transaction.connection
            yield transaction
        except (Ambiguous, Unavailable, TransactionEndedError):
            self._place = None
            raise
        finally:
            transaction.close()

    def _settle(
        self,
        transaction: HandlerTransaction,
        answer: object,
        lease: HeldLease,
        record: Callable[[Connection], None],
    ) -> None:
        """Commit the effects with the record; when the handler wants to stop, with that."""

        def record_all(connection: Connection) -> None:
            record(connection)
            if isinstance(answer, Stop):
                self._checkpoints.stop_on(connection, self.id, lease.fencing_token, _reason(answer))

        transaction.settle(record_all)

    def _call(
        self,
        messages: list[Message],
        context: ProcessorContext,
        lease: HeldLease,
        transaction: HandlerTransaction | None,
    ) -> object:
        try:
            answer = self._processor.invoker.invoke(list(messages), context, lease)
        except BaseException as error:  # also who calls sys.exit has failed
            self._require_held(lease)
            ended = ended_itself(transaction, error)
            if ended is not None:
                raise ended from error
            if transaction is not None and transaction.is_cut_off:
                raise Unavailable(f"The connection of {self.title} broke in its handler: {error}") from error
            raise HandlerError(first_line(told(error))) from error
        self._require_held(lease)
        if isinstance(answer, type) and answer in (Done, Skip, Stop):  # the class was named instead of an instance
            return answer()
        return answer

    def _pass_by(self, move: Move, lease: HeldLease) -> None:
        """Move the checkpoint in a transaction of its own."""
        self._require_stored(self._letters.move(self.id, move, lease.fencing_token, lease.ttl_seconds), lease)
        self._moved(move)

    def _bury(self, message: Message, failed: Failed, move: Move, lease: HeldLease) -> None:
        """Write a dead letter and move on, in one transaction."""
        stored = self._letters.bury(
            self.id,
            message,
            move,
            lease.fencing_token,
            error=str(failed.error),
            attempts=failed.attempts,
            first_failed_at=failed.first_at,
            last_failed_at=failed.last_at,
            idle_seconds=lease.ttl_seconds,
        )
        self._require_stored(stored, lease)
        self._moved(move)
        self._telemetry.buried(self, message, str(failed.error))

    def _moved(self, move: Move) -> None:
        self._place = replace(self._known_place(), checkpoint=move.to)

    def _known_place(self) -> Place:
        assert self._place is not None
        return self._place

    def _stop(self, lease: HeldLease, reason: str, *, is_written: bool = False) -> None:
        if not is_written:
            self._checkpoints.stop(self.id, lease.fencing_token, reason)
        self._telemetry.stopped(self, reason)
        raise StoppedError(f"{self.title} was stopped: {reason}")

    # Put back by hand

    def _redeliver(self, lease: HeldLease) -> Step | None:
        """Deliver the next message that was put back, alone; None when there is none. Looked for now and then."""
        now = self._clock.monotonic()
        if now < self._redeliveries_at:
            return None
        found = self._letters.next_redelivery(self.id)
        if found is None:
            self._redeliveries_at = now + self._look_seconds
            return None
        self._deliver_again(found, lease)
        return Step(1, caught_up=False)

    def _deliver_again(self, found: Redelivery, lease: HeldLease) -> None:
        failed_at = lease.now()
        try:
            answer = self._redelivered(found, lease)
        except HandlerError as error:
            if not self._letters.bury_again(
                found, lease.fencing_token, str(error), failed_at, lease.now(), lease.ttl_seconds
            ):
                self._require_stored(CheckpointResult.NOT_IN_CHARGE, lease)
            self._telemetry.buried(self, found.message, str(error))
            return
        self._answered([found.message], answer, lease)

    def _redelivered(self, found: Redelivery, lease: HeldLease) -> object:
        """Call the handler with a message that was put back, and forget it with what the handler wrote."""
        messages, attempt = [found.message], found.attempts + 1
        move = Move(self._known_place().checkpoint, found.message.checkpoint, found.message.position)
        if not self._settings.transactional:
            self._require_place(move.expected, lease)
            answer = self._call(messages, self._context(messages, move, attempt, lease, None), lease, None)
            self._forget(found, lease)
            return answer

        def check(connection: Connection) -> str | None:
            return self._locked(connection, lease, None)

        def record(connection: Connection) -> None:
            is_ours = self._letters.take(connection, found)
            self._require_stored(CheckpointResult.STORED if is_ours else CheckpointResult.NOT_IN_CHARGE, lease)

        with self._transaction(lease, check) as transaction:
            context = self._context(messages, move, attempt, lease, transaction)
            answer = self._call(messages, context, lease, transaction)
            if isinstance(answer, Skip):
                transaction.close()
                self._forget(found, lease)
            else:
                self._settle(transaction, answer, lease, record)
            return answer

    def _forget(self, found: Redelivery, lease: HeldLease) -> None:
        if not self._letters.forget(found, lease.fencing_token, lease.ttl_seconds):
            self._require_stored(CheckpointResult.NOT_IN_CHARGE, lease)

    # Checks

    def _require_stored(self, result: CheckpointResult, lease: HeldLease) -> None:
        """Stop here unless the checkpoint was stored: the caller's transaction is rolled back."""
        if result is CheckpointResult.STORED:
            return
        self._place = None
        self._require_held(lease)
        raise CheckpointMismatchError(
            f"{self.title}: the stored checkpoint is not the expected one ({result.name.lower().replace('_', ' ')}). "
            "Another instance is at work, or it was moved by hand. Nothing of this batch was kept; reading on from "
            "what is stored."
        )

    def _require_held(self, lease: HeldLease) -> None:
        if lease.lost.is_set():
            raise LostLeaseError(f"The lease of {self.title} was lost. Nothing of this batch was kept.")

    def _context(
        self,
        messages: list[Message],
        move: Move,
        attempt: int,
        lease: HeldLease,
        transaction: HandlerTransaction | None,
    ) -> ProcessorContext:
        return ProcessorContext(
            processor_id=self.id.processor_id,
            version=self.id.version,
            partition=self.id.partition,
            correlation_id=messages[0].correlation_id or messages[0].message_id,
            checkpoint=move.to,
            attempt=attempt,
            is_active=self._known_place().role is Role.ACTIVE,
            fencing_token=lease.fencing_token,
            lease_lost=lease.lost,
            _beat=lease.heartbeat,
            _transaction=lent_to(transaction, is_async=self._processor.invoker.is_async),
            _no_transaction=without_transaction(self.id.processor_id),
        )


@dataclass(frozen=True, slots=True)
class Failed:
    """How a delivery failed for good."""

    error: HandlerError
    attempts: int
    first_at: datetime
    last_at: datetime


def _reason(answer: Stop) -> str:
    return answer.reason or "the handler answered Stop"
