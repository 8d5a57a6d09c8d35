"""Many threads claim, report, reap and promote at once: the account must come out even, whatever the schedule.

The second half plants the bug that the fence is there for, and shows that it is found: a suite that cannot fail proves
nothing.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TypeVar

import pytest
from sqlalchemy import text

from holdfast.core.errors import Unavailable
from holdfast.jobs import statements
from holdfast.jobs.model import (
    Claim,
    ClaimedJob,
    Failure,
    JobStatus,
    NewJob,
    PutBack,
    Stopped,
    Success,
    TopicLimits,
    WorkerId,
)
from holdfast.jobs.stores import base, portable
from tests.components.named_pools import named_engine
from tests.components.processes import wait_until
from tests.jobs.queues import ANNE, Queue, next_suspect

Answer = TypeVar("Answer")
JOBS = 240
WORKERS = 4
MOST_ROUNDS = 5_000


@dataclass
class Account:
    """What the workers believe to have happened."""

    claimed: list[Claim] = field(default_factory=list)
    completed: list[Claim] = field(default_factory=list)
    reaped: list[Claim] = field(default_factory=list)


def at_once(jobs: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Run them in threads that start together; return what they return."""
    gate = threading.Barrier(len(jobs))

    def behind_gate(job: Callable[[], Answer]) -> Answer:
        gate.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as threads:
        return list(threads.map(behind_gate, jobs))


def repeated(change: Callable[[], Answer]) -> Answer:
    """Do a change until the database has time for it: every change of the store may be repeated."""
    for _ in range(100):
        try:
            return change()
        except Unavailable:
            continue
    raise AssertionError("The database never had time.")


class Worker:
    """Claims a few jobs at a time; of the first two attempts of a job, some fail, go back or are forgotten.

    Half of what was forgotten is remembered when its lease is over: such a report races with whoever reaps.
    """

    def __init__(self, queue: Queue, number: int, account: Account) -> None:
        self._store = queue.store
        self._queue = queue
        self._id = WorkerId(f"worker-{number}")
        self._keeps_time = number == 0
        self._account = account
        self._forgotten: list[tuple[float, Claim]] = []

    def run(self) -> None:
        for _ in range(MOST_ROUNDS):
            if self._round() == 0 and not repeated(self._store.stats):
                return
        raise AssertionError("The queue was never empty.")

    def _round(self) -> int:
        repeated(self._store.promote)
        jobs = repeated(lambda: self._store.claim(self._id, {"email": ["send"]}, 7))
        suspect = repeated(lambda: next_suspect(self._store, self._id))
        jobs += [suspect.job] if suspect is not None else []
        self._account.claimed += [job.claim for job in jobs]
        if jobs:
            repeated(lambda: self._store.heartbeat(self._id, [job.claim for job in jobs]))
            self._report(jobs)
        elif self._keeps_time:
            self._queue.step(31)
        self._remember()
        self._account.reaped += repeated(self._store.reap)
        return len(jobs)

    def _report(self, jobs: list[ClaimedJob]) -> None:
        ways: dict[str, list[ClaimedJob]] = {"complete": [], "fail": [], "put_back": [], "forget": []}
        for job in jobs:
            is_unlucky = job.attempt <= 2
            ways[list(ways)[(job.id + job.attempt) % 4] if is_unlucky else "complete"].append(job)
        successes = [Success(job.claim, 1) for job in ways["complete"]]
        self._account.completed += repeated(lambda: self._store.complete(self._id, successes))
        failed = [Failure(job.claim, 1, "boom", retry_seconds=0.0) for job in ways["fail"]]
        repeated(lambda: self._store.fail(self._id, failed))
        repeated(lambda: self._store.put_back(self._id, [PutBack(job.claim) for job in ways["put_back"]]))
        self._forgotten += [(self._queue.ahead_seconds, job.claim) for job in ways["forget"] if job.id % 2 == 0]

    def _remember(self) -> None:
        now = self._queue.ahead_seconds
        late = [Success(claim, 1) for since, claim in self._forgotten if since < now]
        self._forgotten = [item for item in self._forgotten if item[0] >= now]
        self._account.completed += repeated(lambda: self._store.complete(self._id, late))


