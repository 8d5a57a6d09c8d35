"""One job kills every worker it gets, among many that do no harm: it alone is charged for that [SUSPECT-1] [ONCE-1].

The short size runs with every test, the full one (6,000 jobs) with ``make prove``.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import text

from holdfast import Holdfast
from holdfast.database.pools import EngineProvider
from tests.components.processes import PythonWorker, wait_until
from tests.jobs.faults.killers import CHARGE_EVERYBODY, declare

DATABASES = ("postgres_url", "mariadb_url", "sqlite_url")
ACTIVE = "status IN ('ready', 'scheduled', 'suspect', 'running')"


@dataclass
class Scene:
    """A database, its jobs, and two workers that are replaced when they die."""

    url: str
    max_attempts: int
    environment: dict[str, str] = field(default_factory=dict)
    deaths: int = 0
    workers: list[PythonWorker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hf = Holdfast(self.url, engine_provider=EngineProvider())
        self.hf.migrate()
        self.jobs = declare(self.hf, self.max_attempts, **json.loads(self.environment.get("LIMITS", "{}")))

    def start(self, workers: int = 2) -> None:
        self.workers = [self._worker() for _ in range(workers)]

    def _worker(self) -> PythonWorker:
        environment = {"WORKER_URL": self.url, "MAX_ATTEMPTS": str(self.max_attempts), **self.environment}
        return PythonWorker("-m", "tests.jobs.faults.killers", environment=environment)

    def replace_the_dead(self) -> None:
        for number, worker in enumerate(self.workers):
            if not worker.running:
                assert worker.wait() == -signal.SIGKILL, worker.output
                self.deaths += 1
                self.workers[number] = self._worker()

    def rows(self, sql: str, **values: object) -> list[dict[str, Any]]:
        with self.hf.database.connect() as connection:
            return [dict(row) for row in connection.execute(text(sql), values).mappings()]

    def mark(self, operation: str) -> None:
        """Let a job that waits be one whose worker was lost."""
        marked = "SET status = 'suspect', suspicions = 1, run_at = created_at"
        with self.hf.database.begin() as connection:
            connection.execute(text(f"UPDATE holdfast_jobs {marked} WHERE operation = :name"), {"name": operation})

    def count(self, table: str, condition: str) -> int:
        return int(self.rows(f"SELECT count(*) AS n FROM {table} WHERE {condition}")[0]["n"])

    def until_buried(self) -> None:
        """Wait until the killer is in the dead letters, replacing who dies meanwhile."""

        def is_buried() -> bool:
            self.replace_the_dead()
            return self.count("holdfast_jobs", "operation = 'kill' AND status = 'dead'") > 0

        wait_until(is_buried, "the killer to be buried", 180)

    def until_empty(self, left: int = 0) -> None:
        def is_empty() -> bool:
            self.replace_the_dead()
            return self.count("holdfast_jobs", ACTIVE) <= left

        wait_until(is_empty, "every job to end", 240)

    def innocents(self) -> tuple[int, int]:
        """Return how many other jobs were buried, and how many were charged."""
        buried = self.rows("SELECT count(*) AS n FROM holdfast_jobs WHERE operation <> 'kill' AND status = 'dead'")
        charged = self.rows(
            "SELECT count(*) AS n FROM holdfast_history WHERE operation <> 'kill' AND status = 'Failed'"
        )
        return buried[0]["n"], charged[0]["n"]

    def done(self) -> int:
        found = self.rows(
            "SELECT count(*) AS n FROM holdfast_history WHERE operation IN ('quick', 'turn') AND status = 'Succeeded'"
        )
        return int(found[0]["n"])

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.hf._provider.dispose_all()


@contextmanager
def _scene(url: str, max_attempts: int, **environment: str) -> Iterator[Scene]:
    scene = Scene(url, max_attempts, environment)
    try:
        yield scene
    finally:
        scene.close()


def _search(url: str, max_attempts: int, jobs: int, **environment: str) -> Scene:
    """Let two workers find the killer in the middle of other jobs."""
    with _scene(url, max_attempts, **environment) as scene:
        scene.jobs["quick"].enqueue_many([{"n": n} for n in range(jobs // 2)])
        scene.jobs["kill"].enqueue()
        scene.jobs["quick"].enqueue_many([{"n": n} for n in range(jobs // 2, jobs)])
        scene.start()
        scene.until_buried()
        scene.until_empty()
        print(f"\n{max_attempts=} {jobs=}: deaths {scene.deaths}, innocents (buried, charged) {scene.innocents()}")
        return scene


def _check(scene: Scene, jobs: int) -> None:
    assert scene.innocents() == (0, 0)
    assert scene.done() == jobs
    assert scene.deaths <= scene.max_attempts + 1


@pytest.mark.parametrize("max_attempts", [1, 2])
@pytest.mark.parametrize("database", DATABASES)
def test_only_the_job_that_kills_its_worker_is_charged(
    request: pytest.FixtureRequest, database: str, max_attempts: int
) -> None:
    """[SUSPECT-1] [ONCE-1]"""
    _check(_search(request.getfixturevalue(database), max_attempts, 200), 200)


@pytest.mark.prove
@pytest.mark.parametrize("max_attempts", [1, 2, 3, 5])
@pytest.mark.parametrize("database", DATABASES)
def test_only_the_job_that_kills_its_worker_is_charged_among_6000(
    request: pytest.FixtureRequest, database: str, max_attempts: int
) -> None:
    """[SUSPECT-1] [ONCE-1]"""
    _check(_search(request.getfixturevalue(database), max_attempts, 6_000), 6_000)


def test_if_everybody_is_charged_innocents_are_buried(sqlite_url: str) -> None:
    """Planted bug: the run above must find it."""
    scene = _search(sqlite_url, 1, 200, PLANTED_BUG=CHARGE_EVERYBODY)
    assert scene.innocents()[0] > 0


BACKLOG = 400  # of jobs that take a fifth of a second, one after the other
BOUND = 100  # of them may run before the suspect has been tested twice: each worker looks every five polls, of 1 s


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize(
    ("limits", "options"),
    [
        pytest.param({}, {"unique_key": "only"}, id="unique key"),
        pytest.param({"concurrency": 1}, {}, id="limit 1"),
        pytest.param({"concurrency_per_key": 1}, {"key": "mine"}, id="limit key"),
    ],
)
def test_a_suspect_is_tested_although_every_worker_and_its_topic_have_work_that_does_not_end(
    request: pytest.FixtureRequest, database: str, limits: dict[str, object], options: dict[str, str]
) -> None:
    """[SUSPECT-1] Beside an hour-long job on each worker and a backlog; it holds its unique key and no other place."""
    with _scene(request.getfixturevalue(database), 2, LIMITS=json.dumps(limits), CONCURRENCY="2", POLL="1") as scene:
        suspect = scene.jobs["kill"].options(**options)  # type: ignore[arg-type] # each by its name
        suspect.options(delay_seconds=3600).enqueue()
        scene.jobs["wait"].enqueue_many([{}] * (3 if limits else 4))  # of four places, one for the backlog
        scene.start()
        busy = "SELECT DISTINCT locked_by FROM holdfast_jobs WHERE operation = 'wait' AND status = 'running'"
        wait_until(lambda: len(scene.rows(busy)) == 2, "an endless job on each worker")
        if limits:
            scene.jobs["slow"].options(key=options.get("key")).enqueue_many([{"n": n} for n in range(BACKLOG)])
            wait_until(lambda: scene.count("holdfast_history", "operation = 'slow'") > 3, "the backlog to be begun")
        scene.mark("kill")
        assert limits or not suspect.enqueue().is_new
        scene.until_buried()
        assert scene.innocents() == (0, 0)
        assert not limits or scene.count("holdfast_jobs", "operation = 'slow'") > BACKLOG - BOUND
        assert suspect.enqueue().is_new


def test_a_worker_whose_loop_is_blocked_leaves_the_work_to_others(postgres_url: str) -> None:
    with _scene(postgres_url, 5) as scene:
        scene.jobs["block"].enqueue()
        scene.start()
        wait_until(lambda: any("blocking" in worker.output for worker in scene.workers), "a loop to be blocked")
        scene.jobs["turn"].enqueue_many([{"n": n} for n in range(20)])
        scene.until_empty(left=1)
        assert scene.done() == 20
        most = scene.rows("SELECT max(attempt) AS n FROM holdfast_history WHERE operation = 'turn'")[0]["n"]
        assert most <= 5  # it gives back what it had claimed, and does not claim that again at once
        [blocked] = [worker for worker in scene.workers if "blocking" in worker.output]
        blocked.wait_for_line("The event loop does not turn")
        assert blocked.output.count("The event loop does not turn") == 1


def test_a_child_task_that_exits_ends_neither_the_loop_nor_a_worker(postgres_url: str) -> None:
    with _scene(postgres_url, 1) as scene:
        scene.jobs["leave_from_task"].enqueue()
        scene.start()
        wait_until(lambda: scene.count("holdfast_jobs", "status = 'dead'") == 1, "the job that exits to be buried")
        scene.jobs["turn"].enqueue_many([{"n": n} for n in range(8)])
        scene.until_empty()
        assert scene.done() == 8
        assert scene.deaths == 0


def test_a_worker_that_gets_no_thread_leaves_the_work_to_others_and_ends(postgres_url: str) -> None:
    """It holds nothing: what it had claimed runs elsewhere, uncharged."""
    with _scene(postgres_url, 2) as scene:
        scene.jobs["starve_async"].enqueue()
        scene.start(1)
        [starved] = scene.workers
        starved.wait_for_line("starved")
        scene.jobs["slow"].enqueue_many([{"n": n} for n in range(20)])
        assert starved.wait() == 1
        assert "died: the threads of handlers" in starved.output
        assert "Only 0 of 4 threads for jobs could be started: RuntimeError" in starved.output
        scene.start(1)
        scene.until_empty()
        assert scene.count("holdfast_history", "operation = 'slow' AND status = 'Succeeded'") == 20
        assert scene.innocents() == (0, 0)


def test_a_worker_that_gets_no_more_threads_works_with_those_it_has_beside_another(postgres_url: str) -> None:
    with _scene(postgres_url, 2) as scene:
        scene.jobs["starve"].enqueue()
        scene.start()
        wait_until(lambda: any("starved" in worker.output for worker in scene.workers), "a worker to be starved")
        scene.jobs["slow"].enqueue_many([{"n": n} for n in range(40)])
        scene.until_empty()
        assert scene.innocents() == (0, 0)
        assert scene.deaths == 0
        by_worker = scene.rows("SELECT worker, count(*) AS n FROM holdfast_history WHERE operation = 'slow' GROUP BY 1")
        assert (len(by_worker), sum(row["n"] for row in by_worker)) == (2, 40)
        [starved] = [worker for worker in scene.workers if "starved" in worker.output]
        assert starved.output.count("of 4 threads for jobs could be started") == 1
