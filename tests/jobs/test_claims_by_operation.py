"""Which jobs are claimed, and in which order: those the worker can run, by priority, then by when they became ready."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from holdfast.jobs.model import ClaimedJob, Failure, JobId, NewJob, PutBack, TopicLimits
from holdfast.jobs.stores.base import ALIVE_SECONDS, FORGOTTEN_SECONDS
from tests.jobs.queues import ANNE, BERT, Queue

BOTH = ("send", "print")
MANY = 3000


def ids(jobs: list[ClaimedJob]) -> list[JobId]:
    return [job.id for job in jobs]


def add_foreign(queue: Queue, **options: object) -> None:
    """Put jobs in front that a worker with the handler `send` cannot run."""
    foreign = NewJob(topic="email", operation="foreign", payload="", priority=9, **options)  # type: ignore[arg-type] # as given
    queue.store.enqueue_batch(foreign, ("{}" for _ in range(MANY)))


class TestOperations:
    def test_only_what_the_worker_can_run_is_claimed(self, queue: Queue) -> None:
        add_foreign(queue)
        wanted = [queue.add().id, queue.add(operation="print").id]
        assert ids(queue.claim(operations=("send",))) == wanted[:1]
        assert ids(queue.claim(operations=("send", "print", "other"))) == wanted[1:]
        assert queue.claim(operations=("send", "print")) == []
        [left] = queue.rows("SELECT count(*) AS n, max(attempt) AS attempts FROM holdfast_jobs WHERE status = 'ready'")
        assert (left["n"], left["attempts"]) == (MANY, 0)

    def test_a_topic_without_operations_gives_nothing(self, queue: Queue) -> None:
        queue.add()
        assert queue.claim(operations=()) == []
        assert queue.claim_limited(operations=()) == []

    def test_priorities_hold_across_operations(self, queue: Queue) -> None:
        added = [
            queue.add(operation=operation, priority=priority).id
            for operation, priority in (("send", 0), ("print", 5), ("send", 5), ("print", -1), ("send", 9))
        ]
        assert ids(queue.claim(3, operations=BOTH)) == [added[4], added[1], added[2]]
        assert ids(queue.claim(3, operations=BOTH)) == [added[0], added[3]]

    def test_operations_of_a_priority_come_in_the_order_they_became_ready(self, queue: Queue) -> None:
        added = [queue.add(operation=BOTH[number % 2]).id for number in range(9)]
        claimed = [queue.claim(4, operations=BOTH) for _ in range(3)]
        assert [job.id for jobs in claimed for job in jobs] == added

    def test_earlier_topics_come_first_whatever_their_operations(self, queue: Queue) -> None:
        queue.add("sms", "print", priority=9)
        queue.add("sms", "send", priority=9)
        mail = [queue.add(operation="print").id, queue.add().id]
        assert sorted(ids(queue.claim(2, topics=("email", "sms"), operations=BOTH))) == mail
        assert len(queue.claim(9, topics=("email", "sms"), operations=BOTH)) == 2

    def test_what_others_claim_at_this_moment_hides_nothing(self, queue: Queue) -> None:
        if queue.engine.dialect.name == "sqlite":
            pytest.skip("SQLite has one writer at a time")
        taken = [queue.add(priority=9).id for _ in range(3)]
        free = queue.add(operation="print").id
        with locked(queue, taken):
            assert ids(queue.claim(3, operations=BOTH)) == [free]
        assert ids(queue.claim(3, operations=BOTH)) == taken

    def test_a_paused_topic_gives_nothing(self, queue: Queue) -> None:
        queue.add()
        queue.add(operation="print")
        queue.store.pause("email", True)
        assert queue.claim(operations=BOTH) == []

    def test_what_is_ready_can_be_listed_by_operation(self, queue: Queue) -> None:
        queue.add()
        queue.add(operation="keyed", limit_key="k")
        queue.add(operation="later", run_at=datetime.now(UTC) + timedelta(hours=1))
        queue.add("sms", "other")
        assert queue.store.ready_operations("email") == ["keyed", "send"]
        assert queue.store.ready_operations("nobody's") == []


class TestReadiness:
    """Order within a priority is by when a job became ready, then by id."""

    def test_a_scheduled_job_is_behind_what_was_ready_before_it_was_due(self, queue: Queue) -> None:
        scheduled = queue.add(run_at=datetime.now(UTC) + timedelta(minutes=1)).id
        early = queue.add().id
        queue.step(90)
        late = queue.add().id
        assert queue.store.promote() == 1  # later than it was due: that must not cost it its place
        assert ids(queue.claim()) == [early, scheduled, late]

    @pytest.mark.parametrize("ending", ["snoozed", "retried", "by hand"])
    def test_what_comes_again_is_behind_what_became_ready_meanwhile(self, queue: Queue, ending: str) -> None:
        again = queue.add().id
        job = queue.claim_one()
        queue.step(10)
        others = [queue.add().id for _ in range(2)]
        if ending == "snoozed":
            queue.store.put_back(ANNE, [PutBack(job.claim, 1)])
        else:
            queue.store.fail(ANNE, [Failure(job.claim, 1, "boom", 1.0, is_final=ending == "by hand")])
        queue.step(10)
        if ending == "by hand":
            queue.store.retry([again], "eve")
        queue.store.promote()
        assert ids(queue.claim()) == [*others, again]

    def test_what_a_worker_gives_back_keeps_its_place(self, queue: Queue) -> None:
        added = [queue.add().id for _ in range(3)]
        job = queue.claim_one()
        queue.step(10)
        queue.add()
        queue.store.put_back(ANNE, [PutBack(job.claim)])
        assert ids(queue.claim(3)) == added

    def test_the_oldest_ready_is_told_by_when_it_became_ready(self, queue: Queue) -> None:
        queue.add()
        queue.step(100)
        queue.store.put_back(ANNE, [PutBack(queue.claim_one().claim)])
        [stats] = queue.store.stats()
        assert stats.oldest_ready_seconds is not None
        assert 99 < stats.oldest_ready_seconds < 200


class TestLimitedTopics:
    @pytest.fixture(autouse=True)
    def _limited(self, queue: Queue) -> None:
        queue.store.set_limits("email", TopicLimits(max_running_per_key=1))

    def test_keys_whose_jobs_are_foreign_are_in_nobodys_way(self, queue: Queue) -> None:
        queue.store.enqueue_many(
            [
                NewJob(topic="email", operation="foreign", payload="{}", limit_key=f"a{number:04}", priority=9)
                for number in range(MANY)
            ]
        )
        add_foreign(queue)
        wanted = [queue.add(limit_key=key).id for key in ("a0001", "b", "c", None)]
        assert sorted(ids(queue.claim_limited(operations=("send",)))) == wanted
        [left] = queue.rows("SELECT max(attempt) AS attempts FROM holdfast_jobs WHERE operation = 'foreign'")
        assert left["attempts"] == 0

    def test_order_and_limits_hold_across_operations(self, queue: Queue) -> None:
        first = queue.add(limit_key="k", operation="print").id
        urgent = queue.add(limit_key="k", priority=5).id
        other = queue.add(limit_key="z").id
        free = [queue.add(operation=operation).id for operation in BOTH]
        assert sorted(ids(queue.claim_limited(operations=BOTH))) == [urgent, other, *free]
        assert queue.claim_limited(operations=BOTH, worker=BERT) == []
        [job] = queue.rows(f"SELECT status FROM holdfast_jobs WHERE id = {first}")
        assert job["status"] == "ready"

    def test_a_key_gives_its_jobs_in_the_order_they_became_ready(self, queue: Queue) -> None:
        scheduled = queue.add(limit_key="k", run_at=datetime.now(UTC) + timedelta(minutes=1)).id
        queue.step(90)
        late = [queue.add(limit_key="k", operation=operation).id for operation in BOTH]
        queue.store.promote()
        queue.store.set_limits("email", TopicLimits(max_running=1))
        order = []
        for _ in range(3):
            [job] = queue.claim_limited(operations=BOTH)
            order.append(job.id)
            queue.store.fail(ANNE, [Failure(job.claim, 1, "done with it", is_final=True)])
        assert order == [scheduled, *late]


class TestJobsWithoutWorker:
    """What no live worker has announced is counted."""

    def test_it_is_counted_by_operation_until_a_worker_can_run_it(self, queue: Queue) -> None:
        for operation in ("send", "send", "print"):
            queue.add(operation=operation)
        queue.add("sms")
        assert without_worker(queue) == {"email": {"send": 2, "print": 1}, "sms": {"send": 1}}
        queue.store.announce(ANNE, {"email": ["send"]})
        assert without_worker(queue) == {"email": {"print": 1}, "sms": {"send": 1}}
        queue.store.announce(BERT, {"email": None})  # any operation
        assert without_worker(queue) == {"email": {}, "sms": {"send": 1}}

    def test_a_worker_that_stops_or_dies_counts_no_more(self, queue: Queue) -> None:
        queue.add()
        queue.store.announce(ANNE, {"email": ["send"]})
        queue.store.withdraw(ANNE)
        assert without_worker(queue) == {"email": {"send": 1}}
        queue.store.announce(ANNE, {"email": ["send"]})
        queue.step(ALIVE_SECONDS - 10)
        assert without_worker(queue) == {"email": {}}
        queue.step(20)
        assert without_worker(queue) == {"email": {"send": 1}}

    def test_the_dead_are_forgotten_and_the_living_not_counted_twice(self, queue: Queue) -> None:
        queue.store.announce(BERT, {"email": ["send"]})
        queue.step(FORGOTTEN_SECONDS + 10)
        for _ in range(2):
            queue.store.announce(ANNE, {"email": ["send"]})
        [row] = queue.rows("SELECT * FROM holdfast_workers")
        assert (row["id"], json.loads(row["operations"])) == (ANNE, {"email": ["send"]})

    def test_what_is_not_ready_is_not_counted(self, queue: Queue) -> None:
        queue.add(run_at=datetime.now(UTC) + timedelta(hours=1))
        queue.add()
        queue.claim_one()
        assert without_worker(queue) == {"email": {}}


def without_worker(queue: Queue) -> dict[str, dict[str, int]]:
    return {stats.topic: stats.without_worker for stats in queue.store.stats()}


@contextmanager
def locked(queue: Queue, job_ids: list[JobId]) -> Iterator[None]:
    """Hold jobs as a claim does that has not ended yet."""
    with queue.store.transaction() as connection:
        for job_id in job_ids:  # one by one: MariaDB would lock all it reads
            connection.execute(text(f"SELECT id FROM holdfast_jobs WHERE id = {job_id} FOR UPDATE"))
        yield
