"""The flow of an engine's message, step by step: history, count, execution, history, delete.

The history is looked up before the count: a worker that dies between writing the success and deleting the message, on
the last attempt, must not turn a success into a dead letter. The message is deleted last, so whatever happens before
that makes it come again [ENGINE-1].
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from functools import partial

from ..core.clock import Clock
from ..core.errors import (
    AlreadyRunning,
    ConfigurationError,
    Conflict,
    EventLoopUnavailable,
    HandlerError,
    LostLeaseError,
    MessageError,
    StateStoreError,
    TransactionEndedError,
    UndoneError,
)
from ..core.handler_forms import is_async
from ..database.error_text import bounded_traceback, error_text
from ..jobs.correlation import current_correlation_id
from ..records.dead_letters import NewLetter
from ..records.row_keys import dead_letter_key
from ..records.schema import PUBLISHER
from ..runtime.context import lent_to
from .context import ELSEWHERE, EngineContext
from .definition import LONGEST_INVISIBLE_SECONDS, EngineDefinition, EngineSettings
from .messages import Defaults, EngineMessage, parse, readable_ids
from .operations.protocol import HubUnavailable
from .ports import Delivery, Ended, FailedBefore, Scope
from .queue_delivery import QueuedDelivery
from .queues.protocol import Received
from .queues.redelivery_marks import as_sent, may_have_twin
from .singletons import RELEASE_SECONDS, HeldAlone, Singletons
from .store import TableRecords
from .timers import MissedSlots

_log = logging.getLogger("holdfast.engines")
_LONGEST_ERROR = 16_000  # characters: longer ones do not fit every table
_LONGEST_JOB_ID = 200
_NOT_RECORDED = "Another execution may have begun; this one is not recorded."


class Outcome(StrEnum):
    """What became of one delivery."""

    SUCCEEDED = "succeeded"
    ALREADY_DONE = "already done"
    DEAD_LETTERED = "dead-lettered"
    RETRIED = "retried"
    CONFLICT = "conflict"
    UNDONE = "undone"
    LOST = "lost"
    SKIPPED = "skipped"


class EngineFlow:
    """Takes a delivered message through its steps.

    Args:
        definition: the engine's operation; messages that name none are for this one.
        queue: the name of its queue, as dead letters tell it.
        records: the history and the dead letters.
        application: whose they are.
        others: the engine's other operations.
        exclusive: keeps executions apart that must not run side by side.
        missed: tells which messages of timers are not executed any more.
        reached: called at every boundary between two steps; for tests that stop there.
    """

    def __init__(
        self,
        definition: EngineDefinition,
        queue: str,
        records: TableRecords,
        *,
        clock: Clock,
        application: str,
        others: Sequence[EngineDefinition] = (),
        exclusive: Singletons | None = None,
        missed: MissedSlots | None = None,
        reached: Callable[[str], None] = lambda boundary: None,
    ) -> None:
        self._definition = definition
        self._operations = {item.settings.operation: item for item in (definition, *others)}
        self._queue = queue
        self._records = records
        self._application = application
        self._exclusive = exclusive
        self._missed = missed
        self._clock = clock
        self._reached = reached
        if exclusive is None and any(item.settings.singleton for item in self._operations.values()):
            raise ConfigurationError(f"Engine '{definition.name}' is a singleton, and nothing keeps its runs apart.")

    @property
    def is_async(self) -> bool:
        """Return whether a handler of the engine needs an event loop."""
        return any(is_async(item.handler) for item in self._operations.values())

    def reached(self, boundary: str) -> None:
        """Learn of a boundary between two steps."""
        self._reached(boundary)

    def handle(self, delivery: Delivery) -> Outcome:
        """Take one delivery to its end. If the process dies here, the message comes again when its time has passed."""
        self._reached("received")
        try:
            message = delivery.message or self.read(delivery.received)
        except MessageError as error:
            return self._bury_unreadable(delivery, error)
        with ExitStack() as held:
            try:
                self._take_in_hand(held, delivery, message)
                has_succeeded = delivery.has_succeeded(message)  # [ENGINE-2]
            except Conflict as conflict:
                return self._put_back(delivery, message, conflict)
            if has_succeeded:
                return self._forget_done(delivery, message)
            if may_have_twin(message.others) and self._is_over(message):  # looked up now, not from what was read ahead
                delivery.forget()
                return Outcome.ALREADY_DONE
            self._reached("found not done")
            if delivery.received.charged_count >= self._settings(message).max_attempts:
                return self._give_up(delivery, message)
            return self._execute(delivery, message)

    def _take_in_hand(self, held: ExitStack, delivery: Delivery, message: EngineMessage) -> None:
        """Keep other messages about the same out, where the queue's claims do not."""
        if not isinstance(delivery, QueuedDelivery) or self._exclusive is None:
            return
        seconds = self._settings(message).lease_seconds
        lease = held.enter_context(self._exclusive.in_hand(message.key, seconds))
        lease.when_lost(delivery.mark_lost)
        delivery.has_in_hand(partial(lease.discard, wait_seconds=RELEASE_SECONDS))

    def give_up(self, delivery: Delivery) -> Outcome:
        """Take a message out of the queue that a host moves it to when it has failed too often for that host."""
        try:
            message = self.read(delivery.received)
        except MessageError as error:
            return self._bury_unreadable(delivery, error)
        with ExitStack() as held:
            try:
                self._take_in_hand(held, delivery, message)
            except Conflict as conflict:
                return self._put_back(delivery, message, conflict)
            if self._is_over(message):
                delivery.forget()
                return Outcome.ALREADY_DONE
            return self._give_up(delivery, message)

    def read(self, received: Received) -> EngineMessage:
        """Return the message in a body.

        Raises:
            MessageError: nobody can read it, or it is for another engine.
        """
        own = self._definition
        try:
            message = parse(received.body, self._defaults(received))
        except MessageError:
            raise
        except Exception as error:  # nothing may come again for ever because nobody can read it
            raise MessageError(f"The message cannot be read: {error_text(error)}") from error
        if message.engine != own.name:
            raise MessageError(
                f"The message is for engine '{message.engine}', and queue '{self._queue}' is of '{own.name}'."
            )
        return message

    def _defaults(self, received: Received) -> Defaults:
        settings = self._definition.settings
        return Defaults(
            received.id, self._definition.name, settings.operation, settings.default_instance_id, self._application
        )

    def _forget_done(self, delivery: Delivery, message: EngineMessage) -> Outcome:
        self._reached("found done")
        _log.info(
            "Engine '%s': message %s is not executed, because '%s' has succeeded for correlation id '%s' before",
            message.engine,
            message.message_id,
            message.operation,
            message.correlation_id,
            extra=_fields(message),
        )
        self._free(message)
        delivery.forget()
        return Outcome.ALREADY_DONE

    def _settings(self, message: EngineMessage) -> EngineSettings:
        return self._operations.get(message.operation, self._definition).settings

    def _scope(self, message: EngineMessage) -> Scope | None:
        """Return what the message's execution must have alone; None when that is nothing."""
        settings = self._settings(message)
        if not settings.singleton:
            return None
        return scope_of(message.engine, message.instance_id, settings, _job_id(message))

    # Dead letters

    def _give_up(self, delivery: Delivery, message: EngineMessage) -> Outcome:
        """Bury a message, beside which nothing of the same runs: that could still succeed."""
        scope = self._scope(message)
        if scope is None or self._exclusive is None:
            return self._bury(delivery, message)
        try:
            with self._exclusive.alone(replace(scope, lock_seconds=None)):
                self._reached("alone")
                if self._is_over(message):
                    delivery.forget()
                    return Outcome.ALREADY_DONE
                self._exclusive.give_up(scope)
                return self._bury(delivery, message)
        except Conflict as conflict:
            return self._put_back(delivery, message, conflict)

    def _bury(self, delivery: Delivery, message: EngineMessage) -> Outcome:
        # [ENGINE-4]
        received, failures = delivery.received, self._records.failures(message)
        count = max(1, received.dequeue_count, len(failures), *(failure.attempt for failure in failures))
        last = failures[-1] if failures else FailedBefore(received.inserted_at, delivery.lost_at(count))
        first_at = failures[0].at if failures else last.at
        delivery.bury(self._letter(received, message, last, count, first_at), message)
        return Outcome.DEAD_LETTERED

    def _bury_ended(self, delivery: Delivery, ended: Ended) -> Outcome:
        """Bury at once what must not be repeated: its handler ended its transaction itself [TRANSACTION-1]."""
        delivery.bury(self.letter_of_ended(delivery.received, ended), ended.message, ended)
        return Outcome.DEAD_LETTERED

    def letter_of_ended(self, received: Received, ended: Ended) -> NewLetter:
        """Return the dead letter of a message that this very execution ended, whatever happened before it."""
        now = self._clock.now()
        last = FailedBefore(now, ended.error or "", traceback=ended.traceback)
        return self._letter(received, ended.message, last, received.dequeue_count, now)

    def _letter(
        self, received: Received, message: EngineMessage, last: FailedBefore, count: int, first_at: datetime
    ) -> NewLetter:
        return NewLetter(
            item_id=message.message_id,
            row_key=dead_letter_key(message.message_id, received.inserted_at),
            engine=message.engine,
            instance_id=message.instance_id,
            original_queue=self._queue,
            original_message=as_sent(received.body),
            error_message=last.error,
            traceback=last.traceback,
            dequeue_count=count,
            first_failure_at=first_at,
            last_failure_at=last.at,
            correlation_id=message.correlation_id,
            application=self._application,
        )

    def _free(self, message: EngineMessage) -> None:
        """Free what a dead execution of this message may still hold: it is not executed again."""
        scope = self._scope(message)
        if scope is not None and self._exclusive is not None:
            self._exclusive.give_up(scope)

    def _bury_unreadable(self, delivery: Delivery, error: MessageError) -> Outcome:
        """Send a message that no execution could read to the dead letters at once."""
        received, now = delivery.received, self._clock.now()
        ids = readable_ids(received.body)
        message_id = ids.get("messageId", received.id)
        letter = NewLetter(
            item_id=message_id,
            row_key=dead_letter_key(message_id, received.inserted_at),
            engine=self._definition.name,
            instance_id=ids.get("instanceId", self._definition.settings.default_instance_id),
            original_queue=self._queue,
            original_message=received.body,
            error_message=str(error),
            dequeue_count=max(1, received.dequeue_count),
            first_failure_at=now,
            last_failure_at=now,
            correlation_id=ids.get("correlationId", message_id),
            application=self._application,
        )
        delivery.bury(letter, None)
        return Outcome.DEAD_LETTERED

    # Executing

    def _execute(self, delivery: Delivery, message: EngineMessage) -> Outcome:
        try:
            with delivery.held(self._settings(message).lease_seconds):
                reason = self._why_missed(delivery, message)
                if reason is not None:
                    return self._skip(delivery, message, reason)
                with ExitStack() as held:
                    try:
                        alone = self._be_alone(held, message, delivery)
                    except Conflict as conflict:
                        return self._put_back(delivery, message, conflict)
                    self._reached("alone")
                    if alone is not None and self._is_over(message):  # by whoever was alone before
                        delivery.forget()
                        return Outcome.ALREADY_DONE
                    outcome = self._run(delivery, message, alone)
                if outcome is Outcome.SUCCEEDED and alone is not None:
                    self._reached("released")  # before the message goes: it alone can free the lock of a dead worker
                    delivery.forget(message)
                return outcome
        except LostLeaseError:
            _log.warning(
                "Message %s of engine '%s' is someone else's by now (correlation id '%s')",
                message.message_id,
                message.engine,
                message.correlation_id,
                extra=_fields(message),
            )
            return Outcome.LOST

    def _why_missed(self, delivery: Delivery, message: EngineMessage) -> str | None:
        settings = self._settings(message)
        if self._missed is None or settings.schedule is None:
            return None
        return self._missed.why_missed(message, settings.missed, is_tried=delivery.received.dequeue_count > 1)

    def _skip(self, delivery: Delivery, message: EngineMessage, reason: str) -> Outcome:
        """Write down that a slot is not executed, then delete its message [ENGINE-8]."""
        _log.info(
            "Engine '%s' skips message %s (correlation id '%s'): %s",
            message.engine,
            message.message_id,
            message.correlation_id,
            reason,
            extra=_fields(message),
        )
        delivery.record(replace(self._ended(delivery, message, self._clock.monotonic(), error=reason), is_skipped=True))
        self._free(message)
        delivery.forget()
        return Outcome.SKIPPED

    def _is_over(self, message: EngineMessage) -> bool:
        """Return whether the message has come to its end, maybe as its twin: done, or in the dead letters."""
        return self._records.has_succeeded(message) or self._records.is_buried(message)

    def _be_alone(self, held: ExitStack, message: EngineMessage, delivery: Delivery) -> HeldAlone | None:
        scope = self._scope(message)
        if scope is None or self._exclusive is None:
            return None
        alone = held.enter_context(self._exclusive.alone(scope))
        alone.when_lost(delivery.mark_lost)
        delivery.holds_also(alone.let_go)
        return alone

    def _put_back(self, delivery: Delivery, message: EngineMessage, conflict: StateStoreError) -> Outcome:
        """Let a message come again that met a 409: it was no attempt, so it is not counted [ENGINE-3]."""
        self._reached("conflict")
        seconds = self._settings(message).conflict_seconds
        if isinstance(conflict, AlreadyRunning) and conflict.comes_first:
            seconds /= 2  # two that met and both stepped back do not meet again
        delivery.put_back(seconds, str(conflict))
        _log.info(
            "Engine '%s': message %s comes again, uncounted (correlation id '%s'): %s",
            message.engine,
            message.message_id,
            message.correlation_id,
            conflict,
            extra=_fields(message),
        )
        return Outcome.CONFLICT

    def _run(self, delivery: Delivery, message: EngineMessage, alone: HeldAlone | None) -> Outcome:
        started = self._clock.monotonic()
        try:
            output = _as_json(self._call(delivery, message, alone))
            self._reached("executed")
            _require_alone(alone)
        except (AlreadyRunning, EventLoopUnavailable, HubUnavailable) as refusal:
            undone = delivery.undo(refusal)
            if isinstance(undone, TransactionEndedError):
                return self._failed(delivery, message, started, undone)
            return self._put_back(delivery, message, refusal)
        except LostLeaseError as lost:
            return self._lost(delivery, message, started, lost)
        except Exception as error:
            if alone is not None and alone.is_lost:
                return self._lost(delivery, message, started, error)
            return self._failed(delivery, message, started, error)
        ended = self._ended(delivery, message, started, output=output)
        try:
            self._settle(delivery, ended, alone)
        except (HandlerError, UndoneError) as error:  # of its transaction, which is undone or was ended
            return self._failed(delivery, message, started, error)
        except ConfigurationError:
            if ended.output is None:
                raise
            said = json.dumps({"tooLarge": len(ended.output)})  # for the table; the execution has succeeded
            self._settle(delivery, replace(ended, output=said), alone)
        _log.info(
            "Engine '%s' did '%s' for message %s in %d ms (correlation id '%s')",
            message.engine,
            message.operation,
            message.message_id,
            ended.duration_ms,
            message.correlation_id,
            extra=_fields(message),
        )
        return Outcome.SUCCEEDED

    def _settle(self, delivery: Delivery, ended: Ended, alone: HeldAlone | None) -> None:
        """Write a success down, and delete its message unless something else must be freed first."""
        if alone is None:
            delivery.succeed(ended)
        else:
            delivery.record(ended)

    def _lost(self, delivery: Delivery, message: EngineMessage, started: float, error: Exception) -> Outcome:
        """Bury what its handler ended itself, if the message is ours after all; leave all else to whoever has it."""
        undone = delivery.undo(error)
        if isinstance(undone, TransactionEndedError):
            return self._failed(delivery, message, started, undone)
        raise LostLeaseError(_NOT_RECORDED) from error

    def _failed(self, delivery: Delivery, message: EngineMessage, started: float, error: Exception) -> Outcome:
        self._reached("failed")
        error = delivery.undo(error)
        if isinstance(error, UndoneError) and delivery.comes_again_undone(str(error)):
            return self._log_undone(message, error)
        said = str(error) if isinstance(error, TransactionEndedError) else error_text(error)
        ended = self._ended(delivery, message, started, error=said[:_LONGEST_ERROR], traceback=bounded_traceback(error))
        if isinstance(error, TransactionEndedError):
            return self._bury_ended(delivery, ended)
        count = delivery.received.dequeue_count
        delay = min(self._settings(message).retry_policy.delay_for_attempt(count - 1), LONGEST_INVISIBLE_SECONDS)
        delivery.retry(ended, delay)
        _log.warning(
            "Engine '%s' failed at delivery %d of message %s and tries again in %.1f s (correlation id '%s'): %s",
            message.engine,
            count,
            message.message_id,
            delay,
            message.correlation_id,
            error,
            extra=_fields(message),
        )
        return Outcome.RETRIED

    def _log_undone(self, message: EngineMessage, error: UndoneError) -> Outcome:
        """Log a message that comes again uncounted: no handler is to blame."""
        _log.warning(
            "Engine '%s': message %s comes again, uncounted (correlation id '%s'): %s",
            message.engine,
            message.message_id,
            message.correlation_id,
            error,
            extra=_fields(message),
        )
        return Outcome.UNDONE

    def _call(self, delivery: Delivery, message: EngineMessage, alone: HeldAlone | None) -> object:
        definition = self._operations.get(message.operation)
        if definition is None:
            raise ConfigurationError(
                f"Engine '{message.engine}' has no operation '{message.operation}' here. It has: "
                f"{', '.join(self._operations)}."
            )
        context = EngineContext(
            engine=message.engine,
            operation=message.operation,
            correlation_id=message.correlation_id,
            message_id=message.message_id,
            instance_id=message.instance_id,
            attempt=delivery.received.dequeue_count,
            fencing_token=delivery.fencing_token,
            causation_id=message.causation_id,
            registry=None if alone is None else alone.registry,
            lease_lost=delivery.lost,
            _beat=delivery.beat,
            _is_async=is_async(definition.handler),
            _transaction=lent_to(delivery.transaction, is_async=is_async(definition.handler)),
            _no_transaction=ELSEWHERE,
        )
        token = current_correlation_id.set(message.correlation_id)
        try:
            return definition.operation.run(context, message, delivery)
        finally:
            current_correlation_id.reset(token)

    def _ended(
        self,
        delivery: Delivery,
        message: EngineMessage,
        started: float,
        *,
        output: str | None = None,
        error: str | None = None,
        traceback: str | None = None,
    ) -> Ended:
        duration = int((self._clock.monotonic() - started) * 1000)
        attempt = delivery.received.dequeue_count
        return Ended(
            message=message, attempt=attempt, duration_ms=duration, output=output, error=error, traceback=traceback
        )


