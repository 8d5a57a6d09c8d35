"""Parked keys: behind a message that failed for good wait the later ones of its key, all dead letters, in their order.

A row stands for a message that waits, and rows are numbered in the order of the messages. The first row of a key is
what the others wait for: it failed and its letter is Pending, or it was put back. When it is delivered, or a person has
settled its letter otherwise, the next one is put back by itself. Only whoever holds the partition's lease adds rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, FromClause, and_, delete, exists, func, insert, select, update
from sqlalchemy.engine import Connection, Engine

from ..records.database import reading
from .message import Message
from .schema import parked_table, redeliveries_table
from .store import PartitionId

_rows = parked_table.c
_redeliveries = redeliveries_table.c


def has_parked(engine: Engine, partition: PartitionId) -> bool:
    """Return whether any key of a partition is parked."""
    with reading(engine) as connection:
        return connection.execute(select(_rows.id).where(_of(partition)).limit(1)).one_or_none() is not None


def parked_keys(engine: Engine, partition: PartitionId, messages: Iterable[Message]) -> frozenset[str]:
    """Return which keys of some messages are parked."""
    digests = {_digest(message.key): message.key for message in messages if message.key is not None}
    wanted = and_(_of(partition), _rows.key_digest.in_(digests))
    with reading(engine) as connection:
        found = connection.execute(select(_rows.key_digest).where(wanted).distinct()).scalars()
        return frozenset(digests[digest] for digest in found)


def park(connection: Connection, partition: PartitionId, message: Message, letter_key: str, *, waits: bool) -> None:
    """Add a message to the end of its key: one that failed, or one that waits."""
    assert message.key is not None
    values = {
        "processor_id": partition.processor_id,
        "version": partition.version,
        "partition_number": partition.partition,
        "key_digest": _digest(message.key),
        "letter_key": letter_key,
        "is_waiting": waits,
    }
    connection.execute(insert(parked_table).values(values))


@dataclass(frozen=True, slots=True)
class First:
    """The first row of a key, when it is not put back: what the others wait for."""

    id: int
    letter_key: str
    is_waiting: bool
    """It did not fail itself: what it waited for is gone."""


def first_of_each_key(connection: Connection, partition: PartitionId) -> list[First]:
    """Return the first row of each key whose first row is not put back."""
    firsts = select(func.min(_rows.id)).where(_of(partition)).group_by(_rows.key_digest)
    query = select(_rows.id, _rows.letter_key, _rows.is_waiting).where(
        _rows.id.in_(firsts), _rows.redelivery_id.is_(None)
    )
    return [First(row.id, row.letter_key, row.is_waiting) for row in connection.execute(query.order_by(_rows.id))]


def forget_rows(connection: Connection, ids: Collection[int]) -> None:
    """Remove rows whose letters were settled; not those that were put back meanwhile, which settles a letter, too."""
    connection.execute(delete(parked_table).where(_rows.id.in_(ids), _rows.redelivery_id.is_(None)))


def forget_all(connection: Connection, processor_id: str, version: int | None = None) -> None:
    """Remove what is parked of a processor, or of one version of it."""
    of_version = [] if version is None else [_rows.version == version]
    connection.execute(delete(parked_table).where(_rows.processor_id == processor_id, *of_version))


def note_put_back(connection: Connection, partition: PartitionId, letter_key: str, redelivery_id: int) -> None:
    """Note that a letter was put back; nothing happens when it is none of a parked key."""
    wanted = and_(_of(partition), _rows.letter_key == letter_key)
    connection.execute(update(parked_table).where(wanted).values(redelivery_id=redelivery_id))


def note_delivered(connection: Connection, redelivery_id: int) -> None:
    """Let those behind a message go on that was put back and is done."""
    connection.execute(delete(parked_table).where(_rows.redelivery_id == redelivery_id))


def note_failed_again(connection: Connection, redelivery_id: int, letter_key: str) -> None:
    """Have those of its key wait behind a message that was put back and failed again."""
    values = {"letter_key": letter_key, "is_waiting": False, "redelivery_id": None}
    connection.execute(update(parked_table).where(_rows.redelivery_id == redelivery_id).values(values))


def note_waits_again(connection: Connection, redelivery_id: int, letter_key: str) -> None:
    """Note that a message which was put back waits again, as the dead letter that it has now."""
    values = {"letter_key": letter_key, "is_waiting": True, "redelivery_id": None}
    connection.execute(update(parked_table).where(_rows.redelivery_id == redelivery_id).values(values))


def put_back_behind(connection: Connection, redelivery_id: int) -> list[int]:
    """Return what was put back of the same key behind a message that was put back, in order."""
    own, later = parked_table.alias(), parked_table.alias()
    is_behind = and_(_of_one_key(own, later), later.c.id > own.c.id, later.c.redelivery_id.is_not(None))
    query = select(later.c.redelivery_id).where(own.c.redelivery_id == redelivery_id, is_behind)
    return list(connection.execute(query.order_by(later.c.id)).scalars())


def is_first_of_its_key() -> ColumnElement[bool]:
    """Return the condition for a redelivery that waits for no other message of its key."""
    own, earlier = parked_table.alias(), parked_table.alias()
    is_behind = and_(own.c.redelivery_id == _redeliveries.id, _of_one_key(own, earlier), earlier.c.id < own.c.id)
    return ~exists().where(is_behind)


def _of_one_key(one: FromClause, other: FromClause) -> ColumnElement[bool]:
    names = ("processor_id", "version", "partition_number", "key_digest")
    return and_(*(one.c[name] == other.c[name] for name in names))


def _digest(key: str) -> str:
    """Return what stands for a key: equal for equal bytes only, whatever the database takes for equal."""
    return hashlib.sha256(key.encode()).hexdigest()


def _of(partition: PartitionId) -> ColumnElement[bool]:
    return and_(
        _rows.processor_id == partition.processor_id,
        _rows.version == partition.version,
        _rows.partition_number == partition.partition,
    )
