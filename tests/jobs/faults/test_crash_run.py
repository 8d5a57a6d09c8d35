"""The queue under crashes on every database: nothing is lost, no transactional effect doubled, all of it accounted for.

Eight worker processes do a mix of jobs while they are killed, stopped for several leases, cut off and put to other
times, and while the server crashes, or on SQLite the disk fails and strangers hold the write lock. The short size runs
with every test; the full one (9,000 jobs, 300 faults) with ``make prove``. Each prints its account.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.components import availability
from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer
from tests.components.preload import FailingDisk, WallClock, find_faketime, find_fiu
from tests.components.processes import wait_until
from tests.components.proxy import FaultProxy
from tests.components.workspace import private_directory
from tests.jobs.faults.account import Account
from tests.jobs.faults.app import LEASE_SECONDS, NO_FENCE
from tests.jobs.faults.feeder import Feeder
from tests.jobs.faults.fleet import Fleet, Post
from tests.jobs.faults.injection import FARTHEST_JUMP_SECONDS, FileFaults, Injector, Kind, ServerFaults

WORKERS = 8
SEED = int(os.environ.get("FAULT_SEED", "20261115"))
DRAIN_SECONDS = LEASE_SECONDS + FARTHEST_JUMP_SECONDS + 60.0  # and it is a bound, not a target


@dataclass(frozen=True, slots=True)
class Size:
    """How long a run is."""

    jobs: int
    faults: int
    poison: int


SHORT = Size(jobs=260, faults=8, poison=1)
FULL = Size(jobs=9_000, faults=300, poison=10)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    account: Account
    problems: list[str]
    surprises: list[str]
    faults: Counter[str]
    drain_seconds: float

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.faults.most_common())
        return "\n".join(
            [
                f"{WORKERS} workers, {self.faults.total()} faults: {kinds}",
                str(self.account),
                f"drained {self.drain_seconds:.1f} s after the last fault was healed",
            ]
        )


@contextmanager
def _feeding(feeder: Feeder, jobs: int) -> Iterator[None]:
    """Offer jobs beside the block, and after it until there were enough."""
    stop = threading.Event()
    thread = threading.Thread(target=feeder.keep_feeding, args=(jobs, stop))
    thread.start()
    try:
        yield
    except BaseException:
        stop.set()
        raise
    finally:
        thread.join()


def _drain(feeder: Feeder, fleet: Fleet, healed_at: float) -> float:
    """Wait until every job has ended; return how long that took since the last fault was healed."""

    def is_empty() -> bool:
        fleet.replace_the_dead()
        return feeder.open_jobs() == 0

    feeder.cancel_waiting()
    patience = max(0.0, healed_at + DRAIN_SECONDS - time.monotonic())
    wait_until(is_empty, f"every job to end within {DRAIN_SECONDS:g} s of the last fault", patience)
    return time.monotonic() - healed_at


def _inject(feeder: Feeder, injector: Injector, kinds: Sequence[Kind], size: Size) -> None:
    """Feed and inject, the faults spread over the jobs."""
    feeder.poison(size.poison)
    with _feeding(feeder, size.jobs):
        injector.run(kinds, size.faults, lambda: feeder.accepted_count / size.jobs)


def _outcome(feeder: Feeder, fleet: Fleet, injector: Injector, drain_seconds: float) -> Outcome:
    accepted, books = feeder.close_books()
    account = books.account(accepted, fleet.stale_rejected)
    return Outcome(account, books.problems(accepted), fleet.surprises, injector.done, drain_seconds)


def run_on_server(server: PostgresServer | MariadbServer, size: Size) -> Outcome:
    """Half of the workers are behind a proxy that can cut them off; the other half have clocks that jump."""
    server.start()
    database = server.create_database()
    url = server.url(database)
    library = find_faketime() if availability.has("faketime") else None
    feeder = Feeder(url, SEED)
    try:
        with FaultProxy(server.port) as proxy:
            posts = [Post(proxy.redirect(url)) for _ in range(WORKERS // 2)]
            posts += [_post_with_clock(url, library) for _ in range(WORKERS // 2)]
            fleet = Fleet(posts)
            injector = Injector(fleet, SEED)
            try:
                kinds = ServerFaults(injector, server, proxy).kinds(has_clocks=library is not None)
                _inject(feeder, injector, kinds, size)
                drained = _drain(feeder, fleet, injector.healed_at)
            finally:
                fleet.stop()
        return _outcome(feeder, fleet, injector, drained)
    finally:
        feeder.close()
        server.start()
        server.terminate_sessions(database)
        server.drop_database(database)


def _post_with_clock(url: str, library: Path | None) -> Post:
    if library is None:
        return Post(url)
    clock = WallClock()
    return Post(url, [library], clock.environment, clock)


def run_on_file(size: Size) -> Outcome:
    """Everyone is on one machine: they share its clock and its disk, and each can be told that the disk fails."""
    path = private_directory("queue") / "queue.db"
    url = f"sqlite:///{path}"
    clock = WallClock() if availability.has("faketime") else None
    disk = FailingDisk() if availability.has("libfiu") else None
    libraries = [*((find_faketime(),) if clock else ()), *((find_fiu() or ()) if disk else ())]
    environment = {**(clock.environment if clock else {}), **(disk.environment if disk else {})}
    preload = [library for library in libraries if library is not None]
    feeder = Feeder(url, SEED)
    try:
        fleet = Fleet([Post(url, preload, environment, clock, disk) for _ in range(WORKERS)])
        injector = Injector(fleet, SEED)
        faults = FileFaults(injector, feeder, path, clock, disk)
        try:
            _inject(feeder, injector, faults.kinds(), size)
            faults.settle()
            drained = _drain(feeder, fleet, injector.healed_at)
        finally:
            fleet.stop()
        assert faults.died_inside() == injector.done["SIGKILL inside a write transaction"]
        return _outcome(feeder, fleet, injector, drained)
    finally:
        feeder.close()


def check(outcome: Outcome, size: Size) -> None:
    """Every promise holds, and the run was as hard as it was meant to be."""
    print(f"\n{outcome}")
    for surprise in outcome.surprises:
        print(f"--- a worker's last words:\n{surprise}")
    account = outcome.account
    assert outcome.problems == []
    assert account.lost == 0
    assert account.duplicated_in_transactions == 0
    assert account.accepted == account.done + account.dead + account.cancelled
    assert account.accepted >= size.jobs
    assert account.dead > 0
    assert account.cancelled > 0
    assert outcome.faults.total() >= size.faults
    assert outcome.surprises == []


@pytest.mark.component("postgres18")
def test_a_short_crash_run_on_postgresql(postgres_server: PostgresServer) -> None:
    check(run_on_server(postgres_server, SHORT), SHORT)


@pytest.mark.component("mariadb")
def test_a_short_crash_run_on_mariadb(mariadb_server: MariadbServer) -> None:
    check(run_on_server(mariadb_server, SHORT), SHORT)


def test_a_short_crash_run_on_sqlite() -> None:
    check(run_on_file(SHORT), SHORT)


@pytest.mark.prove
def test_without_the_fence_the_account_finds_stale_commits(postgres_url: str) -> None:
    """Planted bug: workers that are stopped past their lease and go on can commit, and the account must tell."""
    feeder = Feeder(postgres_url, SEED)
    fleet = Fleet([Post(postgres_url, environment={"PLANTED_BUG": NO_FENCE}) for _ in range(4)])
    injector = Injector(fleet, SEED)
    try:
        feeder.offer("slow_together", ["slow"] * 60)
        injector.run([Kind("SIGSTOP", 1, injector.freeze)], 9)
        _drain(feeder, fleet, injector.healed_at)
    finally:
        fleet.stop()
    accepted, books = feeder.close_books()
    feeder.close()
    found = [problem for problem in books.problems(accepted) if "in transactions, completed by attempt" in problem]
    print(*found, sep="\n")
    assert found


@pytest.mark.prove
@pytest.mark.component("postgres18")
@pytest.mark.component("faketime")
def test_the_full_crash_run_on_postgresql(postgres_server: PostgresServer) -> None:
    outcome = run_on_server(postgres_server, FULL)
    check(outcome, FULL)
    assert len(outcome.faults) >= 6


@pytest.mark.prove
@pytest.mark.component("mariadb")
@pytest.mark.component("faketime")
def test_the_full_crash_run_on_mariadb(mariadb_server: MariadbServer) -> None:
    outcome = run_on_server(mariadb_server, FULL)
    check(outcome, FULL)
    assert len(outcome.faults) >= 6


@pytest.mark.prove
@pytest.mark.component("faketime")
@pytest.mark.component("libfiu")
def test_the_full_crash_run_on_sqlite() -> None:
    outcome = run_on_file(FULL)
    check(outcome, FULL)
    assert len(outcome.faults) >= 6
