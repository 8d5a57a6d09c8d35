"""Processors under crashes: effects exactly once for every committed message, none for rolled-back ones, in order.

Four instances of one application, two of them behind a proxy, all with the same processors, deliver what six writers
append who commit out of order, roll back or wait, while instances are killed and stopped for more than a lease,
connections are cut or silent, sessions ended, and the server crashes. One processor is exact, one is not transactional
and may deliver again, and on PostgreSQL one reads in the order of positions [OUTBOX-2] [OUTBOX-3] [OUTBOX-4]. The short
size runs with every test; the full one (at least 200 faults) with ``make prove``. Each prints its account.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy.exc import SQLAlchemyError

from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer
from tests.components.processes import wait_until
from tests.components.proxy import FaultProxy
from tests.jobs.faults.fleet import Post
from tests.jobs.faults.injection import Injector, Kind, ServerFaults
from tests.outbox.faults.account import Account, Books
from tests.outbox.faults.app import BY_POSITION, EXACT, LEASE_UNWATCHED, NO_ROLLBACK, REPEATED
from tests.outbox.faults.instances import Instances, prepared, undelivered
from tests.outbox.faults.writers import WRITERS, Writers
from tests.outbox.shops import Shop

INSTANCES = 4
SEED = int(os.environ.get("FAULT_SEED", "20261115"))
MOST_BEHIND = 150
DRAIN_SECONDS = 90.0  # a bound, not a target


@dataclass(frozen=True, slots=True)
class Size:
    """How long a run is."""

    messages: int
    faults: int


SHORT = Size(messages=220, faults=10)
SMALL = Size(messages=250, faults=12)
FULL = Size(messages=9_000, faults=220)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    accounts: dict[str, Account]
    problems: list[str]
    surprises: list[str]
    faults: Counter[str]
    unsure: int
    drain_seconds: float

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.faults.most_common())
        return "\n".join(
            [
                f"{INSTANCES} instances, {WRITERS} writers, {self.faults.total()} faults: {kinds}",
                *(f"{processor_id}:\n{account}" for processor_id, account in self.accounts.items()),
                f"{self.unsure} messages were in transactions whose COMMIT was not answered",
                f"drained {self.drain_seconds:.1f} s after the last fault was healed",
            ]
        )


class Run:
    """A database, the writers and the instances on it, and what is done to them."""

    def __init__(
        self,
        server: PostgresServer | MariadbServer,
        proxy: FaultProxy,
        database: str,
        processors: Sequence[str],
        planted_bug: str = "",
    ) -> None:
        url = server.url(database)
        self.server = server
        self.database = database
        self.processors = processors
        self.shop: Shop = prepared(url)
        self.writers = Writers([url, proxy.redirect(url)], SEED)
        environment = {"WORK_SECONDS": "0.15", "HESITATE_SECONDS": "0.1", "PLANTED_BUG": planted_bug}
        urls = [proxy.redirect(url) if number % 2 else url for number in range(INSTANCES)]
        posts = [Post(each, environment=environment) for each in urls]
        self.instances = Instances(posts, processors, self.shop)
        self.injector = Injector(self.instances, SEED)
        self.faults = ServerFaults(self.injector, server, proxy)

    def kinds(self) -> list[Kind]:
        return [
            Kind("SIGKILL", 35, self.injector.kill),
            Kind("SIGSTOP", 25, self.injector.freeze),
            Kind("connection cut", 18, self.faults.cut),
            Kind("ended sessions", 10, self.end_sessions),
            Kind("blackhole", 6, self.faults.darken),
            Kind("server restart", 6, self.faults.restart),
        ]

    def end_sessions(self) -> bool:
        return self.server.terminate_sessions(self.database) > 0

    def inject(self, kinds: Sequence[Kind], size: Size) -> float:
        """Inject the faults, spread over what is written, and wait for the rest to be delivered; return how long."""
        with self.writers.writing(self.is_far_behind):
            self.injector.run(kinds, size.faults, lambda: self.writers.committed_count / size.messages)
            wait_until(lambda: self.writers.committed_count >= size.messages, "enough messages to be committed")
        try:
            wait_until(self.has_delivered_all, "every committed message to be delivered", DRAIN_SECONDS)
        except TimeoutError:
            print(*(f"--- an instance's last words:\n{worker.output[-2000:]}" for worker in self.instances.workers))
            raise
        return time.monotonic() - self.injector.healed_at

    def is_far_behind(self) -> bool:
        """Return whether writers should rest, so that a run shows recovery and not how long a backlog takes."""
        return self.behind() > MOST_BEHIND

    def has_delivered_all(self) -> bool:
        self.instances.replace_the_dead()
        return self.behind() == 0

    def behind(self) -> int:
        """Return how many messages the slowest processor has not delivered; a server that is down counts as one."""
        try:
            return max(undelivered(self.shop, name) for name in self.processors)
        except SQLAlchemyError:
            return 1

    def close_books(self) -> Books:
        """Let every instance end what it is at; return what the database says then."""
        self.instances.stop()
        return Books(self.shop.app.database, self.writers.ends, self.instances.mismatches)

    def close(self) -> None:
        for worker in self.instances.workers:
            worker.kill()
        self.writers.close()
        self.shop.provider.dispose_all()


@contextmanager
def running(server: PostgresServer | MariadbServer, processors: Sequence[str], planted_bug: str = "") -> Iterator[Run]:
    """Yield a run on a database of its own."""
    database = server.start().create_database()
    try:
        with FaultProxy(server.port) as proxy:
            run = Run(server, proxy, database, processors, planted_bug)
            try:
                yield run
            finally:
                run.close()
    finally:
        server.start()
        server.terminate_sessions(database)
        server.drop_database(database)


def crash_run(server: PostgresServer | MariadbServer, size: Size, processors: Sequence[str]) -> Outcome:
    """Run until there were enough faults, and return what it came to."""
    with running(server, processors) as run:
        drain_seconds = run.inject(run.kinds(), size)
        books = run.close_books()
    return Outcome(
        {name: books.account(name) for name in processors},
        books.problems(processors, repeated=[REPEATED]),
        run.instances.surprises,
        run.injector.done,
        run.writers.unsure_count,
        drain_seconds,
    )


def check(outcome: Outcome, size: Size) -> None:
    """Every promise holds, and the run was as hard as it was meant to be."""
    print(f"\n{outcome}")
    for surprise in outcome.surprises:
        print(f"--- an instance's words:\n{surprise}")
    assert outcome.problems == []
    assert outcome.surprises == []
    assert outcome.faults.total() >= size.faults
    for name, account in outcome.accounts.items():
        assert account.committed >= size.messages
        assert account.rolled_back > 0
        if name != REPEATED:
            assert account.effects == account.committed


@pytest.mark.component("postgres18")
def test_a_short_crash_run_on_postgresql(postgres_server: PostgresServer) -> None:
    check(crash_run(postgres_server, SHORT, [EXACT, REPEATED, BY_POSITION]), SHORT)


@pytest.mark.component("mariadb")
def test_a_short_crash_run_on_mariadb(mariadb_server: MariadbServer) -> None:
    check(crash_run(mariadb_server, SMALL, [EXACT, REPEATED]), SMALL)


@pytest.mark.prove
@pytest.mark.component("postgres18")
def test_the_full_crash_run_on_postgresql(postgres_server: PostgresServer) -> None:
    outcome = crash_run(postgres_server, FULL, [EXACT, REPEATED, BY_POSITION])
    check(outcome, FULL)
    assert len(outcome.faults) >= 6


@pytest.mark.prove
@pytest.mark.component("mariadb")
def test_the_full_crash_run_on_mariadb(mariadb_server: MariadbServer) -> None:
    outcome = crash_run(mariadb_server, FULL, [EXACT, REPEATED])
    check(outcome, FULL)
    assert len(outcome.faults) >= 6


@pytest.mark.prove
@pytest.mark.component("postgres18")
def test_without_the_rollback_on_mismatch_the_account_finds_doubled_effects(postgres_server: PostgresServer) -> None:
    """Planted bug: instances that are stopped past their lease and go on can commit, and the account must tell."""
    with running(postgres_server, [EXACT], f"{NO_ROLLBACK},{LEASE_UNWATCHED}") as run:
        run.inject([Kind("SIGSTOP", 1, run.injector.freeze)], Size(messages=100, faults=8))
        books = run.close_books()
    print(f"\n{books.account(EXACT)}")
    assert books.account(EXACT).duplicated > 0
    assert any(problem.startswith("exact: duplicated") for problem in books.problems([EXACT]))
