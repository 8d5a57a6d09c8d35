"""Messages that the jobs' worker claims: their lease is the job's, and their end is a report or their own transaction.

A handler that uses ``context.transaction`` has its writes, the success in the history and the deletion of the message
committed together. The ends of all others are reported in groups.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC

from sqlalchemy.engine import Connection

from ..core.errors import DbError, LostLeaseError, MessageError
from ..core.types import JsonValue
from ..jobs.model import ClaimedJob, PutBack, Settled, Settler, put_back_undone
from ..jobs.runner import Execution
from ..jobs.running import Running
from ..jobs.stores.base import SqlJobStore
from ..jobs.texts import storable
from ..records.dead_letters import NewLetter
from ..records.history import History, NewEntry, SuccessKey
from ..runtime.event_loop import handlers_loop
from ..runtime.transaction import HandlerTransaction, outranking
from .endings import Dropped, Drops, Retried, Retries
from .lookups import SuccessLookups
from .messages import EngineMessage
from .ports import Ended, worker_lost_before
from .queues.protocol import Received
from .queues.redelivery_marks import OURS, first_inserted
from .runner import EngineFlow
from .store import TableRecords, entry_of
from .telemetry import EngineTelemetry

_AFTER_ERROR_SECONDS = 0.5
Record = Callable[[Connection, NewEntry], bool]
"""Writes a success on a connection; returns whether the message was still ours."""


@dataclass(frozen=True, slots=True)
class EngineHandler:
    """An engine as the jobs' worker sees it."""

    topic: str
    delivering: ClaimedMessages
    operation: str
    is_async: bool = False
    takes_context: bool = False
    is_transactional: bool = False
    max_seconds: float | None = None

    @property
    def function(self) -> Callable[..., None]:
        """Return what runs its messages."""
        return self.delivering.deliver

    @property
    def codec(self) -> EngineHandler:
        """Return what reads payloads."""
        return self

    def decode(self, payload: str) -> dict[str, object]:
        """Return nothing: the flow reads the message."""
        return {}


class ClaimedMessages:
    """Takes the claimed messages of one engine through its flow.

    Args:
        flow: the engine's.
        store: where the messages are.
        lookups: the looks into the history of this process.
        records: the history and the dead letters.
        is_one_database: whether those are where the messages are.
        concurrency: how many run at once.
    """

    def __init__(
        self,
        name: str,
        flow: EngineFlow,
        store: SqlJobStore,
        lookups: SuccessLookups,
        records: TableRecords,
        *,
        is_one_database: bool,
        concurrency: int,
        telemetry: EngineTelemetry,
    ) -> None:
        self.concurrency = concurrency
        self.flow = flow
        self.store = store
        self.lookups = lookups
        self.records = records
        self.is_one_database = is_one_database
        self.history = History(store.engine)
        self.drops = Drops(store, records, flow.reached)
        self.retries = Retries(store, flow.reached)
        self._name = name
        self._is_async = flow.is_async
        self._telemetry = telemetry

    @property
    def is_held_up(self) -> bool:
        """Return whether a handler of the engine needs the event loop, and that does not turn."""
        return self._is_async and handlers_loop().is_stuck

    def expect(self, jobs: Sequence[Running]) -> None:
        """Read messages that wait for their turn, so that they can be looked up together."""
        self.lookups.expect(jobs, [self._read_ahead(running) for running in jobs])

    def _read_ahead(self, running: Running) -> SuccessKey | None:
        received = received_from(running.job)
        try:
            message = self.flow.read(received)
        except MessageError:
            running.prepared = received, None
            return None
        running.prepared = received, message
        return message.key

    def deliver(self, running: Running, execution: Execution) -> None:
        """Take one message through its steps. What keeps it from its end for now lets it come again, uncharged."""
        delivery = ClaimedDelivery(self, running, execution)
        try:
            with self._telemetry.delivery(self._name) as delivered:
                delivered.outcome = self.flow.handle(delivery)
        except DbError as error:
            self._telemetry.broke(self._name, error)
            if not running.is_reported:
                delivery.put_back(_AFTER_ERROR_SECONDS, str(error))

    def report_ended(self, running: Running, reason: str) -> Settled:
        """Return what buries a message that must not be repeated, and that its worker leaves behind [TRANSACTION-1]."""
        received, message = running.prepared
        ended = Ended(message=message, attempt=received.dequeue_count, duration_ms=0, error=reason)
        letter = self.flow.letter_of_ended(received, ended)
        return settled(running, self.drops, Dropped(entry_of(ended), letter))


