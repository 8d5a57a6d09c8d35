"""Putting an engine's dead letters back into their queue (section 2.4 of the standard) [ENGINE-5].

Where the letters and the queue are in one database, a retry is one transaction. Elsewhere it has three steps:

1. write down, while the letter is Pending, who retries it and under which new message id; of two, one gets 409;
2. send the message with that id;
3. settle the letter as Resolved, "Retried".

A crash after the first is finished by the next retry, or by the sweep, under the same id. If the message was sent
before the crash it may be in the queue twice: both have one id, so the history ends the second, they never run side by
side, and if they die they are one dead letter.

What the queue would not take is refused before the first step: a retry that is begun and can never be finished keeps a
letter Pending until a person settles it by force.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.engine import Connection

from ..core.errors import ConfigurationError, Conflict, DbError, MessageError, NotFoundError, UnfinishedRetry
from ..records.dead_letters import SETTLED_BY_FORCE, DeadLetter, DeadLetters, LetterFilter, is_pending
from ..records.history import HistoryStatus
from ..records.paging import MAX_LIMIT
from ..records.protocol import HistoryTable, LetterTable
from ..records.redrive import Refusal
from ..records.row_keys import dead_letter_key
from .messages import Defaults, parse
from .queues.embedded import EmbeddedQueue
from .queues.protocol import LimitedQueue, SendingQueue
from .queues.redelivery_marks import retried_copy

_log = logging.getLogger("holdfast.engines")
_UNFINISHED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LetterOwners:
    """Tells which letters an application may put back: its own, and others whose owner is known to read the queue.

    A letter that tells no application, of an earlier release, belongs to whoever declares its engine.

    Attributes:
        application: which one this is.
        is_declared: tells whether it has an engine.
        is_read: tells whether a live worker of a letter's owner takes what is put into its queue here.
    """

    application: str
    is_declared: Callable[[str], bool]
    is_read: Callable[[DeadLetter], bool]

    def refusal(self, letter: DeadLetter) -> ConfigurationError | None:
        """Return why a letter cannot be put back here; None when it can be."""
        if letter.application not in (None, self.application):
            return None if self.is_read(letter) else _of_another(letter)
        return None if self.is_declared(letter.engine) else _undeclared(letter)


class EngineRedrive:
    """Puts letters back whose queue is in the same database, inside the caller's transaction.

    Args:
        letters: the dead letters.
        queue: the queue that a letter goes back to: that of its application.
        owners: tells which letters may be put back.
    """

    def __init__(
        self, letters: DeadLetters, queue: Callable[[DeadLetter], EmbeddedQueue], owners: LetterOwners
    ) -> None:
        self._letters = letters
        self._queue = queue
        self._owners = owners

    def put_back(self, connection: Connection, letters: Sequence[DeadLetter], actor: str) -> list[Refusal]:
        """Put back what is Pending, audited; return why the others cannot be."""
        refusals: list[Refusal] = []
        for letter in letters:
            refusal = self._owners.refusal(letter)
            if refusal is not None:
                refusals.append(refusal)
                continue
            try:
                begun = self._letters.begin_retry(connection, letter.engine, letter.row_key, actor, new_message_id())
            except NotFoundError as error:
                refusals.append(ConfigurationError(str(error)))
                continue
            except Conflict as error:
                refusals.append(error)
                continue
            message_id, body = _message_of(begun)
            self._queue(begun).send(body, message_id=message_id, connection=connection)
            self._letters.finish_retry(connection, letter.engine, letter.row_key, message_id)
        return refusals


class SteppedRetries:
    """Puts letters back in the three steps, wherever the letters and the queue are.

    Args:
        letters: the dead letters.
        history: tells what a retry that was not finished has led to.
        queue: the queue that a letter goes back to.
        owners: tells which letters may be put back.
        reached: called at every boundary between two steps; for tests that stop there.
    """

    def __init__(
        self,
        letters: LetterTable,
        history: HistoryTable,
        queue: Callable[[DeadLetter], SendingQueue],
        owners: LetterOwners,
        reached: Callable[[str], None] = lambda boundary: None,
    ) -> None:
        self._letters = letters
        self._history = history
        self._queue = queue
        self._owners = owners
        self._reached = reached

    def retry(self, letter: DeadLetter, actor: str) -> str:
        """Put one letter back, or finish a retry of it that was begun; return the new message's id.

        Raises:
            NotFoundError: there is no such letter.
            Conflict: it is no longer Pending, or someone else began in this moment; nothing was changed.
            ConfigurationError: this application does not have the engine, the letter is another's, or its queue is not
                there; nothing was changed.
            MessageError: the message is too large to be put back; nothing was changed.
            UnfinishedRetry: it was begun, and something does not answer: the next retry or a worker finishes it.
        """
        refusal = self._owners.refusal(letter)
        if refusal is not None:
            raise refusal
        wanted_id = new_message_id()
        if is_pending(letter) and letter.retry_message_id is None:
            self._check_takes(replace(letter, retry_message_id=wanted_id))
        begun = self._letters.begin_retry(letter.engine, letter.row_key, actor, wanted_id)
        self._reached("retry begun")
        message_id, body = _message_of(begun)
        with _reported_as_begun(begun):
            if message_id == wanted_id or not self._is_known(begun, message_id, body):
                self._queue(begun).send(body, message_id=message_id)
            self._reached("enqueued")
            self._letters.finish_retry(begun.engine, begun.row_key, message_id)
        self._reached("retry finished")
        return message_id

    def _check_takes(self, letter: DeadLetter) -> None:
        """Refuse what the queue would refuse, before anything is written: the copy is as long as it will be."""
        queue = self._queue(letter)
        if isinstance(queue, LimitedQueue):
            message_id, body = _message_of(letter)
            queue.check_takes(body, message_id=message_id)

    def sweep(self, older_than_seconds: float = _UNFINISHED_SECONDS) -> int:
        """Finish retries that were begun so long ago and not finished; return how many were."""
        finished = 0
        after: str | None = None
        while True:
            page = self._letters.unfinished_retries(older_than_seconds, after=after)
            for letter in page.items:
                if self._owners.refusal(letter) is None:
                    finished += self._finished(letter)
            after = page.continuation_token
            if after is None:
                return finished

    def _finished(self, letter: DeadLetter) -> bool:
        try:
            self.retry(letter, letter.retry_begun_by or "sweep")
        except (Conflict, NotFoundError):  # someone else was faster
            return False
        except DbError as error:
            _log.warning(
                "The retry of dead letter '%s' of engine '%s' cannot be finished yet: %s",
                letter.row_key,
                letter.engine,
                error,
            )
            return False
        return True

    def _is_known(self, letter: DeadLetter, message_id: str, body: str) -> bool:
        """Return whether the message of a retry that was not finished has been sent and has come to its end."""
        key = dead_letter_key(message_id, _begun_at(letter))
        if self._letters.get(letter.engine, key) is not None:
            return True
        try:
            message = parse(body, Defaults(message_id, letter.engine, ""))
        except MessageError:
            return self._has_died_unread(letter, body)
        entries = self._history.of_correlation(message.engine, message.correlation_id, application=letter.application)
        return any(entry.item_id == message_id and entry.status is HistoryStatus.SUCCEEDED for entry in entries)

    def _has_died_unread(self, letter: DeadLetter, body: str) -> bool:
        """Return whether a message that nobody can read is a dead letter again, under whichever key its queue gave.

        A copy has its own id in it. What could be none is told from others of the same text by when it failed.
        """
        is_copy = body != letter.original_message
        since = None if is_copy else _begun_at(letter)
        wanted = LetterFilter(engine=letter.engine, since=since, application=letter.application)
        after: str | None = None
        while True:
            page = self._letters.page(wanted, MAX_LIMIT, after)
            if any(each.original_message == body and each.row_key != letter.row_key for each in page.items):
                return True
            after = page.continuation_token
            if after is None:
                return False


def new_message_id() -> str:
    """Return an id for a new message."""
    return str(uuid.uuid4())


@contextmanager
def _reported_as_begun(letter: DeadLetter) -> Iterator[None]:
    """Say of whatever goes wrong once a retry is begun that it is: nobody may take the letter for untouched."""
    name = f"The retry of dead letter '{letter.row_key}' of engine '{letter.engine}' was begun"
    try:
        yield
    except (Conflict, NotFoundError):  # someone else has settled the letter
        raise
    except MessageError as error:
        raise MessageError(f"{name} and cannot be finished: {error} {SETTLED_BY_FORCE}") from error
    except DbError as error:
        raise UnfinishedRetry(
            f"{name} and could not be finished now: {error} The next retry finishes it, and so does any worker."
        ) from error


def _of_another(letter: DeadLetter) -> ConfigurationError:
    return ConfigurationError(
        f"The dead letter '{letter.row_key}' cannot be put back: it is of application '{letter.application}', and no "
        f"live worker is known to take its messages from queue '{letter.original_queue}' here. Retry it as that "
        "application, with its --app and app_name; nothing was changed."
    )


def _undeclared(letter: DeadLetter) -> ConfigurationError:
    return ConfigurationError(
        f"The dead letter '{letter.row_key}' cannot be put back: this application has no engine '{letter.engine}', so "
        "nobody may ever read its queue. Retry it with an application that declares the engine, or deal with it and "
        "use 'holdfast dlq resolve'; nothing was changed."
    )


def _message_of(letter: DeadLetter) -> tuple[str, str]:
    """Return the id and the body that a letter whose retry was begun is put back as."""
    message_id = letter.retry_message_id or new_message_id()
    body = retried_copy(
        letter.original_message,
        message_id=message_id,
        correlation_id=letter.correlation_id,
        row_key=letter.row_key,
        begun_at=_begun_at(letter),
    )
    return message_id, body


def _begun_at(letter: DeadLetter) -> datetime:
    return letter.retry_begun_at or letter.last_failure_at
