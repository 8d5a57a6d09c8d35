"""Where each processor stands: stored with the effects, moved only from where it was expected to be.

The compare-and-set is the safety of everything else here [OUTBOX-2]: whoever lost its lease, or has a twin that was
faster, expects a checkpoint that is no longer there, or carries a token that no longer holds. Its transaction is rolled
back, and with it what its handler wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, insert, select, text, update
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from ..core.key_text import is_plain
from ..database.errors import may_be_tried_again
from ..database.statements import family
from ..records.database import changing, reading, translated
from ..records.times import database_now, database_time
from ..runtime.idle_time import limit_idle_time
from .message import Checkpoint
from .schema import checkpoints_table, waiting_table
from .statements import named

_columns = checkpoints_table.c
_MOST_REASON = 2000
_WAITING_IS_KEPT = timedelta(hours=1)


class CheckpointResult(IntEnum):
    """What became of a checkpoint that was to be stored."""

    IGNORED = 0
    """It is stored already: someone has done this work."""
    STORED = 1
    AHEAD = 2
    """The stored one is further than expected: another instance is at work."""
    BEHIND = 3
    """The stored one is not as far as expected: it was reset, or is not there."""
    NOT_IN_CHARGE = 4
    """The token no longer holds, or the processor was stopped or retired."""


class Role(StrEnum):
    """What a version of a processor is there for."""

    ACTIVE = "active"
    BESIDE = "beside"
    RETIRED = "retired"


class Status(StrEnum):
    """Whether a processor may run."""

    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """One partition of one version of a processor: what has a checkpoint and a lease of its own."""

    processor_id: str
    version: int
    partition: int

    def __str__(self) -> str:
        return f"{self.processor_id} v{self.version} partition {self.partition}"

    @property
    def lease_name(self) -> str:
        """Return the name its lease is kept under."""
        return f"{self.processor_id}.v{self.version}.p{self.partition}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a partition of a processor stands, and what it may do."""

    id: PartitionId
    partitions: int
    reading_order: str
    role: Role
    status: Status
    reason: str | None
    fencing_token: int
    checkpoint: Checkpoint | None
    highest_position: int | None
    system_identifier: str | None
    timeline: int | None
    rebuild_to: Checkpoint | None
    updated_at: datetime

    @property
    def may_run(self) -> bool:
        """Return whether it is neither stopped nor retired."""
        return self.status is Status.RUNNING and self.role is not Role.RETIRED


@dataclass(frozen=True, slots=True)
class Move:
    """A step of a checkpoint: from where it is expected to be, to where it shall be."""

    expected: Checkpoint | None
    to: Checkpoint
    highest_position: int


