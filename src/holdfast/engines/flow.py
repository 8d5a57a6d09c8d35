"""The flow of an engine's message, step by step: history, count, execution, history, delete.

The history is looked up before the count: a worker that dies between writing the success and deleting the message, on
the last attempt, must not turn a success into a dead letter. The message is deleted last, so whatever happens before
that makes it come again [ENGINE-1].
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from enum import StrEnum

from ..core.clock import Clock
from ..core.errors import (
    AlreadyRunning,
    ConfigurationError,
    Conflict,
    LostLeaseError,
    MessageError,
    PollerError,
    StateStoreError,
)
from ..core.telling import told
from ..records.dead_letters import DeadLetter, new_letter
from ..records.row_keys import dead_letter_key
from ..records.schema import PUBLISHER
from ..runtime.keeper import keeping
from .context import EngineContext
from .definition import LONGEST_INVISIBLE_SECONDS, EngineDefinition, EngineSettings
from .invisible import KeptInvisible
from .messages import Defaults, EngineMessage, parse, readable_ids
from .operations.protocol import HubUnavailable
from .ports import Alone, Ended, EngineRecords, Exclusive, Scope
from .queues.copies import as_sent, may_have_twin
from .queues.protocol import EngineQueue, Received

_log = logging.getLogger("holdfast.engines")
_LONGEST_ERROR = 16_000  # characters: longer ones do not fit every table
_LONGEST_JOB_ID = 200
_TWIN_LEASES = 64  # kept for ever, so there are not as many as messages


class Outcome(StrEnum):
    """What became of one delivery."""

    SUCCEEDED = "succeeded"
    ALREADY_DONE = "already done"
    DEAD_LETTERED = "dead-lettered"
    RETRIED = "retried"
    CONFLICT = "conflict"
    LOST = "lost"


class EngineFlow:
    """Takes a received message through its steps.

    Args:
        definition: the engine's operation; messages that name none are for this one.
        queue: where the message is, and where it goes back to.
        records: the history and the dead letters.
        others: the engine's other operations.
        exclusive: keeps executions apart that must not run side by side.
        reached: told every boundary between two steps; for tests that stop there.
    """

    def __init__(
        self,
        definition: EngineDefinition,
        queue: EngineQueue,
        records: EngineRecords,
        *,
        clock: Clock,
        others: Sequence[EngineDefinition] = (),
        exclusive: Exclusive | None = None,
        reached: Callable[[str], None] = lambda boundary: None,
    ) -> None:
        self._definition = definition
        self._operations = {item.settings.operation: item for item in (definition, *others)}
        self._queue = queue
        self._records = records
        self._exclusive = exclusive
        self._clock = clock
        self._reached = reached
        self._running: dict[KeptInvisible, Alone | None] = {}
        if exclusive is None and any(item.settings.singleton for item in self._operations.values()):
            raise ConfigurationError(f"Engine '{definition.name}' is a singleton, and nothing keeps its runs apart.")

    def handle(self, received: Received) -> Outcome:
        """Take one delivery to its end. If the process dies here, the message comes again when its time has passed."""
        self._reached("received")
        try:
            message = self._read(received)
        except MessageError as error:
            return self._bury_unreadable(received, error, self._queue)
        if self._records.has_succeeded(message):  # [ENGINE-2]
            self._reached("found done")
            _log.info(
                "Engine '%s': message %s is not executed, because '%s' has succeeded for correlation id '%s' before",
                message.engine,
                message.message_id,
                message.operation,
                message.correlation_id,
            )
            self._free(message)
            self._queue.delete(received)
            return Outcome.ALREADY_DONE
        self._reached("found not done")
        if self._is_last(received, message):
            return self._give_up(received, message, self._queue)
        return self._execute(received, message)

    def give_up(self, received: Received, poison: EngineQueue) -> Outcome:
        """Take a message out of the queue that a host moves it to when it has failed too often for that host."""
        try:
            message = self._read(received)
        except MessageError as error:
            return self._bury_unreadable(received, error, poison)
        if self._is_over(message):
            poison.delete(received)
            return Outcome.ALREADY_DONE
        return self._give_up(received, message, poison)

    def give_back(self, reason: str) -> None:
        """Let what is running now come again at once, uncounted; what its executions still do is not recorded."""
        for kept, alone in list(self._running.items()):
            kept.mark_lost()
            if alone is not None:
                with suppress(StateStoreError, PollerError):  # what is held ends by itself
                    alone.let_go()
            self._queue.put_back(kept.message, 0.0, reason)

    def _read(self, received: Received) -> EngineMessage:
        own = self._definition
        try:
            message = parse(received.body, Defaults(received.id, own.name, own.settings.operation))
        except MessageError:
            raise
        except Exception as error:  # nothing may come again for ever because nobody can read it
            raise MessageError(f"The message cannot be read: {told(error)}") from error
        if message.engine != own.name:
            raise MessageError(
                f"The message is for engine '{message.engine}', and queue '{self._queue.name}' is of '{own.name}'."
            )
        return message

    def _settings(self, message: EngineMessage) -> EngineSettings:
        return self._operations.get(message.operation, self._definition).settings

    def _is_last(self, received: Received, message: EngineMessage) -> bool:
        return received.dequeue_count >= self._settings(message).max_retry_attempts

    def _scope(self, message: EngineMessage) -> Scope | None:
        """Return what the message's execution must have alone; None when that is nothing."""
        settings = self._settings(message)
        job_id = _job_id(message)
        if settings.singleton:
            lock_seconds = settings.lock_seconds if settings.locks_registry else None
            name, key = f"{message.engine}-{message.instance_id}", f"{message.engine}/{message.instance_id}"
            return Scope(name, key, job_id, lock_seconds)
        if may_have_twin(message.others):
            key = f"{message.engine} twin {zlib.crc32(message.message_id.encode()) % _TWIN_LEASES}"
            return Scope(message.message_id, key, job_id)
        return None

    # Dead letters

    def _give_up(self, received: Received, message: EngineMessage, queue: EngineQueue) -> Outcome:
        """Bury a message, beside which nothing of the same runs: that could still succeed."""
        scope = self._scope(message)
        if scope is None or self._exclusive is None:
            return self._bury(received, message, queue)
        try:
            with self._exclusive.alone(replace(scope, lock_seconds=None)):
                self._reached("alone")
                if self._is_over(message):
                    queue.delete(received)
                    return Outcome.ALREADY_DONE
                self._exclusive.give_up(scope)
                return self._bury(received, message, queue)
        except Conflict as conflict:
            if queue is self._queue:
                queue.put_back(received, self._settings(message).conflict_seconds, str(conflict))
            return Outcome.CONFLICT

    def _bury(self, received: Received, message: EngineMessage, queue: EngineQueue) -> Outcome:
        # [ENGINE-4]
        failures = self._records.failures(message)
        count = max(received.dequeue_count, len(failures))
        letter = new_letter(
            item=message.message_id,
            row_key=dead_letter_key(message.message_id, received.inserted_at),
            engine=message.engine,
            instance_id=message.instance_id,
            original_queue=self._queue.name,
            original_message=as_sent(received.body),
            error_message=failures[-1].error if failures else f"worker lost during attempt {max(1, count - 1)}",
            dequeue_count=count,
            first_failure_at=failures[0].at if failures else received.inserted_at,
            last_failure_at=failures[-1].at if failures else received.inserted_at,
            correlation_id=message.correlation_id,
        )
        self._bury_letter(letter)
        if self._records.has_succeeded(message):  # a worker that was paused has just written that
            self._records.withdraw(message)
        queue.delete(received)
        return Outcome.DEAD_LETTERED

    def _free(self, message: EngineMessage) -> None:
        """Free what a dead execution of this message may still hold: it is not executed again."""
        scope = self._scope(message)
        if scope is not None and self._exclusive is not None:
            self._exclusive.give_up(scope)

    def _bury_unreadable(self, received: Received, error: MessageError, queue: EngineQueue) -> Outcome:
        """Send a message that no execution could read to the dead letters at once."""
        now = self._clock.now()
        ids = readable_ids(received.body)
        message_id = ids.get("messageId", received.id)
        letter = new_letter(
            item=message_id,
            row_key=dead_letter_key(message_id, received.inserted_at),
            engine=self._definition.name,
            instance_id=ids.get("instanceId", PUBLISHER),
            original_queue=self._queue.name,
            original_message=received.body,
            error_message=str(error),
            dequeue_count=received.dequeue_count,
            first_failure_at=now,
            last_failure_at=now,
            correlation_id=ids.get("correlationId", message_id),
        )
        self._bury_letter(letter)
        queue.delete(received)
        return Outcome.DEAD_LETTERED

    def _bury_letter(self, letter: DeadLetter) -> None:
        if self._records.bury(letter):
            _log.error(
                "Engine '%s' gave message %s up after %d deliveries: %s",
                letter.engine,
                letter.item_id,
                letter.dequeue_count,
                letter.error_message,
            )
        self._reached("buried")

    # Executing

    def _execute(self, received: Received, message: EngineMessage) -> Outcome:
        seconds = received.visibility_seconds or self._settings(message).visibility_seconds
        kept = KeptInvisible(self._queue, received, seconds, self._clock)
        try:
            with self._known(kept), keeping(kept, self._clock):
                with ExitStack() as held:
                    try:
                        alone = self._be_alone(held, message, kept)
                    except Conflict as conflict:
                        return self._put_back(kept, message, conflict)
                    self._reached("alone")
                    if alone is not None and self._is_over(message):  # by whoever was alone before
                        self._queue.delete(kept.let_go())
                        return Outcome.ALREADY_DONE
                    outcome = self._run(kept, message, alone)
                if outcome is Outcome.SUCCEEDED and alone is not None:
                    self._reached("released")  # before the message goes: it alone can free the lock of a dead worker
                    self._forget(kept, message)
                return outcome
        except LostLeaseError:
            _log.warning("Message %s of engine '%s' is someone else's by now", message.message_id, message.engine)
            return Outcome.LOST

    def _is_over(self, message: EngineMessage) -> bool:
        """Return whether the message has come to its end, maybe as its twin: done, or in the dead letters."""
        return self._records.has_succeeded(message) or self._records.is_buried(message)

    @contextmanager
    def _known(self, kept: KeptInvisible) -> Iterator[None]:
        self._running[kept] = None
        try:
            yield
        finally:
            self._running.pop(kept, None)

    def _be_alone(self, held: ExitStack, message: EngineMessage, kept: KeptInvisible) -> Alone | None:
        scope = self._scope(message)
        if scope is None or self._exclusive is None:
            return None
        alone = held.enter_context(self._exclusive.alone(scope))
        alone.when_lost(kept.mark_lost)
        self._running[kept] = alone
        return alone

    def _put_back(self, kept: KeptInvisible, message: EngineMessage, conflict: StateStoreError) -> Outcome:
        """Let a message come again that met a 409: it was no attempt, so it is not counted [ENGINE-3]."""
        self._reached("conflict")
        self._queue.put_back(kept.let_go(), self._settings(message).conflict_seconds, str(conflict))
        _log.info("Engine '%s': message %s comes again, uncounted: %s", message.engine, message.message_id, conflict)
        return Outcome.CONFLICT

    def _run(self, kept: KeptInvisible, message: EngineMessage, alone: Alone | None) -> Outcome:
        started = self._clock.monotonic()
        try:
            output = _as_json(self._call(kept, message, alone))
        except (AlreadyRunning, HubUnavailable) as refusal:
            return self._put_back(kept, message, refusal)
        except LostLeaseError:
            raise
        except Exception as error:
            _require_alone(alone)
            return self._failed(kept, message, started, told(error)[:_LONGEST_ERROR])
        self._reached("executed")
        _require_alone(alone)
        kept.extend()  # still ours, and for long enough to write its end down
        ended = self._ended(kept, message, started, output=output)
        try:
            self._settle(ended, kept, alone)
        except ConfigurationError:
            if ended.output is None:
                raise
            said = json.dumps({"tooLarge": len(ended.output)})  # for the table; the execution has succeeded
            self._settle(replace(ended, output=said), kept, alone)
        _log.info(
            "Engine '%s' did '%s' for message %s in %d ms",
            message.engine,
            message.operation,
            message.message_id,
            ended.duration_ms,
        )
        return Outcome.SUCCEEDED

    def _settle(self, ended: Ended, kept: KeptInvisible, alone: Alone | None) -> None:
        """Write a success down, and delete its message unless something else must be freed first."""
        if alone is None:
            self._records.settle(ended, self._queue, kept.let_go(), self._reached)
            return
        self._records.record(ended)
        self._reached("recorded")

    def _forget(self, kept: KeptInvisible, message: EngineMessage) -> None:
        if not self._queue.delete(kept.let_go()):
            self._records.withdraw(message)

    def _failed(self, kept: KeptInvisible, message: EngineMessage, started: float, error: str) -> Outcome:
        self._reached("failed")
        kept.extend()
        self._records.record(self._ended(kept, message, started, error=error))
        self._reached("failure recorded")
        count = kept.message.dequeue_count
        delay = min(self._settings(message).retry_policy.delay_for_attempt(count - 1), LONGEST_INVISIBLE_SECONDS)
        self._queue.retry_later(kept.let_go(), delay, error)
        _log.warning(
            "Engine '%s' failed at delivery %d of message %s and tries again in %.1f s: %s",
            message.engine,
            count,
            message.message_id,
            delay,
            error,
        )
        return Outcome.RETRIED

    def _call(self, kept: KeptInvisible, message: EngineMessage, alone: Alone | None) -> object:
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
            attempt=kept.message.dequeue_count,
            causation_id=message.causation_id,
            registry=None if alone is None else alone.registry,
            lease_lost=kept.lost,
            _beat=kept.extend,
        )
        return definition.operation.run(context, message, kept)

    def _ended(
        self,
        kept: KeptInvisible,
        message: EngineMessage,
        started: float,
        *,
        output: str | None = None,
        error: str | None = None,
    ) -> Ended:
        duration = int((self._clock.monotonic() - started) * 1000)
        attempt = kept.message.dequeue_count
        return Ended(message=message, attempt=attempt, duration_ms=duration, output=output, error=error)


def _job_id(message: EngineMessage) -> str:
    """Return the name under which a message locks the registry: the same at every delivery, readable if it can be."""
    readable = f"{message.engine}-{message.instance_id}-{message.message_id}"
    if len(readable) <= _LONGEST_JOB_ID and readable == readable.strip():
        return readable
    return f"{message.engine[:100]}-{hashlib.sha256(message.message_id.encode()).hexdigest()[:32]}"


def _require_alone(alone: Alone | None) -> None:
    """Refuse to record the end of an execution beside which another may have begun."""
    if alone is not None and alone.is_lost:
        raise LostLeaseError("Another execution may have begun; this one is not recorded.")


def _as_json(output: object) -> str | None:
    """Return a result as the history keeps it. What is not JSON is told by its kind: the execution has succeeded."""
    if output is None:
        return None
    try:
        return json.dumps(output, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return json.dumps({"notJson": type(output).__name__})
