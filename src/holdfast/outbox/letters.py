"""Messages a processor could not handle: into the dead letters with the checkpoint, and back by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import and_, delete, insert, select, update
from sqlalchemy.engine import Connection, Engine

from ..core.clock import new_id
from ..core.errors import ConfigurationError, HandlerError
from ..database.error_text import bounded_traceback, error_text
from ..records import audit
from ..records.database import changing, reading
from ..records.dead_letters import DeadLetter, DeadLetters, LetterStatus, NewLetter, settled_columns
from ..records.history import History, HistoryStatus, NewEntry
from ..records.redrive import Refusal, no_longer_pending
from ..records.row_keys import dead_letter_key
from ..records.schema import dead_letters_table
from ..runtime.idle_time import limit_idle_time
from . import parking
from .course import Aside, Failed, Passage
from .message import Message
from .schema import redeliveries_table
from .store import CheckpointResult, CheckpointStore, PartitionId, Role
from .wake_ups import notify_of_changes

ENGINE_PREFIX = "processor:"
QUEUE = "outbox"
WAITS = "It waits behind an earlier message of its key that failed, and follows by itself when that is dealt with."
_redeliveries = redeliveries_table.c


@dataclass(frozen=True, slots=True)
class Redelivery:
    """A message that was put back."""

    id: int
    partition: PartitionId
    message: Message
    attempts: int


class Letters:
    """What cannot be handled, and what was put back."""

    def __init__(self, checkpoints: CheckpointStore) -> None:
        self._engine = checkpoints.engine
        self._checkpoints = checkpoints
        self._dead_letters = DeadLetters(checkpoints.engine)
        self._history = History(checkpoints.engine)

    def record(
        self, partition: PartitionId, message: Message, error: HandlerError, attempt: int, duration_ms: int
    ) -> None:
        """Add a try that failed to the history; ``message`` is the first of its batch."""
        entry = NewEntry(
            engine=_engine_of(partition),
            instance_id=_instance_of(partition),
            correlation_id=_correlation_of(message),
            operation=partition.processor_id,
            status=HistoryStatus.FAILED,
            duration_ms=duration_ms,
            error=str(error),
            traceback=_traceback(error),
            item_id=message.message_id,
            attempt=attempt,
        )
        with changing(self._engine) as connection:
            self._history.add(connection, entry)

    def record_fault(self, partition: PartitionId, error: Exception) -> None:
        """Add to the history why a partition could not come to deliver anything."""
        entry = NewEntry(
            engine=_engine_of(partition),
            instance_id=_instance_of(partition),
            correlation_id=new_id(),
            operation=partition.processor_id,
            status=HistoryStatus.FAILED,
            duration_ms=0,
            error=error_text(error),
            traceback=bounded_traceback(error),
        )
        with changing(self._engine) as connection:
            self._history.add(connection, entry)

    def pass_over(
        self, partition: PartitionId, passage: Passage, token: int, now: datetime, idle_seconds: float
    ) -> CheckpointResult:
        """Move a checkpoint, with a dead letter for each message that is passed by, in a transaction of its own.

        Both or neither: nothing is kept when the checkpoint is not stored.
        """
        with changing(self._engine) as connection:
            result = self._checkpoints.store(
                connection, partition, passage.move, token=token, idle_seconds=idle_seconds
            )
            if result is CheckpointResult.STORED:
                self.set_aside(connection, partition, passage.asides, now)
        return result

    def set_aside(self, connection: Connection, partition: PartitionId, asides: Sequence[Aside], now: datetime) -> None:
        """Write a dead letter for each message that failed, or waits behind one that did, with the checkpoint."""
        for aside in asides:
            letter = _letter(partition, aside.message, aside.failed, now)
            self._dead_letters.add(connection, letter)
            if aside.is_parked:
                parking.park(connection, partition, aside.message, letter.row_key, waits=aside.failed is None)

    def next_redelivery(self, partition: PartitionId) -> Redelivery | None:
        """Return the first message that was put back for a partition and waits for no other of its key."""
        query = select(redeliveries_table).where(
            _redeliveries.processor_id == partition.processor_id,
            _redeliveries.version == partition.version,
            _redeliveries.partition_number == partition.partition,
            parking.is_first_of_its_key(),
        )
        with reading(self._engine) as connection:
            row = connection.execute(query.order_by(_redeliveries.id).limit(1)).one_or_none()
        return None if row is None else Redelivery(row.id, partition, message_in(row.message), row.attempts)

    def take(self, connection: Connection, found: Redelivery) -> bool:
        """Remove a message that was put back and handled, in a transaction that has its place locked; False if gone."""
        parking.note_delivered(connection, found.id)
        return _delete(connection, found.id)

    def forget(self, found: Redelivery, token: int, idle_seconds: float) -> bool:
        """Remove a message that was put back and handled; False when it is not ours."""
        with self._in_charge(found.partition, token, idle_seconds) as connection:
            return connection is not None and self.take(connection, found)

    def bury_again(self, found: Redelivery, token: int, failed: Failed, idle_seconds: float) -> bool:
        """Turn a message that was put back and failed again into a dead letter; False when it is not ours.

        What was put back of the same key behind it waits again.
        """
        with self._in_charge(found.partition, token, idle_seconds) as connection:
            if connection is None or not _delete(connection, found.id):
                return False
            letter = _letter(found.partition, found.message, failed, failed.last_at)
            self._dead_letters.add(connection, letter)
            for behind in parking.put_back_behind(connection, found.id):
                self._wait_again(connection, found.partition, behind, failed.last_at)
            parking.note_failed_again(connection, found.id, letter.row_key)
        return True

    def _wait_again(self, connection: Connection, partition: PartitionId, redelivery_id: int, now: datetime) -> None:
        row = connection.execute(select(redeliveries_table).where(_redeliveries.id == redelivery_id)).one()
        _delete(connection, redelivery_id)
        letter = _letter(partition, message_in(row.message), None, now)
        self._dead_letters.add(connection, letter)
        parking.note_waits_again(connection, redelivery_id, letter.row_key)

    def follow_up(self, partition: PartitionId, token: int, idle_seconds: float) -> bool:
        """Put back what waits no longer: that behind which it waited was delivered, or settled by a person.

        Returns whether any key of the partition is parked.
        """
        while True:
            with reading(self._engine) as connection:
                firsts = parking.first_of_each_key(connection, partition)
                pending = self._dead_letters.pending_keys(
                    _engine_of(partition), [first.letter_key for first in firsts], connection
                )
            settled = [first.id for first in firsts if first.letter_key not in pending]
            ready = [first.letter_key for first in firsts if first.is_waiting and first.letter_key in pending]
            if not settled and not ready:
                return bool(firsts) or parking.has_parked(self._engine, partition)
            with self._in_charge(partition, token, idle_seconds) as connection:
                if connection is None:
                    return True
                parking.forget_rows(connection, settled)
                self._put_back_waiting(connection, partition, ready)

    def _put_back_waiting(self, connection: Connection, partition: PartitionId, letter_keys: Sequence[str]) -> None:
        name = _engine_of(partition)
        found = [self._dead_letters.get(name, key, connection) for key in letter_keys]
        letters = [letter for letter in found if letter is not None]
        for letter in self._dead_letters.lock_pending(connection, letters) if letters else []:
            _put_back(connection, self._dead_letters, letter, partition, actor=name)

    @contextmanager
    def _in_charge(self, partition: PartitionId, token: int, idle_seconds: float) -> Iterator[Connection | None]:
        """Yield a transaction in which the partition's place is locked; None when it is not ours any more."""
        with changing(self._engine) as connection:
            limit_idle_time(connection, idle_seconds)
            held, _ = self._checkpoints.lock(connection, partition, token)
            yield connection if held is CheckpointResult.STORED else None