def test_every_job_ends_once_whatever_the_schedule(queue: Queue) -> None:  # [CLAIM-1] [FENCE-2] [REAP-1]
    new = NewJob(topic="email", operation="send", payload="{}", max_attempts=None, retry_base_seconds=0.001)
    assert queue.store.enqueue_many([new] * JOBS) == JOBS
    account = Account()
    workers = [Worker(queue, number, account) for number in range(WORKERS)]
    at_once([worker.run for worker in workers])

    assert most_often(account.claimed) == 1
    assert most_often(account.reaped) == 1
    assert not set(account.reaped) & set(account.completed)
    entries = [(entry["item_id"], entry["attempt"], entry["status"]) for entry in queue.history()]
    assert most_often([(item, attempt) for item, attempt, _ in entries]) == 1
    succeeded = [(item, attempt) for item, attempt, status in entries if status == "Succeeded"]
    assert len({item for item, _ in succeeded}) == len(succeeded) == JOBS
    assert sorted(succeeded) == sorted((f"job-{claim.id}", claim.attempt) for claim in account.completed)
    assert account.reaped


def most_often(items: Sequence[object]) -> int:
    return max(Counter(items).values())


def test_a_limit_holds_however_many_claim_at_once(queue: Queue) -> None:  # [LIMIT-1]
    most_running = 5
    queue.store.set_limits("email", TopicLimits(max_running=most_running))
    queue.store.enqueue_many([NewJob(topic="email", operation="send", payload="{}")] * 60)

    def work(worker: WorkerId) -> list[int]:
        seen = []
        while repeated(queue.store.stats):
            jobs = repeated(lambda: queue.claim_limited(4, worker))
            seen.append(queue.rows("SELECT count(*) AS n FROM holdfast_jobs WHERE status = 'running'")[0]["n"])
            repeated(partial(queue.store.complete, worker, [Success(job.claim, 1) for job in jobs]))
        return seen

    seen = at_once([partial(work, WorkerId(f"worker-{number}")) for number in range(WORKERS)])
    assert max(chain.from_iterable(seen)) <= most_running
    assert len(queue.history()) == 60


def test_a_unique_key_is_won_once(queue: Queue) -> None:
    keys = [f"key-{number}" for number in range(20)]

    def add_all() -> list[bool]:
        return [repeated(partial(queue.add, unique_key=key)).is_new for key in keys]

    won = at_once([add_all] * WORKERS)
    assert [sum(of_key) for of_key in zip(*won, strict=True)] == [1] * len(keys)
    assert len(queue.claim(1000)) == len(keys)


def test_a_slot_is_won_once(queue: Queue) -> None:  # [PERIODIC-1]
    slots = [datetime(2030, 1, 1, hour, tzinfo=UTC) for hour in range(20)]

    def take(slot: datetime) -> bool:
        with queue.store.transaction() as connection:
            return queue.store.take_slot(connection, "nightly", slot)

    def take_all() -> list[bool]:
        return [repeated(partial(take, slot)) for slot in slots]

    won = at_once([take_all] * WORKERS)
    assert max(sum(of_slot) for of_slot in zip(*won, strict=True)) == 1
    assert sum(of_slot[-1] for of_slot in won) == 1


def test_a_locked_job_is_passed_by(queue: Queue) -> None:
    if queue.engine.dialect.name == "sqlite":
        pytest.skip("SQLite locks no rows")
    locked, free = queue.add(), queue.add()
    with queue.engine.begin() as connection:
        connection.execute(text(f"SELECT id FROM holdfast_jobs WHERE id = {locked.id} FOR UPDATE"))
        assert [job.id for job in queue.claim()] == [free.id]
    assert [job.id for job in queue.claim()] == [locked.id]


Change = Callable[[Queue, Sequence[ClaimedJob]], object]
CHANGES: dict[str, Change] = {
    "heartbeat": lambda queue, jobs: queue.store.heartbeat(ANNE, [job.claim for job in jobs]),
    "complete": lambda queue, jobs: queue.store.complete(ANNE, [Success(job.claim, 1) for job in jobs]),
    "keep": lambda queue, jobs: queue.store.complete(ANNE, [Success(job.claim, 1, None, True) for job in jobs]),
    "fail": lambda queue, jobs: queue.store.fail(ANNE, [Failure(job.claim, 1, "boom") for job in jobs]),
    "put back": lambda queue, jobs: queue.store.put_back(ANNE, [PutBack(job.claim) for job in jobs]),
    "stop": lambda queue, jobs: queue.store.end_cancelled(ANNE, [Stopped(job.claim, 1) for job in jobs]),
    "cancel": lambda queue, jobs: queue.store.cancel([job.id for job in jobs], "no"),
    "retry": lambda queue, jobs: queue.store.retry([job.id for job in jobs], "eve"),
}


