"""Engines in the database on the jobs' worker: one process, one worker, and nobody in the way of anybody."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import text

from holdfast import Holdfast
from holdfast.core.retry import RetryPolicy
from holdfast.records.dead_letters import LetterStatus
from tests.components.processes import PythonWorker, wait_until

DATABASES = [
    "sqlite_url",
    pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
    pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
]
QUICK = RetryPolicy(base_delay_seconds=0.01, max_delay_seconds=0.01)


@pytest.fixture(params=DATABASES)
def hf(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    made = Holdfast(request.getfixturevalue(request.param))
    yield made
    made._provider.dispose_all()


@contextmanager
def running(hf: Holdfast, **options: Any) -> Iterator[None]:
    hf.migrate()
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(hf.run(handle_signals=False, **options)))
    thread.start()
    try:
        yield
    finally:
        hf.stop()
        thread.join(60)
    assert ended == [True]


def rows(hf: Holdfast, table: str) -> int:
    with hf.database.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def waiting(hf: Holdfast) -> int:
    return rows(hf, "holdfast_jobs")


def until_empty(hf: Holdfast) -> None:
    wait_until(lambda: waiting(hf) == 0, "every message to end", 60)


def test_an_application_with_engines_only_runs_them_without_a_thread_for_each_message(hf: Holdfast) -> None:
    threads: set[str] = set()

    @hf.engine("hmac", concurrency=3)
    def rotate(context: Any, message: Any) -> None:
        threads.add(threading.current_thread().name)

    with running(hf):
        for number in range(60):
            rotate.send({"n": number})
        until_empty(hf)
    assert len(threads) <= 3
    assert rows(hf, "holdfast_history") == 60


class Crowd:
    """Counts how many are inside at a time, and holds them until the test lets them go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = self.left = 0
        self.goes_on = threading.Event()

    def __call__(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self.goes_on.wait(60)
        with self._lock:
            self.inside -= 1
            self.left += 1


def test_every_engine_has_its_own_places_and_jobs_have_theirs(hf: Holdfast) -> None:
    crowd = Crowd()
    done: list[str] = []

    @hf.engine("slow", concurrency=2)
    def slow(context: Any, message: Any) -> None:
        crowd()

    @hf.engine("quick", concurrency=1)
    def quick(context: Any, message: Any) -> None:
        done.append("quick")

    @hf.job(topic="work")
    def job() -> None:
        done.append("job")

    with running(hf, concurrency=2):
        for number in range(6):
            slow.send(number)
        wait_until(lambda: crowd.inside == 2, "both places of the slow engine to be taken")
        for number in range(20):
            quick.send(number)
            job.enqueue()
        wait_until(lambda: Counter(done) == {"quick": 20, "job": 20}, "the others to be done beside it", 60)
        assert crowd.left == 0
        crowd.goes_on.set()
        until_empty(hf)
    assert (crowd.left, crowd.most) == (6, 2)


def test_long_messages_are_not_claimed_and_given_back_over_and_over(hf: Holdfast) -> None:
    crowd = Crowd()
    attempts: list[int] = []

    @hf.engine("slow", concurrency=1)
    def slow(context: Any, message: Any) -> None:
        attempts.append(context.fencing_token)
        crowd()

    @hf.job(topic="work")
    def tick() -> None:
        pass

    with running(hf):
        for number in range(3):
            slow.send(number)
        wait_until(lambda: crowd.inside == 1, "the first message")
        for _ in range(60):  # each wakes the worker, which looks whether there is room
            tick.enqueue()
        wait_until(lambda: waiting(hf) == 3, "the jobs")
        crowd.goes_on.set()
        until_empty(hf)
    assert max(attempts) <= 2


def test_two_messages_about_the_same_are_executed_once(hf: Holdfast) -> None:
    executed: list[str] = []
    crowd = Crowd()

    @hf.engine("hmac", concurrency=4, conflict_seconds=0.05)
    def rotate(context: Any, message: Any) -> None:
        executed.append(message.correlation_id)
        if message.correlation_id == "c-0":
            crowd()

    with running(hf):
        for number in range(40):
            rotate.send(number, correlation_id=f"c-{number % 10}")
        wait_until(lambda: crowd.inside == 1 and len(executed) == 10, "one of each", 60)
        crowd.goes_on.set()
        until_empty(hf)
    assert Counter(executed) == {f"c-{number}": 1 for number in range(10)}


def test_a_job_enqueued_by_an_operation_belongs_to_its_business(hf: Holdfast) -> None:
    told: list[str] = []

    @hf.job(topic="work")
    def follow(context: Any) -> None:
        told.append(context.correlation_id)

    @hf.engine("hmac")
    def rotate(context: Any, message: Any) -> None:
        follow.enqueue(connection=context.transaction)

    with running(hf):
        rotate.send(1, correlation_id="c-7")
        wait_until(lambda: told, "the job", 30)
    assert told == ["c-7"]


def test_pausing_the_topic_pauses_the_engine(hf: Holdfast) -> None:
    done: list[int] = []

    @hf.engine("hmac")
    def rotate(context: Any, message: Any) -> None:
        done.append(message.payload)

    @hf.job(topic="work")
    def job() -> None:
        done.append(0)

    hf.migrate()
    hf.jobs.store.pause("engine.hmac-queue", True)
    with running(hf):
        rotate.send(1)
        job.enqueue()
        wait_until(lambda: done, "the job, which is not paused", 30)
        assert done == [0]
        hf.jobs.store.pause("engine.hmac-queue", False)
        wait_until(lambda: done == [0, 1], "the message", 30)


KILLED = """
import os, signal, sys
from holdfast import Holdfast
from holdfast.core.retry import RetryPolicy
from holdfast.jobs.settings import WorkerSettings
hf = Holdfast(sys.argv[1])
@hf.engine("hmac", visibility_seconds=1, max_retry_attempts=3, concurrency=4,
    retry_policy=RetryPolicy(base_delay_seconds=0.01, max_delay_seconds=0.01))
def rotate(context, message):
    if message.payload == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
import threading
stop = threading.Event()
settings = WorkerSettings(watchdog_seconds=0.2, poll_seconds=0.1)
hf.jobs.worker(stop, settings, others=hf.engines.handlers()).run()
"""


def test_a_message_that_kills_its_worker_takes_no_neighbour_with_it(hf: Holdfast) -> None:
    @hf.engine("hmac", visibility_seconds=1, max_retry_attempts=3, concurrency=4, retry_policy=QUICK)
    def rotate(context: Any, message: Any) -> None:
        pass

    hf.migrate()
    for number in range(200):
        rotate.send("bad" if number == 100 else number)
    url = hf.database.url.render_as_string(hide_password=False)
    deaths = 0
    while waiting(hf):
        with PythonWorker("-c", KILLED, url) as worker:
            wait_until(lambda worker=worker: not worker.running or waiting(hf) == 0, "its death or the end", 60)  # type: ignore[misc]
            deaths += not worker.running
    assert deaths <= 3, "one that makes it a suspect, and two that are charged: the third delivery buries it"
    [letter] = hf.dead_letters.page().items
    assert (letter.status, letter.dequeue_count) == (LetterStatus.PENDING, 4)
    assert letter.error_message == "worker lost during attempt 3"
    assert rows(hf, "holdfast_history") == 199


def test_jobs_and_all_engines_have_one_worker(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    usual: Callable[..., Any] = hf.jobs.worker

    def worker(*given: Any, **named: Any) -> Any:
        made.append(named)
        return usual(*given, **named)

    monkeypatch.setattr(hf.jobs, "worker", worker)
    hf.engine("one")(lambda message: None)
    hf.engine("two")(lambda message: None)
    hf.job(topic="work", name="job")(lambda: None)
    with running(hf):
        wait_until(lambda: made, "the worker")
    assert [len({handler.topic for handler in named["others"]}) for named in made] == [2]
