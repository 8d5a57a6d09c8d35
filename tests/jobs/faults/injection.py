"""Faults of a crash run: each is put in, and healed after a while, by one loop that never waits for any of them."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer
from tests.components.preload import FailingDisk, WallClock
from tests.components.processes import PythonWorker, wait_until
from tests.components.proxy import FaultProxy
from tests.components.workspace import private_directory
from tests.jobs.faults.app import LEASE_SECONDS
from tests.jobs.faults.feeder import Feeder
from tests.jobs.faults.fleet import Fleet

MOST_FROZEN = 3
FARTHEST_JUMP_SECONDS = (
    10  # of the clock that everyone on a SQLite file shares; one of a server's clients jumps farther
)
_DAY_SECONDS = 86_400
_HOLDER = """
import sqlite3, sys, threading
connection = sqlite3.connect(sys.argv[1], timeout=120, isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
threading.Event().wait(float(sys.argv[2]))
connection.execute("ROLLBACK")
print("released", flush=True)
"""
_DISK_FAULTS = (
    ("posix/io/rw/pwrite", errno.ENOSPC),
    ("posix/io/rw/pwrite", errno.EIO),
    ("posix/io/sync/fdatasync", errno.EIO),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: how often it comes relative to others, and what puts it in (False: not possible just now)."""

    name: str
    weight: int
    inject: Callable[[], bool]


@dataclass(order=True)
class _Healing:
    due: float
    heal: Callable[[], bool] = field(compare=False)


class Injector:
    """Puts faults in, seeded, until there were enough of each kind."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.healed_at = 0.0
        self._healings: list[_Healing] = []

    def heal_after(self, seconds: float, heal: Callable[[], bool]) -> None:
        """Call ``heal`` in a while, again and again until it returns True."""
        self._healings.append(_Healing(time.monotonic() + seconds, heal))

    def run(self, kinds: Sequence[Kind], faults: int, progress: Callable[[], float] = lambda: 1.0) -> None:
        """Inject the faults, spread over the ``progress`` of the work from 0 to 1, then heal what is still broken."""
        deck = self._deck(kinds, faults)
        total = len(deck)
        pause = threading.Event()
        while deck:
            if total - len(deck) <= total * progress():
                self._play(deck)
            pause.wait(self.chance.uniform(0.02, 0.35))
            self._heal_due()
            self.fleet.replace_the_dead()
        wait_until(self._has_healed, "every fault to be healed", 120)
        self.healed_at = time.monotonic()

    def _play(self, deck: list[Kind]) -> None:
        """Inject the next fault, or put it off when it is not possible just now."""
        kind = deck.pop()
        if kind.inject():
            self.done[kind.name] += 1
        else:
            deck.insert(self.chance.randrange(len(deck) + 1), kind)

    def _deck(self, kinds: Sequence[Kind], faults: int) -> list[Kind]:
        total = sum(kind.weight for kind in kinds)
        deck = [kind for kind in kinds for _ in range(-(-faults * kind.weight // total))]
        self.chance.shuffle(deck)
        return deck

    def _heal_due(self) -> None:
        now = time.monotonic()
        for healing in [item for item in self._healings if item.due <= now]:
            if healing.heal():
                self._healings.remove(healing)

    def _has_healed(self) -> bool:
        self._heal_due()
        self.fleet.replace_the_dead()
        return not self._healings

    # Kinds for every database

    def kill(self) -> bool:
        worker = self.fleet.victim(self.chance)
        if worker is not None:
            worker.kill()
        return worker is not None

    def freeze(self) -> bool:
        """Stop a worker for several TTLs."""
        worker = self.fleet.victim(self.chance)
        if worker is None or len(self.fleet.frozen) >= MOST_FROZEN:
            return False
        self.fleet.freeze(worker)

        def thaw() -> bool:
            self.fleet.thaw(worker)
            return True

        self.heal_after(self.chance.uniform(1.5, 2.5) * LEASE_SECONDS, thaw)
        return True

    def jump_one_clock(self) -> bool:
        """Set the wall clock of one worker to any time within a day."""
        worker = self.fleet.victim(self.chance, lambda post: post.clock is not None)
        clock = None if worker is None else self.fleet.post_of(worker).clock
        if clock is not None:
            clock.jump_to(self.chance.randint(-_DAY_SECONDS, _DAY_SECONDS))
        return clock is not None


class ServerFaults:
    """What can happen to a server, and to the way there."""

    def __init__(self, injector: Injector, server: PostgresServer | MariadbServer, proxy: FaultProxy) -> None:
        self._injector = injector
        self._server = server
        self._proxy = proxy
        self._is_dark = False

    def cut(self) -> bool:
        self._proxy.cut()
        return True

    def darken(self) -> bool:
        """Let nothing through for longer than a lease."""
        if self._is_dark:
            return False
        self._is_dark = True
        self._proxy.blackhole()
        self._injector.heal_after(self._injector.chance.uniform(1.1, 1.8) * LEASE_SECONDS, self._lighten)
        return True

    def _lighten(self) -> bool:
        self._is_dark = False
        self._proxy.pass_through()
        return True

    def restart(self) -> bool:
        self._server.restart(immediate=True)
        return True

    def kinds(self, *, has_clocks: bool) -> list[Kind]:
        injector = self._injector
        kinds = [
            Kind("SIGKILL", 28, injector.kill),
            Kind("SIGSTOP", 20, injector.freeze),
            Kind("connection cut", 20, self.cut),
            Kind("blackhole", 12, self.darken),
            Kind("server restart", 6, self.restart),
        ]
        return [*kinds, Kind("clock jump", 14, injector.jump_one_clock)] if has_clocks else kinds


class FileFaults:
    """What can happen to a SQLite file, and to those who write it."""

    def __init__(
        self, injector: Injector, feeder: Feeder, path: Path, clock: WallClock | None, disk: FailingDisk | None
    ) -> None:
        self._injector = injector
        self._feeder = feeder
        self._path = path
        self._clock = clock
        self._disk = disk
        self._markers = private_directory("markers")
        self._offered: list[Path] = []
        self._holders: list[PythonWorker] = []

    def die_inside(self) -> bool:
        """Let a job kill its worker while it holds the write lock and has written."""
        marker = self._markers / str(len(self._offered))
        if not self._feeder.offer_death_inside(marker):
            return False
        self._offered.append(marker)
        return True

    def hold_lock(self) -> bool:
        """Let a foreign process hold the write lock for longer than a lease."""
        self._holders = [holder for holder in self._holders if holder.running]
        if self._holders:
            return False
        seconds = self._injector.chance.uniform(1.2, 2.0) * LEASE_SECONDS
        holder = PythonWorker("-c", _HOLDER, str(self._path), str(seconds))
        self._holders.append(holder)
        self._injector.heal_after(seconds, lambda: self._has_released(holder))
        return True

    def _has_released(self, holder: PythonWorker) -> bool:
        if holder.running:
            return False
        assert "released" in holder.output, holder.output
        return True

    def fill_disk(self) -> bool:
        """Let writes, or their way to the disk, fail for a worker."""
        worker = self._injector.fleet.victim(self._injector.chance)
        disk = self._disk
        if worker is None or disk is None:
            return False
        point, error = self._injector.chance.choice(_DISK_FAULTS)
        fails = disk.fail(worker.pid, point, error, self._injector.chance.choice((0.2, 0.5, 1.0)))
        self._injector.heal_after(
            self._injector.chance.uniform(0.3, 1.0) * LEASE_SECONDS,
            lambda: not worker.running or disk.heal(worker.pid, point),
        )
        return fails

    def jump_clock(self) -> bool:
        """Set the clock of the machine, which is everyone's."""
        if self._clock is None:
            return False
        self._clock.jump_to(self._injector.chance.randint(-FARTHEST_JUMP_SECONDS, FARTHEST_JUMP_SECONDS))
        return True

    def settle(self) -> None:
        """Set the clock right."""
        if self._clock is not None:
            self._clock.jump_to(0)

    def died_inside(self) -> int:
        """Return how many workers have died inside a write transaction, of as many as were to."""
        return sum(marker.exists() for marker in self._offered)

    def kinds(self) -> list[Kind]:
        injector = self._injector
        kinds = [
            Kind("SIGKILL", 22, injector.kill),
            Kind("SIGKILL inside a write transaction", 18, self.die_inside),
            Kind("SIGSTOP", 16, injector.freeze),
            Kind("foreign write lock", 12, self.hold_lock),
        ]
        if self._disk is not None:
            kinds.append(Kind("ENOSPC or EIO", 18, self.fill_disk))
        if self._clock is not None:
            kinds.append(Kind("clock jump", 14, self.jump_clock))
        return kinds