@pytest.mark.parametrize("way", CHANGES)
def test_jobs_are_locked_in_the_order_of_their_ids(queue: Queue, way: str) -> None:
    """Two that change the same jobs cannot wait for each other, in whatever order they were told of them."""
    if queue.engine.dialect.name == "sqlite":
        pytest.skip("SQLite locks no rows")
    worker = Queue(named_engine(queue.engine.url.render_as_string(hide_password=False)))
    jobs = three_claimed(queue, way)
    with ThreadPoolExecutor(1) as thread, queue.engine.begin() as other:
        other.execute(text(f"SELECT id FROM holdfast_jobs WHERE id = {jobs[0].id} FOR UPDATE"))
        changing = thread.submit(CHANGES[way], worker, jobs[::-1])
        wait_until(lambda: is_waiting(queue), "the change waits for the first job")
        free = other.execute(text("SELECT id FROM holdfast_jobs ORDER BY id FOR UPDATE SKIP LOCKED")).scalars().all()
        assert list(free) == [job.id for job in jobs]
        other.rollback()
        assert len(changing.result()) == len(jobs)  # type: ignore[arg-type] # each returns what it changed
    worker.engine.dispose()


def three_claimed(queue: Queue, way: str) -> list[ClaimedJob]:
    for _ in range(3):
        queue.add()
    jobs = sorted(queue.claim(3), key=lambda job: job.id)
    if way in ("stop", "retry"):
        CHANGES["cancel"](queue, jobs)
    if way == "retry":
        CHANGES["stop"](queue, jobs)
    return jobs


def is_waiting(queue: Queue) -> bool:
    if queue.engine.dialect.name == "postgresql":
        in_line = "wait_event_type = 'Lock' AND datname = current_database()"
        return bool(queue.rows(f"SELECT 1 FROM pg_stat_activity WHERE {in_line}"))
    [waits] = queue.rows("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
    return int(waits["Value"]) > 0


class TestPlantedBug:
    """Claim, expire, reap, the same worker claims again, the OLD claim completes. [FENCE-2]"""

    def test_with_the_guard_the_old_claim_changes_nothing(self, queue: Queue) -> None:
        old, new = self.claimed_again(queue)
        assert queue.store.complete(ANNE, [Success(old.claim, 1)]) == set()
        assert ends_of(queue) == []
        assert queue.store.complete(ANNE, [Success(new.claim, 1)]) == {new.claim}
        assert ends_of(queue) == [(2, "Succeeded")]

    def test_without_the_attempt_in_the_guard_it_ends_a_second_time(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, new = self.claimed_again(queue)
        plant(monkeypatch)
        assert queue.store.complete(ANNE, [Success(old.claim, 1)])
        assert len(ends_of(queue)) == 1
        assert queue.store.get(old.id) is None
        assert queue.store.heartbeat(ANNE, [new.claim]) == {}

    @staticmethod
    def claimed_again(queue: Queue) -> tuple[ClaimedJob, ClaimedJob]:
        queue.add(retry_base_seconds=0.001)
        old = queue.claim_one()
        queue.step(31)
        assert queue.store.reap() == {old.claim: JobStatus.SUSPECT}
        new = queue.claim_suspect()
        assert new.claim == Claim(old.id, new.attempt)
        return old, new


def ends_of(queue: Queue) -> list[tuple[int, str]]:
    return [(entry["attempt"], entry["status"]) for entry in queue.history()]


_ATTEMPT_GUARDS = (
    re.compile(r"AND job\.attempt = report\.attempt"),
    re.compile(r"AND \(job\.id, job\.attempt\) IN \(SELECT report\.id, report\.attempt FROM .*AS report\)", re.DOTALL),
)


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the attempt out of the guard of completions, on every database."""

    def without_guard(sql: str) -> str:
        for guard in _ATTEMPT_GUARDS:
            sql = guard.sub("", sql)
        return sql

    def planted_statement(dialect: str, name: str) -> str:
        sql = statements.statement(dialect, name)
        return without_guard(sql) if name == "complete" else sql

    def planted_script(dialect: str, name: str) -> tuple[str, ...]:
        found = statements.script(dialect, name)
        return tuple(map(without_guard, found)) if name == "complete" else found

    monkeypatch.setattr(base, "statement", planted_statement)
    monkeypatch.setattr(portable, "script", planted_script)