class ClaimedDelivery:
    """One claimed message."""

    def __init__(self, messages: ClaimedMessages, running: Running, execution: Execution) -> None:
        self.received: Received
        self.message: EngineMessage | None
        self.received, self.message = running.prepared
        self._messages = messages
        self._running = running
        self._execution = execution
        self._on_lost: list[Callable[[], None]] = []

    @property
    def fencing_token(self) -> int:
        """Return the number of the claim."""
        return self._running.job.attempt

    @property
    def transaction(self) -> HandlerTransaction | None:
        """Return the handler's transaction, opened when it is first used."""
        return self._execution.open(self._running) if self._messages.is_one_database else None

    @property
    def lost(self) -> threading.Event:
        """Return what is set once the message is, or may be, someone else's."""
        return self._running.lost_event

    @property
    def ttl_seconds(self) -> float:
        """Return how long the message stays ours without a beat."""
        return self._running.job.lease_seconds

    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once the message is lost; return what takes that back."""
        self._on_lost.append(callback)
        self._running.stop_task = self._stopped
        self._stopped()
        return lambda: self._on_lost.remove(callback)

    def _stopped(self) -> None:
        if self._running.is_lost:
            for callback in list(self._on_lost):
                callback()

    def mark_lost(self) -> None:
        """Stop the execution; the message is given back if it is still ours."""
        self._running.lose(is_certain=False)
        if self._running.transaction is not None:
            self._running.transaction.lose()

    @contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        """Nothing to do: the worker keeps the lease of everything it holds."""
        yield

    def holds_also(self, let_go: Callable[[], None]) -> None:
        """Have the worker free what the execution holds besides when it leaves it behind."""
        self._running.let_go = let_go

    def beat(self, progress: JsonValue) -> None:
        """Extend the lease now, and say how far the work is."""
        if not self._execution.report_progress(self._running, json.dumps(progress, ensure_ascii=False)):
            self._running.lose(is_certain=True)
        if self._running.is_lost:
            raise LostLeaseError(f"Message {self.received.id} is no longer this worker's.")

    def has_succeeded(self, message: EngineMessage) -> bool:
        """Return whether the history knows a success [ENGINE-2]; looked up together with what waits in line.

        Raises:
            Conflict: another message about the same is at work, here or elsewhere [ENGINE-7].
        """
        return self._messages.lookups.has_succeeded(self._execution.worker, self._running.claim, message.key)

    def undo(self, error: Exception) -> Exception:
        """Undo what the handler wrote; tell it apart from a handler that ended its transaction."""
        transaction = self._running.transaction
        instead = outranking(transaction, error)
        if transaction is not None:
            transaction.close()
        return instead or error

    # Its end

    def succeed(self, ended: Ended) -> None:
        """Record a success and delete its message: in the handler's transaction, or in a group with others.

        Raises:
            LostLeaseError: the message is no longer ours, and nothing was recorded.
            TransactionEndedError: the handler ended its transaction itself; nothing was recorded.
            HandlerError: the handler's writes cannot be committed; nothing was kept.
            UndoneError: nothing was kept, and the database is why.
        """
        transaction = self._running.transaction
        if transaction is not None and transaction.is_used:
            self._commit_last(transaction, ended)
        elif self._messages.is_one_database:
            self._end(self._messages.drops, Dropped(entry_of(ended)))
        else:
            self._record_elsewhere(ended)
            self._end(self._messages.drops, Dropped(elsewhere=ended.message))

    def record(self, ended: Ended) -> None:
        """Record a success, fenced; its message goes later, by ``forget``. Raises as ``succeed`` does."""
        transaction = self._running.transaction
        if transaction is not None and transaction.is_used:
            self._commit(transaction, ended, self._keep_on)
        elif self._messages.is_one_database:
            with self._messages.store.transaction() as connection:
                self._record_on(connection, ended, self._keep_on)
        else:
            self._record_elsewhere(ended)

    def retry(self, ended: Ended, delay_seconds: float) -> None:
        """Record a failure and let the message come again, in a group with others."""
        entry = entry_of(ended) if self._messages.is_one_database else None
        if entry is None:
            self._messages.records.record(ended)
            self._messages.flow.reached("failure recorded")
        self._end(self._messages.retries, Retried(entry, storable(ended.error or ""), delay_seconds))

    def bury(self, letter: NewLetter, message: EngineMessage | None, ended: Ended | None = None) -> None:
        """Add a dead letter and delete its message, together where they are in one database."""
        if self._messages.is_one_database:
            self._end(self._messages.drops, Dropped(None if ended is None else entry_of(ended), letter))
            return
        records = self._messages.records
        if ended is not None:
            records.record(ended)
        records.bury(letter)
        self._messages.flow.reached("buried")
        if message is not None and records.has_succeeded(message):  # a worker that was paused has just written that
            records.withdraw(message)
        self.forget()

    def forget(self, recorded: EngineMessage | None = None) -> None:
        """Delete the message."""
        elsewhere = None if self._messages.is_one_database else recorded
        self._end(self._messages.drops, Dropped(elsewhere=elsewhere))

    def lost_at(self, count: int) -> str:
        """Return the error of a message of which no delivery before this one recorded one."""
        return worker_lost_before(count)

    def put_back(self, delay_seconds: float, reason: str) -> None:
        """Let the message come again, uncounted."""
        self._execution.end(self._running, PutBack(self._running.claim, delay_seconds, storable(reason)))

    def comes_again_undone(self, reason: str) -> bool:
        """Let a message come again uncounted that the database undid, unless that was so too often before."""
        undone = put_back_undone(self._running.job, storable(reason))
        if undone is not None:
            self._execution.end(self._running, undone)
        return undone is not None

    def _end(self, by: Settler, value: Dropped | Retried) -> None:
        self._execution.end(self._running, settled(self._running, by, value))

    def _record_elsewhere(self, ended: Ended) -> None:
        self._messages.records.record(ended)
        self._messages.flow.reached("recorded")

    def _commit(self, transaction: HandlerTransaction, ended: Ended, record: Record) -> None:
        """Commit what the handler wrote and its success; if the process dies in here, both are kept or neither is."""
        try:
            transaction.settle_or_look(
                lambda connection: self._record_on(connection, ended, record), lambda: self._has_landed(ended)
            )
        finally:
            transaction.close()

    def _commit_last(self, transaction: HandlerTransaction, ended: Ended) -> None:
        """Commit with the deletion: a beat that finds the message gone must not take it for lost."""
        self._running.is_reported = True
        try:
            self._commit(transaction, ended, self._drop_on)
        except BaseException:
            self._running.is_reported = False
            raise
        self._execution.forget(self._running)

    def _record_on(self, connection: Connection, ended: Ended, record: Record) -> None:
        if not record(connection, entry_of(ended)):
            raise LostLeaseError(f"Message {self.received.id} is no longer this worker's; its end is not recorded.")
        self._messages.flow.reached("recorded")

    def _drop_on(self, connection: Connection, entry: NewEntry) -> bool:
        ends = {self._running.claim: entry}
        return bool(self._messages.store.drop_recorded_on(connection, self._execution.worker, ends))

    def _keep_on(self, connection: Connection, entry: NewEntry) -> bool:
        is_ours = self._messages.store.keep_on(connection, self._execution.worker, self._running.claim)
        if is_ours:
            self._messages.history.add_many(connection, [entry])
        return is_ours

    def _has_landed(self, ended: Ended) -> bool:
        """Return whether the history has the success of this very message: a COMMIT was not answered."""
        message = ended.message
        found = self._messages.history.in_order(message.business)
        return any(entry.item_id == message.message_id and entry.error is None for entry in found)


def settled(running: Running, by: Settler, value: Dropped | Retried) -> Settled:
    """Return the report of an end."""
    entry = value.entry
    texts = () if entry is None else (entry.input, entry.output, entry.error, entry.traceback)
    characters = sum(len(text or "") for text in texts)
    return Settled(running.claim, by, value, characters, comes_again=isinstance(value, Retried))


def received_from(job: ClaimedJob) -> Received:
    """Return a claimed message: every worker that was lost with it delivered it, too, but is not charged to it."""
    inserted_at = job.created_at if job.created_at.tzinfo else job.created_at.replace(tzinfo=UTC)
    first = (first_inserted(job.payload) if OURS in job.payload else None) or inserted_at
    count = job.failures + job.losses + 1
    return Received(str(job.id), job.payload, count, first, job.claim, job.lease_seconds, job.losses)
