"""The algorithm of a processor's partition: hold the lease, read, lock the checkpoint, handle, move it, and again.

Exactly once for effects written through ``context.transaction``: they commit with the checkpoint, and the checkpoint is
moved only from where this instance expects it and under its token. Whoever finds it elsewhere calls no handler.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from sqlalchemy.engine import Connection, Engine

from ..core.clock import Clock
from ..core.errors import (
    UNANSWERED,
    Ambiguous,
    CheckpointMismatchError,
    DbError,
    DeliveryError,
    EventLoopUnavailable,
    HandlerError,
    LeaseConflictError,
    LostLeaseError,
    OutboxError,
    RetiredError,
    StoppedError,
    TransactionEndedError,
    Unavailable,
)
from ..database.connection_slots import slots_of
from ..database.error_text import error_text, first_line, public_error_text
from ..lease.held_lease import HeldLease
from ..lease.store import StateStore, new_owner_id
from ..runtime.context import lent_to
from ..runtime.keeper import keeping
from ..runtime.pending_stop import PendingStop
from ..runtime.transaction import Check, HandlerTransaction, after_loss, left_behind, outranking
from .cluster_identity import Cluster
from .context import ProcessorContext, without_transaction
from .course import Course, Failed, Passage, failed_again
from .definition import Processor
from .letters import Letters, Redelivery
from .lookout import Lookout
from .message import Checkpoint, Message
from .outcomes import Done, Skip, Stop
from .parking import has_parked, parked_keys
from .patience import Patience
from .reader import Batch, OutboxReader
from .step import Step
from .store import CheckpointResult, CheckpointStore, Move, PartitionId, Place, Role
from .telemetry import ProcessorTelemetry

_RELEASE_SECONDS = 5.0
_TELL_WAITING_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_LOOK_SECONDS_IF_TOLD = 20.0
_LOOK_AROUND_SECONDS = 0.2
_NO_FAULT = (LostLeaseError, *UNANSWERED)


class PartitionRunner:
    """Runs one partition of a processor in one process.

    Args:
        processor: what is declared.
        partition: which of its partitions.
        reader: reads its messages.
        checkpoints: where it stands, on connections the handlers do not use.
        leases: keeps its lease, on connections of their own.
        engine: where ``context.transaction`` is opened.
        lookout: looks for all that rest, where they are woken when there is something to do.
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
        lookout: Lookout | None = None,
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
        self._sessions = 0
        self._is_waiting = False
        self._noted_waiting_at = 0.0
        self._redeliveries_at = 0.0
        self._look_at = 0.0
        self._lookout = lookout
        self._look_seconds = _LOOK_SECONDS if lookout is None else _LOOK_SECONDS_IF_TOLD
        self._must_read = True
        self._is_failing = False
        self._has_parked = False
        self._refused_in_a_row = 0
        self._patience = Patience(self._settings.retry_policy, self._settings.on_error)
        self._pending_stop = PendingStop(self.title, clock)
        self._open_transaction: HandlerTransaction | None = None

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
            self._processor.invoker.require_loop()
            self._require_runnable(self._checkpoints.get(self.id))
            lease = self._acquire()
        try:
            with keeping(lease, self._clock, interval_seconds=self._settings.heartbeat_seconds):
                with self._telemetry.step(self):
                    self._begin(lease)
                yield lease
        finally:
            self._place = None
            self._release(lease)

    def is_held_back(self) -> bool:
        """Return whether messages are committed that cannot be read yet, since an older transaction is open."""
        last, place = self._reader.last(), self._place
        if last is None or place is None:
            return False
        is_held_back = place.checkpoint is None or last > place.checkpoint
        self._must_read = self._must_read or is_held_back
        return is_held_back

    def woken(self, by_people: bool) -> None:
        """Read at the next step; when people have changed something, look for that, too, though it is not due."""
        self._must_read = True
        if by_people:
            self._redeliveries_at = self._look_at = 0.0

    def process_batch(self, lease: HeldLease) -> Step:
        """Deliver what was put back by hand, then the next batch, and move the checkpoint."""
        with self._telemetry.step(self):
            if self._sessions != self._cluster.sessions:
                self._place = None  # a fail-over takes checkpoints back, or leads to another cluster
            place = self._place
            if place is None:
                self._take_over(lease)
            if self._pending_stop.reason is not None:
                self._stop(lease, self._pending_stop.reason)
            if place is not None and self._is_at_rest(place):
                return Step(0, caught_up=True)
            step = self._redeliver(lease) or self._next(lease)
            self._note(lease, None)
            return step

    def record_failure(self, lease: HeldLease, error: Exception, retry_seconds: float) -> None:
        """Keep why a step failed where people see it; what a handler raised is kept already, with its message."""
        if isinstance(error, (HandlerError, CheckpointMismatchError, *_NO_FAULT)):
            return
        with self._telemetry.log_unrecorded(self):
            self._letters.record_fault(self.id, error)
            self._note(
                lease, f"it could not go on and tries again after {retry_seconds:g} s: {public_error_text(error)}"
            )

    def abandon(self, lease: HeldLease) -> None:
        """Cut off a handler that is left to itself, and stop if it had ended its transaction: nobody may repeat it.

        If the process dies before the stop is written, whoever takes over delivers the same again.
        """
        reason = left_behind(self._open_transaction)
        if reason is not None:
            with suppress(StoppedError):
                self._stop(lease, reason)

    def _is_at_rest(self, place: Place) -> bool:
        """Return whether the look for all shows nothing for this one; what it shows is looked at closely."""
        if self._lookout is None or self._must_read or self._may_follow_up():
            return False
        is_at_rest = self._lookout.shows_nothing_for(place)
        if not is_at_rest:
            self.woken(by_people=True)
        return is_at_rest

    def _may_follow_up(self) -> bool:
        """Return whether it is time to look for parked messages that wait no longer."""
        return self._has_parked and self._clock.monotonic() >= self._redeliveries_at

    # Being in charge

    def _acquire(self) -> HeldLease:
        try:
            lease = self._leases.acquire(self.id.lease_name, ttl_seconds=self._settings.lease_seconds)
        except LeaseConflictError as error:
            self._note_waiting()
            raise LeaseConflictError(f"{self.title} is run by another instance. {error}") from error
        if self._is_waiting:
            self._is_waiting = False
            self._checkpoints.forget_waiting(self.id, self._instance)
        return lease

    def _note_waiting(self) -> None:
        """Let ``holdfast processor list`` show that there is a second instance."""
        now = self._clock.monotonic()
        if not self._is_waiting or now - self._noted_waiting_at >= _TELL_WAITING_SECONDS:
            self._checkpoints.note_waiting(self.id, self._instance)
            self._is_waiting, self._noted_waiting_at = True, now

    def _take_over(self, lease: HeldLease) -> None:
        """Make the stored token ours, so that a former holder can store nothing, and learn where to go on."""
        self._sessions = self._cluster.sessions
        place = self._checkpoints.take_over(self.id, lease.fencing_token, lease.ttl_seconds)
        if place is None:
            lease.mark_lost()
            raise LostLeaseError(self._outdated_token(lease))
        self._require_runnable(place)
        self._is_failing = place.reason is not None
        self._cluster.check(place)
        self._has_parked = has_parked(self._checkpoints.engine, self.id)
        self._place = place

    def _begin(self, lease: HeldLease) -> None:
        """Take over; what keeps it from that is kept where people see it."""
        try:
            self._take_over(lease)
        except (LeaseConflictError, *_NO_FAULT):
            raise
        except DbError as error:
            with self._telemetry.log_unrecorded(self):
                self._note(lease, f"it cannot begin: {public_error_text(error)}")
            raise

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
            raise StoppedError(
                f"{self.title} is not registered any more: it was forgotten, or a restore has lost its checkpoint. "
                f"Restart the worker to register it; it then starts from {self._settings.start_from}."
            )
        if place.role is Role.RETIRED:
            raise RetiredError(f"{self.title} was retired when a newer version was promoted. Remove it from the code.")
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
        self._must_read = self._settings.order == "position"  # its barrier must be asked each time
        batch = self._read(place, lease)
        self._must_read = self._must_read or batch.reached is not None
        if batch.reached is None:
            return Step(0, caught_up=not self._has_been_changed(lease))
        move = Move(place.checkpoint, batch.reached, batch.highest_position)
        if batch.messages:
            self._deliver(batch, move, lease)
        else:
            self._pass(Passage(move, (), 0), lease)
        return Step(len(batch.messages), caught_up=not batch.is_full)

    def _read(self, place: Place, lease: HeldLease) -> Batch:
        """Read the next batch; let ``holdfast processor list`` show a message that cannot be read."""
        try:
            return self._reader.read(place.checkpoint, self._settings.batch_size)
        except OutboxError as error:
            self._note(lease, str(error))
            raise

    def _deliver(self, batch: Batch, move: Move, lease: HeldLease) -> None:
        """Deliver a batch until every message of it is delivered, or passed by with a dead letter."""
        course = self._course(batch.messages, move)
        failed: Failed | None = None
        while messages := course.next():
            failed = self._try(course, messages, failed, lease)
        self._pass_on(course, lease)

    def _course(self, messages: list[Message], move: Move) -> Course:
        parked = parked_keys(self._checkpoints.engine, self.id, messages) if self._has_parked else frozenset()
        parks = self._settings.on_error == "park"
        return Course(messages, move, in_order=self._reader.in_order, parks=parks, parked_keys=parked)

    def _try(self, course: Course, messages: list[Message], before: Failed | None, lease: HeldLease) -> Failed | None:
        """Call the handler once; return how what is to be tried again has failed, when the pause before that is over.

        ``before`` is how it failed the last time.
        """
        attempt = 1 if before is None else before.attempts + 1
        started = self._clock.monotonic()
        try:
            self._attempt(course, messages, attempt, lease)
        except TransactionEndedError as error:
            self._record(messages[0], error, attempt, started)
            move = course.over(messages).move
            self._stop(lease, f"{public_error_text(error)} It is the batch behind {move.expected} up to {move.to}")
        except HandlerError as error:
            return self._failed(course, messages, before, error, started, lease)
        self._refused_in_a_row = 0
        return None

    def _failed(
        self,
        course: Course,
        messages: list[Message],
        before: Failed | None,
        error: HandlerError,
        started: float,
        lease: HeldLease,
    ) -> Failed | None:
        """Keep what was delivered before the failure; give up on what failed, or wait for its next try."""
        cause = error.__cause__ or error
        if self._keeps(course, cause, lease):
            before = None
        blamed = course.blamed(messages, cause)
        if not blamed:
            return None
        failed = failed_again(before, error, lease.now())
        self._record(blamed[0], error, failed.attempts, started)
        pause = self._patience.pause_after(failed, self._refused_in_a_row)
        if pause is None:
            self._give_up(course, blamed, failed, lease)
            return None
        self._telemetry.retrying(self, error, failed.attempts, pause)
        self._note(lease, f"try {failed.attempts} failed: {public_error_text(error)}")
        self._rest(lease, pause, course.at)
        return failed

    def _keeps(self, course: Course, cause: BaseException, lease: HeldLease) -> bool:
        """Move the checkpoint over what a sink has delivered before it failed; return whether there was something."""
        if self._settings.transactional or not isinstance(cause, DeliveryError):
            return False
        count = course.delivered(cause.delivered)
        if count:
            self._refused_in_a_row = 0
            self._telemetry.delivered(self, count, skipped=None)
            self._pass_on(course, lease)
        return count > 0

    def _give_up(self, course: Course, blamed: list[Message], failed: Failed, lease: HeldLease) -> None:
        """Do what ``on_error`` says about what failed for good; of several, find out first which one it is."""
        if self._settings.on_error == "stop":
            self._stop(lease, public_error_text(failed.error))
        if len(blamed) > 1:
            course.deliver_alone(blamed)
            return
        self._refused_in_a_row += failed.is_permanent
        course.give_up(blamed[0], failed)
        self._pass_on(course, lease)

    def _pass_on(self, course: Course, lease: HeldLease) -> None:
        """Move the checkpoint over what is dealt with, in a transaction of its own."""
        passage = course.passage()
        if passage is not None:
            self._pass(passage, lease)
            course.moved(passage)

    def _record(self, message: Message, error: HandlerError, attempt: int, started: float) -> None:
        """Add a failure to the history. What cannot be written keeps nobody from trying again."""
        duration_ms = int((self._clock.monotonic() - started) * 1000)
        with self._telemetry.log_unrecorded(self):
            self._letters.record(self.id, message, error, attempt, duration_ms)

    def _note(self, lease: HeldLease, failing: str | None) -> None:
        """Let ``holdfast processor list`` show that a handler fails, and that it does no more."""
        if failing is not None or self._is_failing:
            self._checkpoints.note(self.id, lease.fencing_token, failing)
            self._is_failing = failing is not None

    def _rest(self, lease: HeldLease, seconds: float, expected: Checkpoint | None) -> None:
        """Wait before the next try, but not when asked to stop, nor when people change something meanwhile.

        Raises:
            LeaseConflictError: the process is to end, or the processor was stopped; what is left comes again.
            LostLeaseError: another instance may have taken over.
            CheckpointMismatchError: the checkpoint was moved by hand.
        """
        now = self._clock.monotonic()
        until, look_at = now + seconds, now + self._look_seconds
        while not self._should_stop.is_set() and (left := until - self._clock.monotonic()) > 0:
            if self._clock.wait(lease.lost, min(left, _LOOK_AROUND_SECONDS)):
                break
            if self._clock.monotonic() >= look_at:
                self._require_place(expected, lease)
                look_at += self._look_seconds
        self._require_held(lease)
        if self._should_stop.is_set():
            raise LeaseConflictError(f"{self.title} ends between two tries; the batch comes again.")

    def _attempt(self, course: Course, messages: list[Message], attempt: int, lease: HeldLease) -> None:
        """Deliver some messages, and move the checkpoint over them and what is passed by between them."""
        passage = course.over(messages)
        if self._settings.transactional:
            answer = self._attempt_in_transaction(messages, passage, attempt, lease)
        else:
            self._require_place(passage.move.expected, lease)
            answer = self._call(messages, self._context(messages, passage.move, attempt, lease, None), lease, None)
            self._pass(passage, lease)
        course.moved(passage)
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

    def _attempt_in_transaction(
        self, messages: list[Message], passage: Passage, attempt: int, lease: HeldLease
    ) -> object:
        move = passage.move

        def check(connection: Connection) -> str | None:
            return self._locked(connection, lease, move)

        def record(connection: Connection) -> None:
            with self._telemetry.database(self._engine):
                stored = self._checkpoints.store(connection, self.id, move, token=lease.fencing_token)
            self._require_stored(stored, lease)
            self._letters.set_aside(connection, self.id, passage.asides, lease.now())

        with self._transaction(lease, check) as transaction:
            context = self._context(messages, move, attempt, lease, transaction)
            answer = self._call(messages, context, lease, transaction)
            if isinstance(answer, Skip):
                transaction.undo()
                self._pass(passage, lease)
            else:
                self._settle(transaction, answer, lease, record)
                self._passed(passage)
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
        transaction = self._open_transaction = HandlerTransaction(
            self._engine,
            lease.ttl_seconds,
            check=check,
            protect=lease.protect,
            is_held=lambda: not lease.lost.is_set(),
            when_lost=lease.when_lost,
            title=self.title,
            places=slots_of(self._engine),
        )
        try:
            _ = transaction.connection
            yield transaction
        except (Ambiguous, Unavailable, TransactionEndedError):
            self._place = None
            raise
        finally:
            self._open_transaction = None
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
            instead = outranking(transaction, error)
            if not isinstance(instead, TransactionEndedError):
                self._require_held(lease)
            if instead is not None:
                raise instead from error
            if isinstance(error, EventLoopUnavailable):
                raise
            raise HandlerError(first_line(error_text(error))) from error
        self._require_held(lease, transaction)
        if isinstance(answer, type) and answer in (Done, Skip, Stop):  # the class was named instead of an instance
            return answer()
        return answer

    def _pass(self, passage: Passage, lease: HeldLease) -> None:
        """Move the checkpoint, and write dead letters of what is passed by, in a transaction of their own."""
        stored = self._letters.pass_over(self.id, passage, lease.fencing_token, lease.now(), lease.ttl_seconds)
        self._require_stored(stored, lease)
        self._passed(passage)

    def _passed(self, passage: Passage) -> None:
        self._place = replace(self._known_place(), checkpoint=passage.move.to)
        self._has_parked = self._has_parked or any(aside.is_parked for aside in passage.asides)
        self._telemetry.passed_by(self, passage.asides)

    def _known_place(self) -> Place:
        assert self._place is not None
        return self._place

    def _stop(self, lease: HeldLease, reason: str, *, is_written: bool = False) -> None:
        if not is_written:
            self._pending_stop.write(reason, lease, lambda reason: self._write_stop(lease, reason))
        self._telemetry.stopped(self, reason)
        raise StoppedError(f"{self.title} was stopped: {reason}")

    def _write_stop(self, lease: HeldLease, reason: str) -> None:
        if not self._checkpoints.stop(self.id, lease.fencing_token, reason):
            raise LostLeaseError(f"{self.title} has to stop, but another instance has taken over: {reason}")

    # Put back by hand

    def _redeliver(self, lease: HeldLease) -> Step | None:
        """Deliver the next message that was put back, alone; None when there is none. Looked for now and then."""
        now = self._clock.monotonic()
        if now < self._redeliveries_at:
            return None
        if self._has_parked:
            self._has_parked = self._letters.follow_up(self.id, lease.fencing_token, lease.ttl_seconds)
        found = self._letters.next_redelivery(self.id)
        if found is None:
            # nobody tells that a person has settled a letter behind which others wait
            self._redeliveries_at = now + (_LOOK_SECONDS if self._has_parked else self._look_seconds)
            return None
        self._deliver_again(found, lease)
        return Step(1, caught_up=False)

    def _deliver_again(self, found: Redelivery, lease: HeldLease) -> None:
        """Deliver a message that was put back once; as often as any other what only waited and was never tried."""
        failed: Failed | None = None
        while True:
            started = self._clock.monotonic()
            try:
                answer = self._redelivered(found, lease)
            except HandlerError as error:
                failed = failed_again(failed, error, lease.now())
                self._record(found.message, error, found.attempts + failed.attempts, started)
                pause = None if found.attempts else self._patience.pause_after(failed, 0)
                if pause is None:
                    self._bury_again(found, failed, lease)
                    return
                self._telemetry.retrying(self, error, failed.attempts, pause)
                self._rest(lease, pause, self._known_place().checkpoint)
            else:
                self._answered([found.message], answer, lease)
                return

    def _bury_again(self, found: Redelivery, failed: Failed, lease: HeldLease) -> None:
        in_all = replace(failed, attempts=found.attempts + failed.attempts)
        if not self._letters.bury_again(found, lease.fencing_token, in_all, lease.ttl_seconds):
            self._require_stored(CheckpointResult.NOT_IN_CHARGE, lease)
        self._telemetry.buried(self, found.message, failed.error)

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
                transaction.undo()
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

    def _require_held(self, lease: HeldLease, transaction: HandlerTransaction | None = None) -> None:
        if lease.lost.is_set():
            lost = LostLeaseError(f"The lease of {self.title} was lost. Nothing of this batch was kept.")
            raise after_loss(transaction, lost)

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
            _is_async=self._processor.invoker.is_async,
            _transaction=lent_to(transaction, is_async=self._processor.invoker.is_async),
            _no_transaction=without_transaction(self.id.processor_id),
        )


def _reason(answer: Stop) -> str:
    return answer.reason or "the handler answered Stop"
