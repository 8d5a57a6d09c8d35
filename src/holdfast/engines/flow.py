"""The flow of an engine's message, step by step: history, count, execution, history, delete.

The history is looked up before the count: a worker that dies between writing the success and deleting the message, on
the last attempt, must not turn a success into a dead letter. The message is deleted last, so whatever happens before
that makes it come again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Any

from ..core.clock import Clock
from ..core.errors import Conflict, LostLeaseError, MessageError
from ..core.telling import told
from ..records.dead_letters import DeadLetter, new_letter
from ..records.row_keys import dead_letter_key
from .context import EngineContext
from .definition import EngineDefinition
from .invisible import KeptInvisible
from .messages import Defaults, EngineMessage, parse
from .ports import Ended, EngineRecords, Exclusive
from .queues.protocol import EngineQueue, Received

_log = logging.getLogger("holdfast.engines")


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
        definition: the engine.
        queue: where the message is, and where it goes back to.
        records: the history and the dead letters.
        exclusive: keeps executions of a singleton apart; needed for singletons only.
        reached: told every boundary between two steps; for tests that stop there.
    """

    def __init__(
        self,
        definition: EngineDefinition,
        queue: EngineQueue,
        records: EngineRecords,
        *,
        clock: Clock,
        exclusive: Exclusive | None = None,
        reached: Callable[[str], None] = lambda boundary: None,
    ) -> None:
        self._definition = definition
        self._settings = definition.settings
        self._queue = queue
        self._records = records
        self._exclusive = exclusive
        self._clock = clock
        self._reached = reached

    def handle(self, received: Received) -> Outcome:
        """Take one delivery to its end. If the process dies here, the message comes again when its time has passed."""
        self._reached("received")
        try:
            message = parse(received.body, self._defaults(received))
        except MessageError as error:
            return self._bury_unreadable(received, error)
        if self._records.has_succeeded(message):
            self._reached("found done")
            self._queue.delete(received)
            return Outcome.ALREADY_DONE
        self._reached("found not done")
        if received.dequeue_count >= self._settings.max_retry_attempts:
            return self._bury(received, message)
        return self._execute(received, message)

    def _defaults(self, received: Received) -> Defaults:
        return Defaults(received.id, self._definition.name, self._settings.operation)

    # Dead letters

    def _bury(self, received: Received, message: EngineMessage) -> Outcome:
        failures = self._records.failures(message)
        lost = f"worker lost during attempt {received.dequeue_count - 1}"
        letter = new_letter(
            item=message.message_id,
            row_key=dead_letter_key(message.message_id, received.inserted_at),
            engine=message.engine,
            instance_id=message.instance_id,
            original_queue=self._queue.name,
            original_message=received.body,
            error_message=failures[-1].error if failures else lost,
            dequeue_count=received.dequeue_count,
            first_failure_at=failures[0].at if failures else received.inserted_at,
            last_failure_at=failures[-1].at if failures else received.inserted_at,
            correlation_id=message.correlation_id,
        )
        return self._bury_letter(received, letter)

    def _bury_unreadable(self, received: Received, error: MessageError) -> Outcome:
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
        return self._bury_letter(received, letter)

    def _bury_letter(self, received: Received, letter: DeadLetter) -> Outcome:
        if self._records.bury(letter):
            _log.error(
                "Engine '%s' gave message %s up after %d deliveries: %s",
                letter.engine,
                letter.item_id,
                letter.dequeue_count,
                letter.error_message,
            )
        self._reached("buried")
        self._queue.delete(received)
        return Outcome.DEAD_LETTERED

    # Executing

    def _execute(self, received: Received, message: EngineMessage) -> Outcome:
        kept = KeptInvisible(self._queue, received, self._settings.visibility_seconds, self._clock)
        with kept:
            try:
                with self._alone(message) as registry:
                    self._reached("alone")
                    return self._run(kept, message, registry)
            except Conflict as conflict:
                self._queue.put_back(kept.message, self._settings.conflict_seconds, str(conflict))
                _log.info("Engine '%s': 409, message %s comes again: %s", message.engine, message.message_id, conflict)
                return Outcome.CONFLICT
            except LostLeaseError:
                _log.warning("Message %s of engine '%s' is someone else's by now", message.message_id, message.engine)
                return Outcome.LOST

    def _alone(self, message: EngineMessage) -> AbstractContextManager[Any]:
        if not self._settings.singleton or self._exclusive is None:
            return nullcontext()
        return self._exclusive.alone(self._definition.name, message)

    def _run(self, kept: KeptInvisible, message: EngineMessage, registry: Any) -> Outcome:
        started = self._clock.monotonic()
        try:
            output = _as_json(self._call(kept, message, registry))
        except (LostLeaseError, Conflict):
            raise
        except Exception as error:
            return self._failed(kept, message, started, told(error))
        self._reached("executed")
        kept.extend()  # still ours, and for long enough to write its end down
        self._records.record(self._ended(kept, message, started, output=output))
        self._reached("recorded")
        self._queue.delete(kept.message)
        return Outcome.SUCCEEDED

    def _failed(self, kept: KeptInvisible, message: EngineMessage, started: float, error: str) -> Outcome:
        self._reached("failed")
        kept.extend()
        self._records.record(self._ended(kept, message, started, error=error))
        self._reached("failure recorded")
        count = kept.message.dequeue_count
        delay = self._settings.retry_policy.delay_for_attempt(count - 1)
        self._queue.retry_later(kept.message, delay, error)
        _log.warning(
            "Engine '%s' failed at delivery %d of message %s and tries again in %.1f s: %s",
            message.engine,
            count,
            message.message_id,
            delay,
            error,
        )
        return Outcome.RETRIED

    def _call(self, kept: KeptInvisible, message: EngineMessage, registry: Any) -> object:
        context = EngineContext(
            engine=message.engine,
            operation=message.operation,
            correlation_id=message.correlation_id,
            message_id=message.message_id,
            instance_id=message.instance_id,
            attempt=kept.message.dequeue_count,
            causation_id=message.causation_id,
            registry=registry,
            lease_lost=kept.lost,
            _beat=kept.extend,
        )
        return self._definition.invoker.invoke([message], context, kept)

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


def _as_json(output: object) -> str | None:
    """Return a result as the history keeps it. What is not JSON is told by its kind: the execution has succeeded."""
    if output is None:
        return None
    try:
        return json.dumps(output, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return json.dumps({"notJson": type(output).__name__})