class CheckpointStore:
    """The checkpoints in a database."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.dialect = family(engine.dialect.name)

    def store(
        self,
        connection: Connection,
        partition: PartitionId,
        move: Move,
        *,
        token: int | None = None,
        idle_seconds: float | None = None,
    ) -> CheckpointResult:
        """Store a checkpoint inside the caller's transaction, in one round trip when it is stored.

        Without a ``token`` only the expected checkpoint is compared, as the first one of a processor that was never
        registered. ``idle_seconds`` lets the server end the transaction when nothing is said on it for that long.
        Whatever the result is but STORED: roll back.
        """
        values = _store_values(partition, move, token)
        if self.dialect == "postgresql":
            values["idle_ms"] = str(int(1000 * idle_seconds)) if idle_seconds else None
            for name in ("expected_transaction", "transaction"):  # only a text becomes an xid8
                values[name] = None if values[name] is None else str(values[name])
            row = connection.exec_driver_sql(named.statement("postgresql", "store_checkpoint"), values).one()
            return CheckpointResult(row[0])
        if idle_seconds:
            limit_idle_time(connection, idle_seconds)
        if connection.exec_driver_sql(named.statement(self.dialect, "store_checkpoint"), values).rowcount == 1:
            return CheckpointResult.STORED
        return self._refused(connection, values, move, token)

    def _refused(
        self, connection: Connection, values: dict[str, Any], move: Move, token: int | None
    ) -> CheckpointResult:
        if move.expected is None and token is None and self._create(connection, values):
            return CheckpointResult.STORED
        key = {name: values[name] for name in ("processor", "version", "partition")}
        row = connection.exec_driver_sql(named.statement(self.dialect, "stored_checkpoint"), key).one_or_none()
        if row is None:
            return CheckpointResult.BEHIND if token is None else CheckpointResult.NOT_IN_CHARGE
        return judge(_checkpoint(row[0], row[1]), move, token_holds=token is None or _holds(row, token))

    def lock(
        self, connection: Connection, partition: PartitionId, token: int, move: Move | None = None
    ) -> tuple[CheckpointResult, str | None]:
        """Lock a place until the transaction ends, and look whether it is ours and, for a move, where it is expected.

        Nobody takes over meanwhile, so what was found STORED here can be stored at the end. Returns what was found
        and, on PostgreSQL, the transaction's id.
        """
        key = {"processor": partition.processor_id, "version": partition.version, "partition": partition.partition}
        row = connection.exec_driver_sql(named.statement(self.dialect, "stored_checkpoint"), key).one_or_none()
        if row is None or not _holds(row, token):
            return CheckpointResult.NOT_IN_CHARGE, None
        stored = _checkpoint(None if row[0] is None else int(row[0]), row[1])  # the driver hands out xid8 as text
        if move is None or stored == move.expected:
            return CheckpointResult.STORED, row[5]
        return judge(stored, move), row[5]

    def _create(self, connection: Connection, values: dict[str, Any]) -> bool:
        try:
            with connection.begin_nested():
                return (
                    connection.exec_driver_sql(named.statement(self.dialect, "create_checkpoint"), values).rowcount == 1
                )
        except IntegrityError:
            return False

    def register(self, places: Sequence[Place], check: Callable[[Connection], None] | None = None) -> None:
        """Write down partitions that are not known yet, all or none; those that are known stay as they are.

        ``check`` is called first, in the same transaction, and raises where nothing may be written. Nothing was written
        either when ``was_overtaken`` says so of an error: another instance registers them at the same time.
        """
        with changing(self.engine) as connection:
            if check is not None:
                check(connection)
            for place in places:
                if connection.execute(select(_columns.version).where(_is(place.id))).one_or_none() is None:
                    connection.execute(insert(checkpoints_table).values(_row(place, connection)))

    def take_over(self, partition: PartitionId, token: int, lease_seconds: float) -> Place | None:
        """Put a holder's token into the row, so that whoever held it before can store nothing; return the place.

        None when a higher token is there: the lease was taken over in the meantime. A transaction of the former holder
        that is still open is waited for, but only for a quarter of the lease.

        Raises:
            Unavailable: that transaction has not ended; the server will end it, try again.
        """
        with changing(self.engine) as connection:
            wanted = and_(_is(partition), _columns.fencing_token <= token)
            with _limited_waiting(connection, lease_seconds / 4, lease_seconds):
                taken = connection.execute(update(checkpoints_table).where(wanted).values(fencing_token=token))
                changed = taken.rowcount
            place = self.get(partition, connection)
        return place if changed else None

    def get(self, partition: PartitionId, connection: Connection | None = None) -> Place | None:
        """Return one place."""
        with reading(self.engine, connection) as open_connection:
            row = open_connection.execute(select(checkpoints_table).where(_is(partition))).one_or_none()
        return None if row is None else _place(row)

    def of(
        self, processor_id: str | None = None, version: int | None = None, connection: Connection | None = None
    ) -> list[Place]:
        """Return the places of a processor, or of a version of it, or all there are, in order."""
        query = select(checkpoints_table).order_by(_columns.processor_id, _columns.version, _columns.partition_number)
        if processor_id is not None:
            if not is_plain(processor_id):  # no row can hold that
                return []
            query = query.where(_columns.processor_id == processor_id)
        if version is not None:
            query = query.where(_columns.version == version)
        with reading(self.engine, connection) as open_connection:
            return [_place(row) for row in open_connection.execute(query)]

    def change(self, connection: Connection, wanted: ColumnElement[bool], **values: object) -> int:
        """Change places inside the caller's transaction; return how many there were."""
        moment = database_time(connection.dialect)
        with translated(self.engine, writes=True):
            found = connection.execute(update(checkpoints_table).where(wanted).values(**values, updated_at=moment))
        return found.rowcount

    def stop(self, partition: PartitionId, token: int, reason: str) -> bool:
        """Let a partition run no more until it is resumed; False when the token no longer holds."""
        with changing(self.engine) as connection:
            return self.stop_on(connection, partition, token, reason)

    def note(self, partition: PartitionId, token: int, reason: str | None) -> None:
        """Write down what goes wrong in a partition that runs, or that nothing does any more."""
        text = None if reason is None else reason[:_MOST_REASON]
        held = and_(_is(partition), _columns.fencing_token == token, _columns.status == Status.RUNNING.value)
        with changing(self.engine) as connection:
            self.change(connection, held, reason=text)

    def stop_on(self, connection: Connection, partition: PartitionId, token: int, reason: str) -> bool:
        """The same inside the caller's transaction."""
        wanted = and_(_is(partition), _columns.fencing_token == token)
        return self.change(connection, wanted, status=Status.STOPPED.value, reason=reason[:_MOST_REASON]) == 1

    def note_waiting(self, partition: PartitionId, instance_id: str) -> None:
        """Write down that an instance found the partition taken and waits for it."""
        named_so = _waiting(partition, instance_id)
        with changing(self.engine) as connection:
            moment = database_time(connection.dialect)
            if connection.execute(update(waiting_table).where(named_so).values(seen_at=moment)).rowcount == 0:
                values = {
                    "processor_id": partition.processor_id,
                    "version": partition.version,
                    "partition_number": partition.partition,
                    "instance_id": instance_id,
                    "seen_at": moment,
                }
                connection.execute(insert(waiting_table).values(values))
                gone = database_now(connection) - _WAITING_IS_KEPT
                connection.execute(delete(waiting_table).where(waiting_table.c.seen_at < gone))

    def forget_waiting(self, partition: PartitionId, instance_id: str) -> None:
        """Write down that an instance waits no more."""
        with changing(self.engine) as connection:
            connection.execute(delete(waiting_table).where(_waiting(partition, instance_id)))


