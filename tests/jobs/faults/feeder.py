"""Enqueues the mix of jobs of a crash run, and remembers which of them were accepted."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from holdfast import Holdfast
from holdfast.core.errors import DbError
from tests.components.processes import wait_until
from tests.jobs.faults.account import Accepted, Books
from tests.jobs.faults.app import EFFECTS_TABLE, declare

# Of a thousand jobs.
MIX = {
    "own": 330,
    "own_async": 150,
    "together": 250,
    "together_async": 150,
    "flaky": 50,
    "doomed": 20,
    "snoozing": 30,
    "slow": 4,
    "slow_together": 3,
    "waiting": 13,
}
_BATCH = 25
_BATCH_SECONDS = 0.1
_MOST_OPEN = 250
_NOTES = ("plain", "größer ☃ 🦫", "quotes ' \" \\ and %s %(n)s :n", "line\nbreak\ttab", '{"json": [null, 1.5]}')


class Feeder:
    """A fresh database with its jobs. Accepted is what was answered, or is found there after all."""

    def __init__(self, url: str, seed: int) -> None:
        self.hf = Holdfast(url, app_name="faults")
        self.hf.migrate()
        with self.hf.database.begin() as connection:
            connection.execute(text(EFFECTS_TABLE))
        self._jobs = declare(self.hf)
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._offered: dict[int, Accepted] = {}
        self._answered: set[int] = set()

    @property
    def accepted_count(self) -> int:
        """Return how many were answered so far."""
        return len(self._answered)

    def feed(self, count: int) -> None:
        """Offer jobs of the mix."""
        kinds = defaultdict(list)
        for kind in self._chance.choices(list(MIX), list(MIX.values()), k=count):
            kinds[kind].append(self._chance.choice(_NOTES))
        for kind, notes in kinds.items():
            self.offer(kind, notes)

    def offer(self, kind: str, notes: Sequence[str]) -> bool:
        """Enqueue jobs of one kind, in one transaction; return whether that was answered."""
        job = self._jobs[kind]
        with self._lock:
            first = len(self._offered)
            arguments = {first + place: {"n": first + place, "note": note} for place, note in enumerate(notes)}
            for n, given in arguments.items():
                error = f"ValueError: {given['note']}"
                self._offered[n] = Accepted(kind, job.codec.encode(given), error)
        bound = job.options(delay_seconds=3600) if kind == "waiting" else job.options()
        try:
            bound.enqueue_many(arguments.values())
        except (DbError, SQLAlchemyError):
            return False
        self._answered.update(arguments)
        return True

    def keep_feeding(self, target: int, stop: threading.Event) -> None:
        """Offer batches until enough were accepted, waiting while the workers do not keep up."""
        while len(self._answered) < target and not stop.wait(_BATCH_SECONDS):
            if self.open_jobs() < _MOST_OPEN:
                self.feed(_BATCH)

    def poison(self, count: int) -> None:
        """Offer jobs that kill every worker that takes them, until all are accepted."""
        wait_until(lambda: self.offer("poison", ["poison"] * count), "poison to be accepted")

    def offer_death_inside(self, marker: Path) -> bool:
        """Enqueue a job that kills its worker inside a write transaction once, and leaves ``marker`` then."""
        return self.offer("dies_inside", [str(marker)])

    def cancel_waiting(self) -> None:
        """Cancel what is due in an hour."""
        wait_until(self._has_cancelled, "the cancelling of jobs that wait", 120)

    def _has_cancelled(self) -> bool:
        try:
            with self.hf.database.connect() as connection:
                found = text("SELECT id FROM holdfast_jobs WHERE operation = 'waiting' AND status = 'scheduled'")
                ids = list(connection.execute(found).scalars())
            if ids:
                self.hf.jobs.cancel(*ids, reason="nobody waits any more")
        except (DbError, SQLAlchemyError):
            return False
        return not ids

    def open_jobs(self) -> int:
        """Return how many jobs are still to be done; the database may be too busy to tell, which counts as one."""
        try:
            with self.hf.database.connect() as connection:
                count = text(
                    "SELECT count(*) FROM holdfast_jobs WHERE status IN ('ready', 'scheduled', 'suspect', 'running') "
                    "AND operation <> 'waiting'"
                )
                return int(connection.execute(count).scalar_one())
        except SQLAlchemyError:
            return 1

    def close_books(self) -> tuple[dict[int, Accepted], Books]:
        """Return the accepted jobs and what the database says about them."""
        books = Books(self.hf.database)
        accepted = self._answered | (books.numbers & self._offered.keys())
        return {n: self._offered[n] for n in sorted(accepted)}, books

    def close(self) -> None:
        self.hf._provider.dispose_all()
