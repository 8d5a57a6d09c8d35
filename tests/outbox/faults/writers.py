"""Writers of a crash run: they commit out of order, roll back, or wait, and remember what became of each message.

A COMMIT whose answer was lost is unsure: whether its message is in the outbox at the end decides it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from holdfast import Holdfast
from holdfast.outbox.message import NewMessage
from tests.outbox.faults.account import Ends

WRITERS = 6
_ORDER = text("INSERT INTO orders (message_id) VALUES (:message_id)")
_LONGEST_PAUSE_SECONDS = 0.3
_LONGEST_OPEN_SECONDS = 0.5
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """A transaction to be: what it appends for good, what it takes back by a savepoint, and how it ends."""

    kept: tuple[str, ...]
    taken_back: tuple[str, ...] = ()
    open_seconds: float = 0.0
    commits: bool = True


@dataclass
class Writer:
    """One thread's writing."""

    hf: Holdfast
    number: int
    chance: random.Random
    committed: set[str] = field(default_factory=set)
    undone: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    _count: int = 0

    def keep_writing(self, stop: threading.Event, resting: threading.Event) -> None:
        while not stop.wait(self.chance.uniform(0, _LONGEST_PAUSE_SECONDS)):
            if not resting.is_set():
                self.write(self._plan(), stop)

    def write(self, plan: Plan, stop: threading.Event) -> None:
        """Carry a plan out as far as the server lets it, and note how it ended."""
        self.undone.update(plan.taken_back)
        is_committing = False
        try:
            with self.hf.database.connect() as connection, connection.begin() as transaction:
                self._append(connection, plan)
                stop.wait(plan.open_seconds)
                if plan.commits:
                    is_committing = True
                    transaction.commit()
                else:
                    transaction.rollback()
        except (SQLAlchemyError, self.hf.database.dialect.loaded_dbapi.Error):
            (self.unsure if is_committing else self.undone).update(plan.kept)
        else:
            (self.committed if plan.commits else self.undone).update(plan.kept)

    def _append(self, connection: Connection, plan: Plan) -> None:
        first, *others = plan.kept
        self._append_to(connection, [first])
        if plan.taken_back:
            savepoint = connection.begin_nested()
            self._append_to(connection, plan.taken_back)
            savepoint.rollback()
        if others:
            self._append_to(connection, others)

    def _append_to(self, connection: Connection, names: Sequence[str]) -> None:
        connection.execute(_ORDER, [{"message_id": name} for name in names])
        messages = [NewMessage(type="Placed", data={"name": name}, message_id=name) for name in names]
        self.hf.outbox.append_many(connection, messages)

    def _plan(self) -> Plan:
        open_seconds = self.chance.uniform(0, _LONGEST_OPEN_SECONDS)
        plans = {
            "at once": lambda: Plan(self._names(1)),
            "slowly": lambda: Plan(self._names(1), open_seconds=open_seconds),
            "several": lambda: Plan(self._names(self.chance.randint(2, 6)), open_seconds=open_seconds / 4),
            "roll back": lambda: Plan(self._names(2), open_seconds=open_seconds / 2, commits=False),
            "savepoint": lambda: Plan(self._names(2), self._names(2), open_seconds=open_seconds / 4),
        }
        return plans[self.chance.choices(list(plans), [30, 30, 15, 15, 10])[0]]()

    def _names(self, count: int) -> tuple[str, ...]:
        first, self._count = self._count, self._count + count
        return tuple(f"{self.number}-{number}" for number in range(first, self._count))


class Writers:
    """Six writers in threads, spread over ways to the same database."""

    def __init__(self, urls: Sequence[str], seed: int) -> None:
        self._applications = [Holdfast(url, app_name="writers") for url in urls]
        self._writers = [
            Writer(self._applications[number % len(urls)], number, random.Random(seed + number))
            for number in range(WRITERS)
        ]
        self._resting = threading.Event()

    @property
    def committed_count(self) -> int:
        """Return how many messages surely committed so far."""
        return sum(len(writer.committed) for writer in self._writers)

    @property
    def unsure_count(self) -> int:
        """Return how many messages were in transactions whose COMMIT was not answered."""
        return sum(len(writer.unsure) for writer in self._writers)

    @contextmanager
    def writing(self, should_rest: Callable[[], bool]) -> Iterator[None]:
        """Write beside the block, except while ``should_rest``."""
        stop = threading.Event()
        threads = [threading.Thread(target=writer.keep_writing, args=(stop, self._resting)) for writer in self._writers]
        threads.append(threading.Thread(target=self._watch, args=(stop, should_rest)))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def _watch(self, stop: threading.Event, should_rest: Callable[[], bool]) -> None:
        while not stop.wait(_LOOK_SECONDS):
            if should_rest():
                self._resting.set()
            else:
                self._resting.clear()

    @property
    def ends(self) -> Ends:
        """Return what the writers know."""
        return Ends(
            frozenset().union(*(writer.committed for writer in self._writers)),
            frozenset().union(*(writer.undone for writer in self._writers)),
            frozenset().union(*(writer.unsure for writer in self._writers)),
        )

    def close(self) -> None:
        for application in self._applications:
            with suppress(SQLAlchemyError):
                application._provider.dispose_all()