def was_overtaken(error: Exception) -> bool:
    """Return whether another transaction was in the way of a registration: by a lock, a conflict, or the same row."""
    return may_be_tried_again(error) or isinstance(error.__cause__, IntegrityError)


def judge(stored: Checkpoint | None, move: Move, *, token_holds: bool = True) -> CheckpointResult:
    """Return what a checkpoint that was not stored ran into. The same rules as in the function on PostgreSQL."""
    if not token_holds:
        return CheckpointResult.NOT_IN_CHARGE
    if stored is None:
        return CheckpointResult.BEHIND
    if stored == move.to:
        return CheckpointResult.IGNORED
    if move.expected is None or stored > move.expected:
        return CheckpointResult.AHEAD
    return CheckpointResult.BEHIND


def is_any_of(partitions: Iterable[PartitionId]) -> ColumnElement[bool]:
    """Return the condition for the rows of some partitions of one version."""
    first, *others = partitions
    numbers = [first.partition, *(other.partition for other in others)]
    return and_(
        _columns.processor_id == first.processor_id,
        _columns.version == first.version,
        _columns.partition_number.in_(numbers),
    )


def _holds(row: Sequence[Any], token: int) -> bool:
    """Return whether a stored place is under this token and may run."""
    return bool(row[2] == token and row[3] == Status.RUNNING and row[4] != Role.RETIRED)


def _is(partition: PartitionId) -> ColumnElement[bool]:
    return is_any_of([partition])


def _waiting(partition: PartitionId, instance_id: str) -> ColumnElement[bool]:
    columns = waiting_table.c
    return and_(
        columns.processor_id == partition.processor_id,
        columns.version == partition.version,
        columns.partition_number == partition.partition,
        columns.instance_id == instance_id,
    )


@contextmanager
def _limited_waiting(connection: Connection, lock_seconds: float, idle_seconds: float) -> Iterator[None]:
    """Wait for a row's lock only so long, and let others wait for ours only so long. SQLite's patience is its own.

    Whoever gets the session next waits as ever: on PostgreSQL once the transaction has ended, elsewhere after this.
    """
    before = None
    match connection.dialect.name:
        case "postgresql":
            connection.execute(
                text(
                    "SELECT set_config('lock_timeout', :lock_ms, true), "
                    "set_config('idle_in_transaction_session_timeout', :idle_ms, true)"
                ),
                {"lock_ms": str(int(1000 * lock_seconds)), "idle_ms": str(int(1000 * idle_seconds))},
            )
        case "mysql" | "mariadb":
            limit_idle_time(connection, idle_seconds)
            before = connection.exec_driver_sql("SELECT @@SESSION.innodb_lock_wait_timeout").scalar_one()
            _set_lock_patience(connection, max(1, int(lock_seconds)))
    try:
        yield
    finally:
        if before is not None and not connection.invalidated:
            _set_lock_patience(connection, before)


def _set_lock_patience(connection: Connection, seconds: int) -> None:
    connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {int(seconds)}")


def _store_values(partition: PartitionId, move: Move, token: int | None) -> dict[str, Any]:
    expected = move.expected
    return {
        "processor": partition.processor_id,
        "version": partition.version,
        "partition": partition.partition,
        "token": token,
        "expected_transaction": None if expected is None else expected.transaction_id,
        "expected_position": None if expected is None else expected.position,
        "transaction": move.to.transaction_id,
        "position": move.to.position,
        "highest": move.highest_position,
    }


def _row(place: Place, connection: Connection) -> dict[str, object]:
    checkpoint = place.checkpoint
    return {
        "processor_id": place.id.processor_id,
        "version": place.id.version,
        "partition_number": place.id.partition,
        "partitions": place.partitions,
        "reading_order": place.reading_order,
        "role": place.role.value,
        "status": place.status.value,
        "fencing_token": place.fencing_token,
        "last_processed_transaction_id": None if checkpoint is None else checkpoint.transaction_id,
        "last_processed_position": None if checkpoint is None else checkpoint.position,
        "highest_position": place.highest_position,
        "system_identifier": place.system_identifier,
        "timeline": place.timeline,
        "updated_at": database_time(connection.dialect),
    }


def _place(row: Row[Any]) -> Place:
    return Place(
        PartitionId(row.processor_id, row.version, row.partition_number),
        row.partitions,
        row.reading_order,
        Role(row.role),
        Status(row.status),
        row.reason,
        row.fencing_token,
        _checkpoint(row.last_processed_transaction_id, row.last_processed_position),
        row.highest_position,
        row.system_identifier,
        row.timeline,
        _checkpoint(row.rebuild_transaction_id, row.rebuild_position),
        row.updated_at,
    )


def _checkpoint(transaction_id: int | None, position: int | None) -> Checkpoint | None:
    return None if position is None else Checkpoint(transaction_id or 0, position)
