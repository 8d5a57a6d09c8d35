"""Six writers at once, whose transactions commit in another order than they wrote."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from holdfast.database.pools import writing
from tests.components.processes import wait_until
from tests.trigger.late_commits.items import Count, Items, Poller, reading

HOT_KEYS = (1, 2, 3)
"""Rows for which two writers fight."""

FIRST_FREE_KEY = 10
ROLLED_BACK = 0.08
LONGEST_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Size:
    """How long and how many rows the writers write at least, and how long they mostly pause before a commit."""

    seconds: float
    rows: int
    pause_seconds: float = 0.012

    def on(self, dialect_name: str) -> Size:
        """Return the size for a database; where only one can write at a time it takes fewer rows."""
        return replace(self, rows=self.rows // 3) if dialect_name == "sqlite" else self


class Writers:
    """Six threads with connections of their own, each with a job; every one of them sometimes rolls back."""

    def __init__(self, items: Items, poller: Poller, size: Size, seed: int) -> None:
        self._items = items
        self._poller = poller
        self._size = size
        self._seed = seed
        self._keys = count(FIRST_FREE_KEY)
        self._newest_key = FIRST_FREE_KEY
        self._stop = threading.Event()
        if not items.kind.insert_only:
            items.execute(items.insert(*HOT_KEYS))

    def run(self) -> None:
        """Write for a while; raise what a writer raised."""
        jobs = self._jobs()
        with ThreadPoolExecutor(max_workers=len(jobs)) as threads:
            writers = [threads.submit(self._write, job, self._seed + at) for at, job in enumerate(jobs)]
            self._stop.wait(self._size.seconds)
            wait_until(lambda: self._has_enough(writers), f"{self._size.rows} rows", LONGEST_SECONDS)
            self._stop.set()
            for writer in writers:
                writer.result(timeout=60)

    def _has_enough(self, writers: list[Future[None]]) -> bool:
        written = (self._newest_key - FIRST_FREE_KEY) * (1 - 2 * ROLLED_BACK)
        return written >= self._size.rows or any(writer.done() for writer in writers)

    def _jobs(self) -> list[Callable[[Connection, random.Random], None]]:
        if self._items.kind.insert_only:
            return [
                self._insert_one,
                self._insert_many,
                self._insert_one,
                self._insert_many,
                self._insert_twice,
                self._update_something,
            ]
        return [
            self._insert_one,
            self._insert_many,
            self._update_something,
            self._fight,
            self._fight,
            self._update_below_the_reader,
        ]

    def _write(self, job: Callable[[Connection, random.Random], None], seed: int) -> None:
        chance = random.Random(seed)
        idle_seconds = self._size.pause_seconds * (3 if self._is_single_writer else 0.3)
        with writing(self._items.engine) as connection:
            while not self._stop.is_set():
                self._one_transaction(connection, job, chance)
                self._stop.wait(chance.uniform(0, idle_seconds))

    def _one_transaction(
        self, connection: Connection, job: Callable[[Connection, random.Random], None], chance: random.Random
    ) -> None:
        try:
            job(connection, chance)
            self._pause(chance)
        except OperationalError:  # a deadlock, or a lock that took too long
            connection.rollback()
            return
        if chance.random() < ROLLED_BACK:
            connection.rollback()
        else:
            connection.commit()

    def _pause(self, chance: random.Random) -> None:
        """Let others overtake: mostly a little, now and then a lot."""
        if self._is_single_writer:
            self._stop.wait(chance.uniform(0, self._size.pause_seconds / 10))
        else:
            self._stop.wait(chance.uniform(0, self._size.pause_seconds * (10 if chance.random() < 0.05 else 1)))

    @property
    def _is_single_writer(self) -> bool:
        return self._items.engine.dialect.name == "sqlite"

    def _new_key(self) -> int:
        self._newest_key = key = next(self._keys)
        return key

    def _insert_one(self, connection: Connection, chance: random.Random) -> None:
        connection.execute(text(self._items.insert(self._new_key())))

    def _insert_many(self, connection: Connection, chance: random.Random) -> None:
        connection.execute(text(self._items.insert(*(self._new_key() for _ in range(chance.randint(2, 9))))))

    def _insert_twice(self, connection: Connection, chance: random.Random) -> None:
        self._insert_many(connection, chance)
        self._pause(chance)
        self._insert_one(connection, chance)

    def _update_something(self, connection: Connection, chance: random.Random) -> None:
        connection.execute(text(self._items.update(chance.randint(FIRST_FREE_KEY, self._newest_key))))

    def _fight(self, connection: Connection, chance: random.Random) -> None:
        """Whoever comes second waits with a time that is older than its commit."""
        connection.execute(text("SELECT 1"))
        self._pause(chance)
        connection.execute(text(self._items.update(chance.choice(HOT_KEYS))))

    def _update_below_the_reader(self, connection: Connection, chance: random.Random) -> None:
        """Change a row whose key is lower than the checkpoint's, at best within the checkpoint's own tick."""
        highest = max(FIRST_FREE_KEY, min(self._poller.last_key, self._newest_key) - 1)
        connection.execute(text(self._items.update(chance.randint(max(FIRST_FREE_KEY, highest - 20), highest))))


def write_and_read(items: Items, size: Size, seed: int, horizon: str = "auto") -> Count:
    """Let six writers write while a reader polls, let it read the rest, and count."""
    poller = items.poller(horizon, margin=0.5)
    chance = random.Random(seed)
    with reading(poller, lambda: chance.choice((1, 2, 5, 20, 100))):
        Writers(items, poller, size.on(items.engine.dialect.name), seed * 100).run()
    return items.drain(poller)
