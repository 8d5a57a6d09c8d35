"""A success is not dropped while its lease can be kept: neither by a failover nor by what refuses it for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from holdfast.jobs.settings import WorkerSettings
from tests.components.processes import wait_until
from tests.jobs.conftest import DATABASES
from tests.jobs.failover import ordinary_user, read_only
from tests.jobs.queues import Queue, open_queue
from tests.jobs.workers import Work

_MORE_THAN_A_FEW = 5  # refusals, by which a report used to be given up
CALM = WorkerSettings(concurrency=4, beat_seconds=1, watchdog_seconds=1, poll_seconds=0.05, drain_seconds=10)


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with ordinary_user(request.getfixturevalue(request.param)) as found:
        yield found


def refused(caplog: pytest.LogCaptureFixture) -> int:
    return sum("Reporting jobs did not work and is tried again" in message for message in caplog.messages)


def test_14_8_a_read_only_failover_drops_no_success(url: str, caplog: pytest.LogCaptureFixture) -> None:
    runs: list[str] = []
    go_on = threading.Event()

    def once() -> None:
        runs.append("once")
        assert go_on.wait(30)

    def again() -> None:
        runs.append("again")
        assert go_on.wait(30)

    with open_queue(url) as queue:
        work = Work(queue, CALM)
        work.job(once, max_attempts=1).enqueue()
        work.job(again, max_attempts=5).enqueue()
        with work.running():
            wait_until(lambda: len(runs) == 2, "both to begin")
            with read_only(url):
                go_on.set()
                wait_until(lambda: refused(caplog) >= _MORE_THAN_A_FEW, "the report to be refused again and again")
            with open_queue(url) as looking:  # sessions of the other one were ended
                wait_until(lambda: len(looking.history()) == 2, "both to end")
    with open_queue(url) as looking:
        assert [entry["status"] for entry in looking.history()] == ["Succeeded", "Succeeded"]
        assert (sorted(runs), looking.dead_letters()) == (["again", "once"], [])


_REFUSING = {
    "postgresql": [
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF NEW.operation = 'refused' THEN RAISE 'not now'; END IF; RETURN NEW; END $$""",
        "CREATE TRIGGER refusing BEFORE INSERT ON holdfast_history FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
    "mysql": [
        """CREATE TRIGGER refusing BEFORE INSERT ON holdfast_history FOR EACH ROW
        IF NEW.operation = 'refused' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not now'; END IF""",
    ],
    "sqlite": [
        """CREATE TRIGGER refusing BEFORE INSERT ON holdfast_history WHEN NEW.operation = 'refused'
        BEGIN SELECT RAISE(ABORT, 'not now'); END""",
    ],
}


def test_14_8_a_success_that_is_refused_for_a_while_is_kept_and_costs_its_neighbours_nothing(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[str] = []

    def refused_once() -> None:
        runs.append("refused")

    def neighbour() -> None:
        runs.append("neighbour")

    refused_once.__name__ = "refused"
    dialect = queue.engine.dialect.name
    with queue.engine.begin() as connection:
        for statement in _REFUSING[dialect]:
            connection.exec_driver_sql(statement)
    work = Work(queue)
    bad = work.job(refused_once, max_attempts=1)
    good = work.job(neighbour)
    bad.enqueue()
    good.enqueue_many([{}] * 20)
    ended = "SELECT count(*) AS n FROM holdfast_history WHERE operation = 'neighbour' AND status = 'Succeeded'"
    with work.running():
        wait_until(lambda: refused(caplog) >= _MORE_THAN_A_FEW, "the report to be refused again and again")
        wait_until(lambda: queue.rows(ended)[0]["n"] == 20, "the neighbours to be reported")
        good.enqueue()
        wait_until(lambda: queue.rows(ended)[0]["n"] == 21, "one that came later")
        drop = "DROP TRIGGER refusing" + (" ON holdfast_history" if dialect == "postgresql" else "")
        with queue.engine.begin() as connection:
            connection.exec_driver_sql(drop)
        work.until_empty()
    assert [entry["status"] for entry in queue.history()] == ["Succeeded"] * 22
    assert (runs.count("refused"), queue.dead_letters()) == (1, [])
