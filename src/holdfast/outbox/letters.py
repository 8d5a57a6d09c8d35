"""Messages a processor could not handle: into the dead letters with the checkpoint, and back by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import and_, delete, insert, select, update
from sqlalchemy.engine import Connection, Engine

from ..core.errors import ConfigurationError
from ..records import audit
from ..records.database import changing, reading
from ..records.dead_letters import DeadLetter, DeadLetters, LetterStatus, new_letter
from ..records.putting_back import Refusal, no_longer_pending
from ..records.schema import ID_LENGTH, dead_letters_table
from ..records.times import database_time
from ..runtime.idle_time import limit_idle_time
from .checkpoints import CheckpointResult, CheckpointStore, Move, PartitionId, Role
from .message import Message
from .schema import redeliveries_table
from .wake_ups import tell_of_changes

ENGINE_PREFIX = "processor:"
QUEUE = "outbox"
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

    def move(self, partition: PartitionId, move: Move, token: int, idle_seconds: float) -> CheckpointResult:
        """Move a checkpoint in a transaction of its own; nothing is kept when it is not stored."""
        with changing(self._engine) as connection:
            return self._checkpoints.store(connection, partition, move, token=token, idle_seconds=idle_seconds)

    def bury(
        self,
        partition: PartitionId,
        message: Message,
        move: Move,
        token: int,
        *,
        error: str,
        attempts: int,
        first_failed_at: datetime,
        last_failed_at: datetime,
        idle_seconds: float,
    ) -> CheckpointResult:
        """Write a dead letter and move the checkpoint past its message, both or neither."""
        letter = _letter(partition, message, error, attempts, first_failed_at, last_failed_at)
        with changing(self._engine) as connection:
            result = self._checkpoints.store(connection, partition, move, token=token, idle_seconds=idle_seconds)
            if result is CheckpointResult.STORED:
                self._dead_letters.add(connection, letter)
        return result

    def next_redelivery(self, partition: PartitionId) -> Redelivery | None:
        """Return the first message that was put back for a partition."""
        query = select(redeliveries_table).where(
            _redeliveries.processor_id == partition.processor_id,
            _redeliveries.version == partition.version,
            _redeliveries.partition_number == partition.partition,
        )
        with reading(self._engine) as connection:
            row = connection.execute(query.order_by(_redeliveries.id).limit(1)).one_or_none()
        return None if row is None else Redelivery(row.id, partition, message_in(row.message), row.attempts)

    def take(self, connection: Connection, found: Redelivery) -> bool:
        """Remove a message that was put back, inside a transaction that has its place locked; False when it is gone."""
        return connection.execute(delete(redeliveries_table).where(_redeliveries.id == found.id)).rowcount == 1

    def forget(self, found: Redelivery, token: int, idle_seconds: float) -> bool:
        """Remove a message that was put back and handled; False when it is not ours."""
        with changing(self._engine) as connection:
            return self._take_alone(connection, found, token, idle_seconds)

    def _take_alone(self, connection: Connection, found: Redelivery, token: int, idle_seconds: float) -> bool:
        limit_idle_time(connection, idle_seconds)
        held, _ = self._checkpoints.lock(connection, found.partition, token)
        return held is CheckpointResult.STORED and self.take(connection, found)

    def bury_again(
        self,
        found: Redelivery,
        token: int,
        error: str,
        first_failed_at: datetime,
        last_failed_at: datetime,
        idle_seconds: float,
    ) -> bool:
        """Turn a message that was put back and failed again into a dead letter; False when it is not ours."""
        letter = _letter(found.partition, found.message, error, found.attempts + 1, first_failed_at, last_failed_at)
        with changing(self._engine) as connection:
            is_ours = self._take_alone(connection, found, token, idle_seconds)
            if is_ours:
                self._dead_letters.add(connection, letter)
        return is_ours


class ProcessorHome:
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
            connection.execute(insert(redeliveries_table).values(_redelivery_of(letter, home)))
            tell_of_changes(connection)
            retried_as = letter.item_id or letter.correlation_id
            kept.mark_retried(connection, letter, retried_as, actor)
            audit.record(connection, actor, "dlq retry", "/".join(key), {"retried_as": retried_as})
        return refusals


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
    letters = dead_letters_table.c
    values = {
        "status": LetterStatus.RESOLVED.value,
        "resolution_notes": "Read again from the beginning",
        "resolved_at": database_time(connection.dialect),
        "resolved_by": actor[:ID_LENGTH],
    }
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


def _letter(
    partition: PartitionId,
    message: Message,
    error: str,
    attempts: int,
    first_failed_at: datetime,
    last_failed_at: datetime,
) -> DeadLetter:
    values = {**asdict(message), "headers": dict(message.headers), "appended_at": message.appended_at.isoformat()}
    return new_letter(
        item=message.message_id,
        engine=f"{ENGINE_PREFIX}{partition.processor_id}",
        instance_id=f"v{partition.version}.p{partition.partition}",
        original_queue=QUEUE,
        original_message=json.dumps(values, ensure_ascii=False),
        error_message=error,
        dequeue_count=attempts,
        first_failure_at=first_failed_at,
        last_failure_at=last_failed_at,
        correlation_id=message.correlation_id or message.message_id,
    )
