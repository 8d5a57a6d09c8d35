"""Reading the outbox in its order, and only as far as nothing can appear any more."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection, Engine

from ..core.clock import SystemClock
from ..core.errors import ConfigurationError, Unavailable
from ..database.pools import autocommit
from ..database.postgres_writers import WriterBarrier
from ..database.statements import family
from ..records.database import reading, translated
from .message import Checkpoint, Message
from .readable import ReadMessages, read_messages
from .statements import named

READING_ORDERS = ("transaction", "position")
_LOOK_AHEAD = 10
_MOST_LOOKED_AT = 20_000
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_BEFORE_THE_MESSAGE = 4  # how far was looked


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages are wanted: of these types (None: all), with keys of this partition."""

    types: tuple[str, ...] | None = None
    partitions: int = 1
    partition: int = 0

    @property
    def is_everything(self) -> bool:
        """Return whether nothing is left out."""
        return self.types is None and self.partitions == 1


@dataclass(frozen=True, slots=True)
class Batch:
    """What was read: the wanted messages, and the place that is reached when they are done.

    ``reached`` is None when there is nothing new. It may be further than the last message: what lies between is not
    wanted. ``is_full`` says that there is probably more to read at once.
    """

    messages: list[Message]
    reached: Checkpoint | None
    highest_position: int
    is_full: bool


NOTHING = Batch([], None, 0, False)


class OutboxReader:
    """Reads for one partition of one processor.

    Args:
        engine: where the outbox is.
        selection: what is wanted.
        order: ``transaction`` for the order (transaction, position); ``position`` for the order of positions alone.
    """

    def __init__(self, engine: Engine, selection: Selection, order: str = "transaction") -> None:
        if order not in READING_ORDERS:
            raise ConfigurationError(f"order={order!r} is not known: use 'transaction' or 'position'.")
        self._engine = engine
        self._dialect = family(engine.dialect.name)
        self._selection = selection
        self._by_position = order == "position" and self._dialect == "postgresql"
        self._barrier = WriterBarrier("holdfast_outbox", "position") if self._by_position else None

    def read(self, after: Checkpoint | None, batch_size: int) -> Batch:
        """Return the next messages behind a checkpoint (None: from the beginning)."""
        with translated(self._engine, writes=False), autocommit(self._engine) as connection:
            if self._selection.is_everything and not self._by_position:
                return self._read_all(connection, after, batch_size)
            return self._read_some(connection, after, batch_size)

    def end(self) -> Checkpoint | None:
        """Return the last message that can be read now, None when there is none."""
        if self._barrier is not None:
            return self._end_by_position(self._barrier)
        with translated(self._engine, writes=False), autocommit(self._engine) as connection:
            row = connection.exec_driver_sql(named.statement(self._dialect, "end")).one_or_none()
        return None if row is None else self._place(row[0], row[1])

    def _end_by_position(self, barrier: WriterBarrier) -> Checkpoint | None:
        """Wait for the writers that are at work: what is below the first bound is all that is readable now."""
        pause, clock = threading.Event(), SystemClock()
        deadline = clock.monotonic() + _PATIENCE_SECONDS
        while True:
            with translated(self._engine, writes=False), autocommit(self._engine) as connection:
                reading = barrier.advance(connection)
            if isinstance(reading.bound, int):
                return Checkpoint(0, reading.bound - 1)
            if not reading.waiting:
                return None
            if clock.monotonic() >= deadline:
                raise Unavailable(
                    "The end of the outbox is not known while transactions that write to it are open: wait for "
                    f"{'; '.join(reading.held_back_by) or 'them'}, and try again."
                )
            clock.wait(pause, _PAUSE_SECONDS)

    def in_order(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint as this order has it: without a transaction where it goes by positions alone."""
        has_ids = self._dialect == "postgresql" and not self._by_position
        return checkpoint if has_ids else replace(checkpoint, transaction_id=0)

    def last(self, connection: Connection | None = None) -> Checkpoint | None:
        """Return the last message that is committed now, whether or not it can be read yet.

        Who has a connection passes it, here and below: to ask the pool for a second one could be to wait for oneself.
        """
        return self._found("last_by_position" if self._by_position else "last", connection)

    def first(self, connection: Connection | None = None) -> Checkpoint | None:
        """Return the first message that is kept, None when there is none."""
        return self._found("first_by_position" if self._by_position else "first", connection)

    def _found(self, name: str, connection: Connection | None) -> Checkpoint | None:
        with reading(self._engine, connection) as open_connection:
            row = open_connection.exec_driver_sql(named.statement(self._dialect, name)).one_or_none()
        return None if row is None or row[1] is None else self._place(row[0], row[1])

    def _read_all(self, connection: Connection, after: Checkpoint | None, batch_size: int) -> Batch:
        values = {**_behind(after), "batch_size": batch_size}
        sql = named.statement(self._dialect, "read")
        found = read_messages(lambda: connection.exec_driver_sql(sql, values))
        if not found.messages:
            return NOTHING
        highest = max(message.position for message in found.messages)
        is_full = found.are_cut or len(found.messages) == batch_size
        return Batch(found.messages, found.messages[-1].checkpoint, highest, is_full)

    def _read_some(self, connection: Connection, after: Checkpoint | None, batch_size: int) -> Batch:
        look_at = min(_MOST_LOOKED_AT, batch_size * _LOOK_AHEAD)
        values: dict[str, object] = {
            **_behind(after),
            "batch_size": batch_size,
            "look_at": look_at,
            "partitions": self._selection.partitions,
            "partition": self._selection.partition,
            "types": self._types(),
        }
        name = "read_some"
        if self._barrier is not None:
            name, bound = "read_by_position", self._barrier.advance(connection).bound
            if bound is None:
                return NOTHING
            values["bound"] = bound
        sql = named.statement(self._dialect, name)
        found = read_messages(lambda: connection.exec_driver_sql(sql, values), _BEFORE_THE_MESSAGE)
        return self._reached(found, batch_size, look_at)

    def _reached(self, found: ReadMessages, batch_size: int, look_at: int) -> Batch:
        if found.head is None:
            return NOTHING
        transaction_id, position, highest, looked_at = found.head[:_BEFORE_THE_MESSAGE]
        messages = found.messages
        if len(messages) < batch_size and not found.are_cut:
            return Batch(messages, self._place(transaction_id, position), highest, is_full=looked_at == look_at)
        last = messages[-1]
        return Batch(messages, self._place(last.transaction_id, last.position), highest, is_full=True)

    def behind(self, after: Checkpoint | None, most: int = 100_000) -> int:
        """Return how many messages, wanted or not, lie behind a checkpoint, counted up to ``most``."""
        name = "behind_by_position" if self._by_position else "behind"
        with translated(self._engine, writes=False), autocommit(self._engine) as connection:
            values = {**_behind(after), "most": most}
            return int(connection.exec_driver_sql(named.statement(self._dialect, name), values).scalar_one())

    def _place(self, transaction_id: object, position: int) -> Checkpoint:
        return Checkpoint(0 if self._by_position else int(str(transaction_id)), position)

    def _types(self) -> object:
        types = self._selection.types
        if types is None:
            return None
        return list(types) if self._dialect == "postgresql" else json.dumps(types)


def _behind(after: Checkpoint | None) -> dict[str, object]:
    if after is None:
        return {"after_transaction": "0", "after_position": -(2**62)}
    return {"after_transaction": str(after.transaction_id), "after_position": after.position}
