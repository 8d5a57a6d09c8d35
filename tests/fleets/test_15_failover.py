"""A primary that dies or hangs, and its standby that takes over: workers go on, and nothing is lost or done twice.

A server that hangs is the harder one: its sockets stay open and its kernel acknowledges every packet, so nothing but
the clock of who waits can tell. The short run has one failover of each kind; ``make prove`` has ten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from holdfast.database.migrations import migrate
from holdfast.schema import MIGRATIONS
from tests.components import availability
from tests.components.postgres import find_postgres18, runnable
from tests.components.postgres_pair import PostgresPair
from tests.components.processes import PythonWorker, wait_until
from tests.fleets.app import WORKS
from tests.fleets.fleet import Fleet, accepted

FAILOVERS = 10
LEASE_SECONDS = 4.0
BACK_SECONDS = 120.0  # when a machine is busy; figures are in the log of the run
WAYS = ("kill", "freeze")


class Failovers:
    """A fleet on a pair of servers, and what it has done."""

    def __init__(self, pair: PostgresPair, environment: dict[str, str]) -> None:
        self.pair = pair
        self._database = pair.primary.create_database()
        self.fleet = Fleet(pair.url(self._database), lease_seconds=LEASE_SECONDS, environment=environment)
        self._look_at(pair.primary.url(self._database))
        migrate(self.fleet.engine, MIGRATIONS)
        self.fleet.make_tables()

    def _look_at(self, url: str) -> None:
        self.fleet.close()
        self.fleet.engine = create_engine(url, poolclass=NullPool)

    def fail_over(self, way: str) -> None:
        """Have the primary die or hang, and the standby take over."""
        getattr(self.pair, way)()
        self.pair.promote()
        assert self.pair.standby is not None
        self._look_at(self.pair.standby.url(self._database))

    def require_back(self, what: str) -> None:
        """Wait until each workload does something that it had not done."""
        before = self.fleet.effects()
        wait_until(lambda: self._moved(before) == set(WORKS), f"all workloads to be back {what}", BACK_SECONDS)

    def _moved(self, before: Counter[tuple[str, int]]) -> set[str]:
        return {work for work, _ in self.fleet.effects() - before}

    def stays_wedged(self, feeder: PythonWorker, numbers: int) -> bool:
        """Return whether something does nothing while so many numbers more are accepted."""
        before, wanted = self.fleet.effects(), len(accepted([feeder])) + numbers
        wait_until(lambda: len(accepted([feeder])) >= wanted, "more to be accepted", BACK_SECONDS)
        return self._moved(before) != set(WORKS)


def failovers(environment: dict[str, str]) -> Iterator[Failovers]:
    availability.need("postgres18")
    binaries = find_postgres18()
    assert binaries is not None
    with PostgresPair(runnable(binaries)) as pair:
        made = Failovers(pair, {"FLEET_PATIENCE": "2", **environment})
        yield made
        made.fleet.close()


def go_through(made: Failovers, way: str, count: int) -> None:
    """Fail over again and again while workers work and a writer goes on; then see that each number was done once."""
    with made.fleet.workers(2 if count > 1 else 1) as workers:
        with made.fleet.feeders(1) as feeders:
            for number in range(1, count + 1):
                made.require_back(f"before failover {number}")
                made.fail_over(way)
                made.require_back(f"after failover {number}")
                if number < count:
                    made.pair.rejoin()
        assert accepted(feeders) <= made.fleet.orders()
        made.fleet.require_each_once(f"what was accepted over {count} failovers")
    output = "\n".join(worker.output for worker in workers)
    assert "goes on after a fail-over or recovery: timeline" in output
    assert way == "kill" or "it hangs, or was cut off" in output


@pytest.fixture
def quick() -> Iterator[Failovers]:
    """Servers are given up after two seconds instead of ten."""
    yield from failovers({"FLEET_DEADLINE": "2"})


@pytest.fixture
def patient() -> Iterator[Failovers]:
    yield from failovers({})


@pytest.fixture
def planted() -> Iterator[Failovers]:
    """Nobody gives a server up."""
    yield from failovers({"FLEET_DEADLINE": "0"})


@pytest.mark.parametrize("way", WAYS)
def test_15_must_show_workers_go_on_after_a_failover(way: str, quick: Failovers) -> None:
    go_through(quick, way, 1)


@pytest.mark.prove
@pytest.mark.parametrize("way", WAYS)
def test_15_must_show_workers_go_on_after_many_failovers(way: str, patient: Failovers) -> None:
    go_through(patient, way, FAILOVERS)


def test_15_planted_without_a_deadline_a_frozen_primary_keeps_everything(planted: Failovers) -> None:
    with planted.fleet.workers(1), planted.fleet.feeders(1) as [feeder]:
        planted.require_back("before the failover")
        planted.fail_over("freeze")
        assert planted.stays_wedged(feeder, 300)
        planted.pair.end_frozen()
        planted.require_back("after the frozen server was ended")