class ProcessorRedrive:
    """Where the dead letters of processors go back to: delivered again, alone, to the partition they came from."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _home(self, connection: Connection, letter: DeadLetter) -> PartitionId | None:
        """Return where the letter goes back to: where it came from. Another version reads the message by itself."""
        places = CheckpointStore(self._engine).of(letter.engine.removeprefix(ENGINE_PREFIX), connection=connection)
        came_from = _came_from(letter)
        for place in places:
            if (place.id.version, place.id.partition) == came_from and place.role is not Role.RETIRED:
                return place.id
        return None

    def put_back(self, connection: Connection, letters: Sequence[DeadLetter], actor: str) -> list[Refusal]:
        """Put back what is Pending, and return why the others cannot be."""
        kept = DeadLetters(self._engine)
        pending = {(letter.engine, letter.row_key): letter for letter in kept.lock_pending(connection, letters)}
        refusals: list[Refusal] = []
        for key in [(letter.engine, letter.row_key) for letter in letters]:
            letter = pending.get(key)
            if letter is None:
                refusals.append(no_longer_pending(kept.get(*key, connection), *key))
                continue
            home = self._home(connection, letter)
            if home is None:
                refusals.append(_no_home(letter))
                continue
            retried_as = _put_back(connection, kept, letter, home, actor)
            audit.record(connection, actor, "dlq retry", "/".join(key), {"retried_as": retried_as})
        return refusals


def _put_back(connection: Connection, kept: DeadLetters, letter: DeadLetter, home: PartitionId, actor: str) -> str:
    """Have a message delivered again; return what its letter says that it was put back as."""
    values = _redelivery_of(letter, home)
    [redelivery_id] = connection.execute(insert(redeliveries_table).values(values)).inserted_primary_key or (0,)
    parking.note_put_back(connection, home, letter.row_key, redelivery_id)
    notify_of_changes(connection)
    retried_as = letter.item_id or letter.correlation_id
    kept.mark_retried(connection, letter, retried_as, actor)
    return retried_as


def _delete(connection: Connection, redelivery_id: int) -> bool:
    return connection.execute(delete(redeliveries_table).where(_redeliveries.id == redelivery_id)).rowcount == 1


def _redelivery_of(letter: DeadLetter, home: PartitionId) -> dict[str, object]:
    return {
        "processor_id": home.processor_id,
        "version": home.version,
        "partition_number": home.partition,
        "message": letter.original_message,
        "attempts": letter.dequeue_count,
    }


def withdraw(connection: Connection, processor_id: str, version: int, actor: str) -> None:
    """Forget what was put back for a version, and resolve its letters: it reads all of their messages again."""
    of_version = and_(_redeliveries.processor_id == processor_id, _redeliveries.version == version)
    connection.execute(delete(redeliveries_table).where(of_version))
    parking.forget_all(connection, processor_id, version)
    letters = dead_letters_table.c
    values = settled_columns(connection, LetterStatus.RESOLVED, "Read again from the beginning", actor)
    wanted = and_(
        letters.engine == f"{ENGINE_PREFIX}{processor_id}",
        letters.instance_id.startswith(f"v{version}.p", autoescape=True),
        letters.status == LetterStatus.PENDING.value,
    )
    connection.execute(update(dead_letters_table).where(wanted).values(values))


def message_in(text: str) -> Message:
    """Return the message a dead letter holds."""
    values = json.loads(text)
    values["appended_at"] = datetime.fromisoformat(values["appended_at"])
    return Message(**values)


def _came_from(letter: DeadLetter) -> tuple[int, int]:
    version, _, partition = letter.instance_id.removeprefix("v").partition(".p")
    return int(version), int(partition)


def _no_home(letter: DeadLetter) -> ConfigurationError:
    version, _ = _came_from(letter)
    return ConfigurationError(
        f"Version {version} of {letter.engine.replace(':', ' ')} is retired or not registered any more, and other "
        f"versions read the message of the dead letter '{letter.row_key}' by themselves; nothing was changed. Deal "
        "with it, then use 'holdfast dlq resolve'."
    )


def _letter(partition: PartitionId, message: Message, failed: Failed | None, now: datetime) -> NewLetter:
    """Return the letter of a message that failed, or of one that waits behind it."""
    values = {**asdict(message), "headers": dict(message.headers), "appended_at": message.appended_at.isoformat()}
    last_failure_at = now if failed is None else failed.last_at
    return NewLetter(
        engine=_engine_of(partition),
        row_key=dead_letter_key(message.message_id, last_failure_at),
        instance_id=_instance_of(partition),
        item_id=message.message_id,
        correlation_id=_correlation_of(message),
        original_queue=QUEUE,
        original_message=json.dumps(values, ensure_ascii=False),
        error_message=WAITS if failed is None else str(failed.error),
        traceback=None if failed is None else _traceback(failed.error),
        dequeue_count=0 if failed is None else failed.attempts,
        first_failure_at=now if failed is None else failed.first_at,
        last_failure_at=last_failure_at,
    )


def _engine_of(partition: PartitionId) -> str:
    return f"{ENGINE_PREFIX}{partition.processor_id}"


def _instance_of(partition: PartitionId) -> str:
    return f"v{partition.version}.p{partition.partition}"


def _correlation_of(message: Message) -> str:
    return message.correlation_id or message.message_id


def _traceback(error: HandlerError) -> str:
    return bounded_traceback(error.__cause__ or error)
