"""What a worker promises: every job ends once, with the outcome its handler chose, and nothing is held at the end."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from holdfast.core.errors import Ambiguous, JobError
from holdfast.jobs.context import JobContext
from holdfast.jobs.correlation import current_correlation_id
from holdfast.jobs.definition import limits_of
from holdfast.jobs.model import JobId
from holdfast.jobs.outcomes import Discard, Retry, Snooze
from holdfast.jobs.settings import WorkerSettings
from holdfast.jobs.worker import JobWorker
from tests.components.processes import wait_until
from tests.jobs.queues import ANNE, Queue, open_queue
from tests.jobs.workers import QUICK, Work


@pytest.fixture
def work(queue: Queue) -> Work:
    return Work(queue)


def make_effects_table(queue: Queue) -> None:
    with queue.engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER NOT NULL)"))


def effects(queue: Queue) -> list[int]:
    return [row["n"] for row in queue.rows("SELECT n FROM effects ORDER BY n")]


def test_jobs_run_and_become_history_with_their_results(work: Work) -> None:
    def double(n: int) -> dict[str, int]:
        return {"twice": 2 * n}

    job = work.job(double)
    job.enqueue_many([{"n": n} for n in range(50)])
    with work.running():
        work.until_empty()
    outputs = sorted(json.loads(entry["output"])["twice"] for entry in work.queue.history())
    assert outputs == [2 * n for n in range(50)]
    assert {entry["status"] for entry in work.queue.history()} == {"Succeeded"}


def test_async_jobs_run_on_one_loop_all_at_once(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=20, poll_seconds=0.05))
    loops, started, release = set(), [], threading.Event()

    async def wait(n: int) -> None:
        loops.add(id(asyncio.get_running_loop()))
        started.append(n)
        while not release.is_set():
            await asyncio.sleep(0.005)

    work.job(wait).enqueue_many([{"n": n} for n in range(20)])
    with work.running():
        wait_until(lambda: len(started) == 20, "all to start")
        release.set()
        work.until_empty()
    assert len(loops) == 1


def test_a_failure_is_retried_and_then_dead(work: Work) -> None:
    tries = []

    def fail(context: JobContext, n: int) -> None:
        tries.append((context.attempt, context.failures))
        raise ValueError(f"no {n}")

    work.job(fail, max_attempts=3).enqueue(n=7)
    with work.running():
        work.until_empty()
    assert tries == [(1, 0), (2, 1), (3, 2)]
    [letter] = work.queue.dead_letters()
    assert (letter["error_message"], letter["original_message"]) == ("ValueError: no 7", '{"n":7}')


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_handler_raises_decides(work: Work, is_async: bool) -> None:
    seen: dict[str, int] = {}

    def decide(context: JobContext, what: str) -> None:
        seen[what] = seen.get(what, 0) + 1
        if what == "retry" and context.attempt == 1:
            raise Retry("not yet", in_seconds=0)
        if what == "snooze" and context.attempt < 4:
            raise Snooze(in_seconds=0)
        if what == "discard":
            raise Discard("never")
        if what == "exit" and context.attempt == 1:
            raise SystemExit(3)

    async def decide_async(context: JobContext, what: str) -> None:
        await asyncio.sleep(0)
        decide(context, what)

    job = work.job(decide_async if is_async else decide, max_attempts=2)
    for what in ("retry", "snooze", "discard", "exit"):
        job.enqueue(what=what)
    with work.running():
        work.until_empty()
    assert seen == {"retry": 2, "snooze": 4, "discard": 1, "exit": 2}
    [letter] = work.queue.dead_letters()
    assert (letter["error_message"], letter["dequeue_count"]) == ("never", 1)
    ended = sorted((entry["operation"], entry["status"]) for entry in work.queue.history())
    assert [status for _, status in ended].count("Succeeded") == 3


@pytest.mark.parametrize("is_async", [False, True])
def test_effects_and_completion_commit_together(work: Work, is_async: bool) -> None:
    make_effects_table(work.queue)

    def write(context: JobContext, n: int) -> None:
        context.transaction.execute(text("INSERT INTO effects VALUES (:n)"), {"n": n})
        if n % 3 == 0 and context.attempt == 1:
            raise ValueError("after the write")

    async def write_async(context: JobContext, n: int) -> None:
        await context.transaction.execute(text("INSERT INTO effects VALUES (:n)"), {"n": n})
        if n % 3 == 0 and context.attempt == 1:
            raise ValueError("after the write")

    work.job(write_async if is_async else write).enqueue_many([{"n": n} for n in range(12)])
    with work.running():
        work.until_empty()
    assert effects(work.queue) == list(range(12))


def test_a_stale_claim_undoes_its_effects(work: Work) -> None:
    make_effects_table(work.queue)
    inside, go_on = threading.Event(), threading.Event()

    def write(context: JobContext, n: int) -> None:
        if context.attempt == 1:
            inside.set()
            go_on.wait(30)
        context.transaction.execute(text("INSERT INTO effects VALUES (:n)"), {"n": n})

    added = work.job(write, lease_seconds=30).enqueue(n=1)
    with work.running():
        assert inside.wait(30)
        work.queue.rows("SELECT 1 AS one")
        with work.queue.engine.begin() as connection:
            connection.execute(
                text("UPDATE holdfast_jobs SET status = 'ready', locked_by = NULL, lease_until = NULL WHERE id = :id"),
                {"id": added.id},
            )
        wait_until(lambda: effects(work.queue) == [1], "the second attempt")
        go_on.set()
        work.until_empty()
    assert effects(work.queue) == [1]


def test_a_handler_that_ends_the_transaction_itself_is_told(work: Work) -> None:
    def end(context: JobContext) -> None:
        context.transaction.commit()

    work.job(end, max_attempts=1).enqueue()
    with work.running():
        work.until_empty()
    assert "called commit() on context.transaction, which is refused" in work.queue.dead_letters()[0]["error_message"]


def test_a_long_job_keeps_its_lease_and_others_do_not_get_it(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=2, beat_seconds=10, watchdog_seconds=0.05, poll_seconds=0.05))
    runs, release = [], threading.Event()

    def slow(context: JobContext) -> None:
        runs.append(context.attempt)
        release.wait(30)

    added = work.job(slow, lease_seconds=1).enqueue()
    lease = "SELECT lease_until FROM holdfast_jobs"
    with work.running():
        wait_until(lambda: bool(runs), "the job to start")
        seen: set[str] = set()

        def has_beaten() -> bool:
            seen.add(str(queue.rows(lease)[0]["lease_until"]))
            return len(seen) >= 6

        wait_until(has_beaten, "beats")
        release.set()
        work.until_empty()
    assert runs == [1]
    assert queue.store.get(added.id) is None


def test_a_cancelled_job_stops(work: Work) -> None:
    started = threading.Event()
    stopped = []

    async def wait(context: JobContext) -> None:
        started.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            stopped.append(context.cancelled.is_set())
            raise

    added = work.job(wait).enqueue()
    with work.running():
        assert started.wait(30)
        work.queue.store.cancel([added.id], "changed my mind")
        wait_until(lambda: work.queue.status(added.id) == "cancelled", "the job to stop")
    assert stopped == [True]
    assert work.queue.history()[0]["error"] == "cancelled: changed my mind"


def test_a_thread_can_look_whether_it_was_cancelled(work: Work) -> None:
    started = threading.Event()

    def loop(context: JobContext) -> None:
        started.set()
        while True:
            context.cancelled.wait(0.01)
            context.raise_if_stopped()

    added = work.job(loop).enqueue()
    with work.running():
        assert started.wait(30)
        work.queue.store.cancel([added.id], "enough")
        wait_until(lambda: work.queue.status(added.id) == "cancelled", "the job to stop")


def test_progress_can_be_seen_while_a_job_runs(work: Work) -> None:
    told, release = threading.Event(), threading.Event()

    def steps(context: JobContext) -> None:
        context.heartbeat(progress={"done": 3, "of": 10})
        told.set()
        release.wait(30)

    added = work.job(steps).enqueue()
    with work.running():
        assert told.wait(30)
        assert json.loads(work.queue.column(added.id, "progress")) == {"done": 3, "of": 10}
        release.set()
        work.until_empty()


def test_what_no_handler_is_for_is_left_alone_and_visible(work: Work) -> None:
    ran: list[int] = []
    job = work.job(lambda: ran.append(1))
    added = work.queue.add(operation="gone", priority=9)
    job.enqueue()
    with work.running():
        wait_until(lambda: ran, "the job behind it")
        wait_until(lambda: work.queue.rows("SELECT id FROM holdfast_workers"), "the worker to announce itself")
        assert work.queue.store.stats()[0].without_worker == {"gone": 1}
    assert (work.queue.status(added.id), work.queue.column(added.id, "attempt")) == ("ready", 0)
    assert work.queue.rows("SELECT id FROM holdfast_workers") == []


def test_a_payload_that_does_not_fit_goes_to_the_dead_letters(work: Work) -> None:
    def take(n: int) -> None: ...

    work.job(take, max_attempts=5)
    work.queue.add(operation="take", payload='{"n": "seven"}')
    with work.running():
        work.until_empty()
    [letter] = work.queue.dead_letters()
    assert "take" in letter["error_message"]
    assert letter["dequeue_count"] == 1


def test_jobs_enqueued_by_a_job_belong_to_it(work: Work) -> None:
    def child() -> None: ...

    def parent() -> None:
        assert current_correlation_id.get() == "business-1"
        child_job.enqueue()

    child_job = work.job(child)
    work.job(parent).options(correlation_id="business-1").enqueue()
    with work.running():
        work.until_empty()
        wait_until(lambda: len(work.queue.history()) == 2, "both")
    assert {entry["correlation_id"] for entry in work.queue.history()} == {"business-1"}


def test_draining_finishes_what_runs_and_gives_back_the_rest(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=2, ahead=0, poll_seconds=0.05))
    started, release = [], threading.Event()

    def slow(n: int) -> None:
        started.append(n)
        release.wait(30)

    work.job(slow).enqueue_many([{"n": n} for n in range(6)])
    with work.running():
        wait_until(lambda: len(started) == 2, "two to start")
        work.stop.set()
        release.set()
    assert len(queue.history()) == len(started)
    left = queue.rows("SELECT status, failures FROM holdfast_jobs")
    assert len(left) == 6 - len(started)
    assert {(row["status"], row["failures"]) for row in left} == {("ready", 0)}


def test_a_handler_that_outlives_the_drain_gives_up_its_job(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=1, poll_seconds=0.05, drain_seconds=0.05))
    started, release = threading.Event(), threading.Event()

    def stuck(context: JobContext) -> None:
        started.set()
        release.wait(60)

    added = work.job(stuck).enqueue()
    with work.running(drains=False):
        assert started.wait(30)
        work.stop.set()
        wait_until(lambda: queue.status(added.id) == "ready", "the job to be given up")
    release.set()
    assert queue.column(added.id, "failures") == 0
    assert queue.store.get(added.id) is not None


def test_limits_hold_in_a_running_worker(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=8, poll_seconds=0.05))
    lock, now, most = threading.Lock(), 0, 0

    def count(n: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.01)
        with lock:
            now -= 1

    job = work.job(count, limits=limits_of(concurrency=2))
    queue.store.set_limits("email", job.settings.limits)
    job.enqueue_many([{"n": n} for n in range(12)])
    with work.running():
        work.until_empty()
    assert most <= 2
    assert len(queue.history()) == 12


def test_a_paused_topic_waits(work: Work) -> None:
    ran: list[str] = []

    def note(what: str) -> None:
        ran.append(what)

    paused, other = work.job(note, topic="email"), work.job(lambda: ran.append("other"), topic="other")
    work.queue.store.pause("email", True)
    paused.enqueue(what="email")
    other.enqueue()
    with work.running():
        wait_until(lambda: ran == ["other"], "the other topic")
        work.queue.store.pause("email", False)
        wait_until(lambda: ran == ["other", "email"], "the resumed topic")


def test_work_lost_by_another_worker_is_taken_up(queue: Queue) -> None:
    work = Work(queue, QUICK)
    ran = []

    def note(context: JobContext) -> None:
        ran.append(context.attempt)

    work.job(note, lease_seconds=0.05).enqueue()
    queue.claim(1, ANNE)
    with work.running():
        work.until_empty()
    assert ran == [2]


def test_many_jobs_are_beaten_for_in_one_statement(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(queue, WorkerSettings(concurrency=1000, beat_seconds=0.1, poll_seconds=0.05))
    release = threading.Event()
    sizes: list[int] = []
    heartbeat = type(queue.store).heartbeat

    def counted(store: Any, worker: Any, claims: Any) -> Any:
        sizes.append(len(claims))
        return heartbeat(store, worker, claims)

    monkeypatch.setattr(type(queue.store), "heartbeat", counted)

    async def wait() -> None:
        while not release.is_set():
            await asyncio.sleep(0.05)

    work.job(wait).enqueue_many([{}] * 1000)
    with work.running():
        wait_until(lambda: sizes.count(1000) >= 3, "beats for all")
        release.set()
        work.until_empty()
    assert len(queue.history()) == 1000


def test_nothing_is_held_when_a_worker_has_ended(work: Work) -> None:
    work.job(lambda: None).enqueue_many([{}] * 20)
    with work.running():
        work.until_empty()
    assert work.queue.rows("SELECT * FROM holdfast_jobs WHERE locked_by IS NOT NULL") == []
    assert work.queue.store.get(JobId(1)) is None


def test_an_error_that_no_database_can_hold_is_told_as_well_as_it_can_be(work: Work) -> None:
    def fail() -> None:
        raise ValueError("nul \x00 and half a pair \ud800")

    work.job(fail, max_attempts=1).enqueue()
    with work.running():
        work.until_empty()
    assert work.queue.dead_letters()[0]["error_message"] == "ValueError: nul \ufffd and half a pair ?"


def test_a_report_that_cannot_be_stored_does_not_hold_up_the_others(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(queue, WorkerSettings(concurrency=4, beat_seconds=0.2, watchdog_seconds=0.1, poll_seconds=0.05))
    complete = type(queue.store).complete

    def refuse_one(store: Any, worker: Any, reports: Any) -> Any:
        if any(report.output == '"bad"' for report in reports):
            raise JobError("the database does not take this")
        return complete(store, worker, reports)

    monkeypatch.setattr(type(queue.store), "complete", refuse_one)

    def echo(what: str) -> str:
        return what

    work.job(echo, lease_seconds=3.0).enqueue_many([{"what": what} for what in ("good", "bad", "good", "good")])
    with work.running():
        work.until_empty()
    assert [(entry["status"], entry["attempt"]) for entry in queue.history()] == [("Succeeded", 1)] * 4
    assert [entry["output"] for entry in queue.history()].count(None) == 1, "one was kept without its result"


def test_a_job_cancelled_while_it_waits_for_a_thread_does_not_run(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=1, beat_seconds=0.05, poll_seconds=0.05))
    ran, release = [], threading.Event()

    def note(n: int) -> None:
        ran.append(n)
        if n >= 0:
            release.wait(30)

    job = work.job(note)
    with work.running() as worker:
        job.enqueue_many([{"n": -1}] * 50)  # short ones, so that the worker claims ahead
        wait_until(lambda: len(ran) == 50, "the short ones")
        job.enqueue(n=0)
        wait_until(lambda: 0 in ran, "the long one to hold the only thread")
        waiting = job.enqueue(n=1)
        wait_until(lambda: queue.status(waiting.id) == "running", "the next one to be claimed ahead")
        queue.store.cancel([waiting.id], "no longer wanted")

        def is_notified() -> bool:
            held = [running for running in worker._in_flight.all() if running.job.id == waiting.id]
            return all(running.cancel_reason is not None for running in held)

        wait_until(is_notified, "a beat, which tells of it")
        release.set()
        wait_until(lambda: queue.status(waiting.id) == "cancelled", "the job to end")
    assert 1 not in ran


def test_long_jobs_claimed_ahead_are_left_to_others(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=2, poll_seconds=0.05))
    ran, release = [], threading.Event()

    def note(n: int) -> None:
        ran.append(n)
        if n >= 0:
            release.wait(60)

    job = work.job(note)
    with work.running():
        job.enqueue_many([{"n": -1}] * 200)
        wait_until(lambda: len(ran) == 200, "the short ones, after which the worker claims ahead")
        job.enqueue_many([{"n": n} for n in range(20)])
        still = "SELECT count(*) AS n FROM holdfast_jobs WHERE status = 'ready'"
        wait_until(lambda: queue.rows(still)[0]["n"] == 18, "what it cannot begin with to be given back")
        assert len(queue.claim(50, ANNE)) == 18
        release.set()


def test_a_limited_topic_gets_its_turn_beside_a_busy_one(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=1, ahead=0, poll_seconds=0.05))
    ran: list[str] = []
    busy = work.job(lambda n: ran.append("busy"), topic="busy")
    limited = work.job(lambda: ran.append("limited"), topic="limited", limits=limits_of(concurrency=1))
    queue.store.set_limits("limited", limited.settings.limits)
    busy.enqueue_many([{"n": n} for n in range(300)])
    limited.enqueue_many([{}] * 3)
    with work.running():
        wait_until(lambda: ran.count("limited") == 3, "the limited ones")
    assert ran.count("busy") < 300


def test_an_error_of_a_later_claim_throws_nothing_away(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(queue)
    ran: list[int] = []
    work.job(lambda n: ran.append(n), topic="plain", max_attempts=1).enqueue_many([{"n": n} for n in range(5)])
    limited = work.job(lambda: None, topic="limited", limits=limits_of(concurrency=1))
    queue.store.set_limits("limited", limited.settings.limits)

    def refuse(*_: object) -> Any:
        raise JobError("not now")

    monkeypatch.setattr(type(queue.store), "claim_limited", refuse)
    with work.running():
        wait_until(lambda: len(ran) == 5, "every job that was claimed")
        work.until_empty()
    assert queue.dead_letters() == []


def test_a_handler_that_blocks_the_loop_does_not_hold_up_the_drain(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=1, poll_seconds=0.05, drain_seconds=0.05))
    started, release = threading.Event(), threading.Event()

    async def block() -> None:
        started.set()
        release.wait(60)

    added = work.job(block).enqueue()
    with work.running(drains=False):
        assert started.wait(30)
        work.stop.set()
        wait_until(lambda: queue.status(added.id) == "ready", "the job to be given up")
    assert not release.is_set()
    release.set()


def test_many_long_errors_are_reported_in_parts(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=20, poll_seconds=0.05))

    def fail() -> None:
        raise ValueError("e" * 19_000)

    work.job(fail, max_attempts=1).enqueue_many([{}] * 300)
    with work.running():
        work.until_empty()
    assert len(queue.dead_letters()) == 300


@pytest.mark.parametrize("is_async", [False, True])
def test_jobs_can_be_enqueued_in_the_handlers_transaction(work: Work, is_async: bool) -> None:
    ran: list[int] = []
    child = work.job(lambda n: ran.append(n), topic="child")

    def parent(context: JobContext) -> None:
        child.enqueue(n=context.attempt, connection=context.transaction)
        if context.attempt == 1:
            raise ValueError("the first is undone")

    async def parent_async(context: JobContext) -> None:
        await context.transaction.run_sync(lambda c: child.enqueue(n=context.attempt, connection=c))
        if context.attempt == 1:
            raise ValueError("the first is undone")

    work.job(parent_async if is_async else parent).enqueue()
    with work.running():
        work.until_empty()
    assert ran == [2]


def test_enqueueing_against_the_handlers_own_lock_is_refused_at_once(sqlite_url: str) -> None:
    with open_queue(sqlite_url) as queue:
        work = Work(queue)
        child = work.job(lambda: None, topic="child")

        def parent(context: JobContext) -> None:
            context.transaction.execute(text("SELECT 1"))
            child.enqueue()

        work.job(parent, max_attempts=1).enqueue()
        with work.running():
            work.until_empty()
        assert "holds SQLite's write lock" in queue.dead_letters()[0]["error_message"]


def test_progress_that_cannot_be_told_costs_no_attempt(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise Ambiguous("the connection broke")

    monkeypatch.setattr(type(work.queue.store), "progress", refuse)
    work.job(lambda context: context.heartbeat(progress=1), max_attempts=1).enqueue()
    with work.running():
        work.until_empty()
    assert [entry["status"] for entry in work.queue.history()] == ["Succeeded"]


def test_a_retry_is_not_slept_over(queue: Queue) -> None:
    """Nobody tells a worker of a retry it has asked for itself, and its poll is longer than the test."""
    work = Work(queue, replace(QUICK, poll_seconds=600.0))
    attempts: list[int] = []

    def fail_at_first(context: JobContext) -> None:
        attempts.append(context.attempt)
        if len(attempts) < 4:
            raise ValueError("not yet")

    work.job(fail_at_first, retry_base_seconds=0.1, retry_max_seconds=0.1).enqueue()
    with work.running():
        work.until_empty()
    assert attempts == [1, 2, 3, 4]


def test_a_retry_asked_for_beside_the_look_is_not_slept_over(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look had its answer before the retry was written, and keeps it until the retry has been asked for."""
    work = Work(queue, replace(QUICK, poll_seconds=600.0))
    looking, asked = threading.Event(), threading.Event()
    next_due, look_for_due = type(queue.store).next_due, JobWorker._look_for_due

    def held_back(store: Any) -> Any:
        answer = next_due(store)
        looking.set()
        asked.wait(30)
        return answer

    def ask(worker: JobWorker) -> None:
        look_for_due(worker)
        if attempts:
            asked.set()

    attempts: list[int] = []

    def fail_at_first(context: JobContext) -> None:
        assert looking.wait(30)
        attempts.append(context.attempt)
        if len(attempts) < 2:
            raise ValueError("not yet")

    monkeypatch.setattr(type(queue.store), "next_due", held_back)
    monkeypatch.setattr(JobWorker, "_look_for_due", ask)
    work.job(fail_at_first).enqueue()
    with work.running():
        work.until_empty()
    assert attempts == [1, 2]
