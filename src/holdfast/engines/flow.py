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
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import StrEnum

from ..core.clock import Clock
from ..core.errors import AlreadyRunning, ConfigurationError, Conflict, LostLeaseError, MessageError
from ..core.telling import told
from ..records.dead_letters import DeadLetter, new_letter
from ..records.row_keys import dead_letter_key
from .context import EngineContext
from .definition import EngineDefinition, EngineSettings
from .invisible import KeptInvisible
from .messages import Defaults, EngineMessage, parse
from .ports import Alone, Ended, EngineRecords, Exclusive, Scope
from .queues.copies import may_have_twin
from .queues.protocol import EngineQueue, Received

_log = logging.getLogger("holdfast.engines")
_LONGEST_ERROR = 16_000  # characters: longer ones do not fit every table
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
        self._running: set[KeptInvisible] = set()
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
            self._free(message)
            self._queue.delete(received)
            return Outcome.ALREADY_DONE
        self._reached("found not done")
        if self._is_last(received, message) and not may_have_twin(message.others):
            return self._bury(received, message, self._queue)
        return self._execute(received, message)

    def give_up(self, received: Received, poison: EngineQueue) -> Outcome:
        """Take a message out of the queue that a host moves it to when it has failed too often for that host."""
        try:
            message = self._read(received)
        except MessageError as error:
            return self._bury_unreadable(received, error, poison)
        if self._records.has_succeeded(message) or self._records.is_buried(message):
            poison.delete(received)
            return Outcome.ALREADY_DONE
        return self._bury(received, message, poison)

    def give_back(self, reason: str) -> None:
        """Let what is running now come again at once, uncounted; what its executions still do is not recorded."""
        for kept in list(self._running):
            kept.lose()
            self._queue.put_back(kept.message, 0.0, reason)

    def _read(self, received: Received) -> EngineMessage:
        own = self._definition
        message = parse(received.body, Defaults(received.id, own.name, own.settings.operation))
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
        job_id = f"{message.engine}-{hashlib.sha256(message.message_id.encode()).hexdigest()[:32]}"
        if settings.singleton:
            lock_seconds = settings.lock_seconds if settings.locks_registry else None
            return Scope(f"{message.engine}-{message.instance_id}", job_id, lock_seconds)
        if may_have_twin(message.others):
            return Scope(f"{message.engine} twin {zlib.crc32(message.message_id.encode()) % _TWIN_LEASES}", job_id)
        return None

    # Dead letters

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
            original_message=received.body,
            error_message=failures[-1].error if failures else f"worker lost during attempt {max(1, count - 1)}",
            dequeue_count=count,
            first_failure_at=failures[0].at if failures else received.inserted_at,
            last_failure_at=failures[-1].at if failures else received.inserted_at,
            correlation_id=message.correlation_id,
        )
        self._free(message)
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
        letter = new_letter(
            item=received.id,
            row_key=dead_letter_key(received.id, received.inserted_at),
            engine=self._definition.name,
            original_queue=self._queue.name,
            original_message=received.body,
            error_message=str(error),
            dequeue_count=received.dequeue_count,
            first_failure_at=now,
            last_failure_at=now,
            correlation_id=received.id,
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
            with self._known(kept), kept, ExitStack() as held:
                try:
                    alone = self._be_alone(held, message, kept)
                except Conflict as conflict:
                    return self._put_back(kept, message, conflict)
                self._reached("alone")
                if alone is not None and self._is_over(message):  # by whoever was alone before
                    self._queue.delete(kept.let_go())
                    return Outcome.ALREADY_DONE
                if self._is_last(received, message):
                    return self._bury(kept.let_go(), message, self._queue)
                return self._run(kept, message, alone)
        except LostLeaseError:
            _log.warning("Message %s of engine '%s' is someone else's by now", message.message_id, message.engine)
            return Outcome.LOST

    def _is_over(self, message: EngineMessage) -> bool:
        """Return whether the message has come to its end: done, or, for one of twins, in the dead letters."""
        is_dead = may_have_twin(message.others) and self._records.is_buried(message)
        return is_dead or self._records.has_succeeded(message)

    @contextmanager
    def _known(self, kept: KeptInvisible) -> Iterator[None]:
        self._running.add(kept)
        try:
            yield
        finally:
            self._running.discard(kept)

    def _be_alone(self, held: ExitStack, message: EngineMessage, kept: KeptInvisible) -> Alone | None:
        scope = self._scope(message)
        if scope is None or self._exclusive is None:
            return None
        alone = held.enter_context(self._exclusive.alone(scope))
        alone.when_lost(kept.lose)
        return alone

    def _put_back(self, kept: KeptInvisible, message: EngineMessage, conflict: Conflict) -> Outcome:
        """Let a message come again that met a 409: it was no attempt, so it is not counted [ENGINE-3]."""
        self._reached("conflict")
        self._queue.put_back(kept.let_go(), self._settings(message).conflict_seconds, str(conflict))
        _log.info("Engine '%s': 409, message %s comes again: %s", message.engine, message.message_id, conflict)
        return Outcome.CONFLICT

    def _run(self, kept: KeptInvisible, message: EngineMessage, alone: Alone | None) -> Outcome:
        started = self._clock.monotonic()
        try:
            output = _as_json(self._call(kept, message, alone))
        except AlreadyRunning as conflict:
            return self._put_back(kept, message, conflict)
        except LostLeaseError:
            raise
        except Exception as error:
            _require_alone(alone)
            return self._failed(kept, message, started, told(error)[:_LONGEST_ERROR])
        self._reached("executed")
        _require_alone(alone)
        kept.extend()  # still ours, and for long enough to write its end down
        self._settle(self._ended(kept, message, started, output=output), kept)
        return Outcome.SUCCEEDED

    def _settle(self, ended: Ended, kept: KeptInvisible) -> None:
        try:
            self._records.settle(ended, self._queue, kept.message, self._reached)
        except ConfigurationError:
            if ended.output is None:
                raise
            told = json.dumps({"tooLarge": len(ended.output)})  # for the table; the execution has succeeded
            self._records.settle(replace(ended, output=told), self._queue, kept.message, self._reached)

    def _failed(self, kept: KeptInvisible, message: EngineMessage, started: float, error: str) -> Outcome:
        self._reached("failed")
        kept.extend()
        self._records.record(self._ended(kept, message, started, error=error))
        self._reached("failure recorded")
        count = kept.message.dequeue_count
        delay = self._settings(message).retry_policy.delay_for_attempt(count - 1)
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