def scope_of(engine: str, instance_id: str, settings: EngineSettings, job_id: str) -> Scope:
    """Return what a singleton must have alone, its instance's registry or the application's included."""
    is_applications = instance_id == PUBLISHER or settings.locks_registry == "application"
    lock_seconds = settings.lock_seconds if settings.locks_registry else None
    name, key = f"{engine}-{instance_id}", f"{engine}/{instance_id}"
    return Scope(name, key, job_id, lock_seconds, None if is_applications else instance_id)


def _fields(message: EngineMessage) -> dict[str, str]:
    """Return what a log line is found by."""
    return {"engine": message.engine, "operation": message.operation, "correlation_id": message.correlation_id}


def _job_id(message: EngineMessage) -> str:
    """Return the name under which a message locks the registry: the same at every delivery, readable if it can be."""
    readable = f"{message.engine}-{message.instance_id}-{message.message_id}"
    if len(readable) <= _LONGEST_JOB_ID and readable == readable.strip():
        return readable
    return f"{message.engine[:100]}-{hashlib.sha256(message.message_id.encode()).hexdigest()[:32]}"


def _require_alone(alone: HeldAlone | None) -> None:
    """Refuse to record the end of an execution beside which another may have begun."""
    if alone is not None and alone.is_lost:
        raise LostLeaseError(_NOT_RECORDED)


def _as_json(output: object) -> str | None:
    """Return a result as the history keeps it. What is not JSON is kept as its kind: the execution has succeeded."""
    if output is None:
        return None
    try:
        return json.dumps(output, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return json.dumps({"notJson": type(output).__name__})
