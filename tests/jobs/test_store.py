"""What every queue store must do, whatever the database: one suite over all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Connection

from holdfast.core.errors import JobError, Unavailable
from holdfast.database.pools import writing
from holdfast.jobs.fair_order import Candidate
from holdfast.jobs.model import (
    Attempt,
    Claim,
    ClaimedJob,
    Failure,
    JobId,
    JobStatus,
    NewJob,
    PutBack,
    Stopped,
    Success,
    TopicLimits,
    WorkerId,
)
from holdfast.jobs.stores import base
from tests.jobs.conftest import DATABASES
from tests.jobs.queues import ANNE, BERT, Queue, next_suspect, open_queue


@pytest.fixture(params=(*DATABASES, "postgres15_url"))
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    """One more database than elsewhere: this suite is what a store must pass."""
    with open_queue(request.getfixturevalue(request.param)) as opened:
        yield opened


def succeeded(job: ClaimedJob, output: str | None = None) -> Success:
    return Success(job.claim, 5, output, job.unique_seconds is not None)


def failed(job: ClaimedJob, error: str = "boom", retry_seconds: float | None = None, is_final: bool = False) -> Failure:
    return Failure(job.claim, 5, error, retry_seconds, is_final)


class TestClaiming:
    def test_a_claim_grants_the_lease_in_the_same_change(self, queue: Queue) -> None:  # [CLAIM-1]
        added = queue.add(lease_seconds=30)
        job = queue.claim_one()
        assert (job.id, job.attempt) == (added.id, 1)
        found = queue.store.get(added.id)
        assert found is not None
        assert found.status is JobStatus.RUNNING
        assert found.columns["locked_by"] == ANNE
        assert found.columns["lease_until"] > found.columns["read_at"]

    @pytest.mark.parametrize("broken", ["locked_by = NULL", "lease_until = NULL"])
    def test_a_running_row_without_a_lease_cannot_exist(self, queue: Queue, broken: str) -> None:  # [CLAIM-1]
        queue.add()
        queue.claim_one()
        with pytest.raises(Exception, match=r"(?i)constraint|check"), queue.engine.begin() as connection:
            connection.execute(text(f"UPDATE holdfast_jobs SET {broken}"))

    def test_a_job_is_claimed_once(self, queue: Queue) -> None:
        queue.add()
        assert len(queue.claim()) == 1
        assert queue.claim(worker=BERT) == []

    def test_higher_priority_first_then_in_order(self, queue: Queue) -> None:
        ids = [queue.add(priority=priority).id for priority in (0, 5, 0, 9)]
        assert [job.id for job in queue.claim(3)] == [ids[3], ids[1], ids[0]]
        assert [job.id for job in queue.claim(3)] == [ids[2]]

    def test_earlier_topics_first_and_never_more_than_the_capacity(self, queue: Queue) -> None:
        for topic in ("a", "b", "b", "a"):
            queue.add(topic)
        claimed = queue.claim(3, topics=("b", "a"))
        assert sorted(job.topic for job in claimed) == ["a", "b", "b"]

    def test_other_topics_are_left_alone(self, queue: Queue) -> None:
        queue.add("other")
        assert queue.claim() == []

    def test_no_capacity_or_no_topics_claims_nothing(self, queue: Queue) -> None:
        queue.add()
        assert queue.claim(0) == []
        assert queue.claim(topics=()) == []

    def test_a_scheduled_job_waits_for_its_time(self, queue: Queue) -> None:
        added = queue.add(run_at=datetime.now(UTC) + timedelta(hours=1))
        assert queue.store.promote() == 0
        assert queue.claim() == []
        due_in = queue.store.next_due().seconds
        assert due_in is not None
        assert 3500 < due_in < 3601  # the database's clock is read after ours
        queue.step(3601)
        assert queue.store.promote() == 1
        assert queue.claim_one().id == added.id
        assert queue.store.next_due().seconds is None

    def test_a_time_without_zone_is_refused(self, queue: Queue) -> None:
        with pytest.raises(JobError, match="no time zone"):
            queue.add(run_at=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point
        assert queue.store.stats() == []

    def test_payload_and_options_come_back_as_they_were(self, queue: Queue) -> None:
        payload = '{"text": "ünï \\" \' ; \\n %s :now", "n": 12345678901234567890}'
        queue.add(payload=payload, correlation_id="c-1", instance_id="i-1", tags='["x"]', max_attempts=None)
        job = queue.claim_one()
        assert (job.payload, job.correlation_id, job.instance_id) == (payload, "c-1", "i-1")
        assert (job.tags, job.max_attempts) == ('["x"]', None)


class TestFencing:
    """Every report carries (id, worker, attempt); a stale one changes nothing. [FENCE-2]"""

    def test_another_workers_claim_is_refused(self, queue: Queue) -> None:
        queue.add()
        job = queue.claim_one()
        assert queue.store.complete(BERT, [succeeded(job)]) == set()
        assert queue.store.fail(BERT, [failed(job)]) == {}
        assert queue.store.put_back(BERT, [PutBack(job.claim)]) == {}
        assert queue.store.heartbeat(BERT, [job.claim]) == {}
        assert not queue.store.progress(BERT, job.claim, "1")
        assert queue.status(job.id) == "running"
        assert queue.history() == []

    def test_the_same_workers_older_claim_is_refused(self, queue: Queue) -> None:
        queue.add(retry_base_seconds=0.001)
        old = queue.claim_one()
        queue.step(31)
        queue.store.reap()
        new = queue.claim_suspect()
        assert (new.id, new.attempt) == (old.id, 2)
        assert queue.store.complete(ANNE, [succeeded(old)]) == set()
        assert queue.store.fail(ANNE, [failed(old)]) == {}
        assert queue.store.heartbeat(ANNE, [old.claim, new.claim]) == {new.claim: None}
        assert queue.store.complete(ANNE, [succeeded(new)]) == {new.claim}

    def test_attempt_zero_matches_nothing(self, queue: Queue) -> None:
        queue.add()
        job = queue.claim_one()
        assert queue.store.complete(ANNE, [Success(Claim(job.id, Attempt(0)), 1)]) == set()

    def test_a_stale_completion_inside_a_transaction_says_so(self, queue: Queue) -> None:
        queue.add()
        job = queue.claim_one()
        with writing(queue.engine) as connection, connection.begin() as transaction:
            assert not queue.store.complete_on(connection, BERT, succeeded(job))
            transaction.rollback()
        with writing(queue.engine) as connection, connection.begin():
            assert queue.store.complete_on(connection, ANNE, succeeded(job))
        assert queue.status(job.id) is None

    @pytest.mark.parametrize("way", ["complete", "fail", "put_back", "cancel", "reap"])
    def test_every_way_out_of_running_clears_the_owner(self, queue: Queue, way: str) -> None:
        queue.add(unique_key="k", unique_seconds=60.0)
        job = queue.claim_one()
        if way == "complete":
            queue.store.complete(ANNE, [succeeded(job)])
        elif way == "fail":
            queue.store.fail(ANNE, [failed(job)])
        elif way == "put_back":
            queue.store.put_back(ANNE, [PutBack(job.claim)])
        elif way == "cancel":
            queue.store.cancel([job.id], "no longer wanted")
            queue.store.end_cancelled(ANNE, [Stopped(job.claim, 3)])
        else:
            queue.step(31)
            queue.store.reap()
        assert queue.column(job.id, "status") != "running"
        assert queue.column(job.id, "locked_by") is None
        assert queue.column(job.id, "lease_until") is None


class TestReports:
    def test_success_becomes_history_and_leaves_the_queue(self, queue: Queue) -> None:
        queue.add(payload='{"n": 1}')
        job = queue.claim_one()
        assert queue.store.complete(ANNE, [succeeded(job, '{"ok": true}')]) == {job.claim}
        assert queue.store.get(job.id) is None
        [entry] = queue.history()
        assert (entry["engine"], entry["operation"], entry["status"]) == ("jobs:email", "send", "Succeeded")
        assert (entry["input"], entry["output"], entry["duration_ms"]) == ('{"n": 1}', '{"ok": true}', 5)
        assert (entry["correlation_id"], entry["item_id"]) == (f"job-{job.id}", f"job-{job.id}")
        assert (entry["instance_id"], entry["attempt"]) == ("publisher", 1)
        assert queue.store.has_landed(job)

    def test_a_batch_is_accepted_claim_by_claim(self, queue: Queue) -> None:
        for _ in range(5):
            queue.add()
        jobs = queue.claim()
        stale = Success(Claim(jobs[1].id, Attempt(9)), 1)
        accepted = queue.store.complete(ANNE, [succeeded(jobs[0]), stale, succeeded(jobs[2])])
        assert accepted == {jobs[0].claim, jobs[2].claim}
        assert len(queue.history()) == 2

    def test_what_is_said_twice_counts_once(self, queue: Queue) -> None:
        queue.add()
        job = queue.claim_one()
        assert queue.store.heartbeat(ANNE, [job.claim] * 2) == {job.claim: None}
        assert queue.store.complete(ANNE, [succeeded(job)] * 2) == {job.claim}
        assert len(queue.history()) == 1
        other = queue.add().id
        assert queue.store.cancel([other, other], "twice") == {other: JobStatus.CANCELLED}
        assert queue.store.retry([other, other], "eve") == {other}
        assert len(queue.history()) == 2

    def test_nothing_to_report_changes_nothing(self, queue: Queue) -> None:
        assert queue.store.heartbeat(ANNE, []) == {}
        assert queue.store.complete(ANNE, []) == set()
        assert queue.store.fail(ANNE, []) == {}
        assert queue.store.put_back(ANNE, []) == {}

    def test_failure_is_retried_with_growing_pauses_then_dead(self, queue: Queue) -> None:  # [RETRY-1]
        added = queue.add(payload='{"n": 1}', max_attempts=3, retry_base_seconds=10, correlation_id="c-7")
        delays = []
        for number in (1, 2):
            job = queue.claim_one()
            assert queue.store.fail(ANNE, [failed(job, f"boom {number}")]) == {job.claim: JobStatus.SCHEDULED}
            delay = queue.store.next_due().seconds
            assert delay is not None
            delays.append(delay)
            queue.step(delay + 1)
            queue.store.promote()
        assert 7 <= delays[0] <= 13
        assert 14 <= delays[1] <= 26
        job = queue.claim_one()
        assert job.failures == 2
        assert queue.store.fail(ANNE, [failed(job, "boom 3")]) == {job.claim: JobStatus.DEAD}
        [letter] = queue.dead_letters()
        assert (letter["engine"], letter["original_queue"], letter["status"]) == ("jobs:email", "email", "Pending")
        assert (letter["original_message"], letter["error_message"]) == ('{"n": 1}', "boom 3")
        assert (letter["dequeue_count"], letter["correlation_id"]) == (3, "c-7")
        assert letter["first_failure_at"] < letter["last_failure_at"]
        assert letter["row_key"].startswith(f"job-{added.id}-")
        assert [entry["error"] for entry in queue.history()] == ["boom 1", "boom 2", "boom 3"]
        assert not queue.store.has_landed(job)

    def test_a_pause_of_the_handlers_own_choice(self, queue: Queue) -> None:
        queue.add()
        queue.store.fail(ANNE, [failed(queue.claim_one(), retry_seconds=500)])
        due_in = queue.store.next_due().seconds
        assert due_in is not None
        assert 490 < due_in < 500.001  # SQLite's times have no more digits

    @pytest.mark.parametrize("way", ["fail", "put_back"])
    def test_a_pause_without_end_ends_in_a_hundred_years(self, queue: Queue, way: str) -> None:
        queue.add()
        job = queue.claim_one()
        if way == "fail":
            assert queue.store.fail(ANNE, [failed(job, retry_seconds=math.inf)]) == {job.claim: JobStatus.SCHEDULED}
        else:
            assert queue.store.put_back(ANNE, [PutBack(job.claim, math.inf)]) == {job.claim: None}
        due_in = queue.store.next_due().seconds
        assert due_in is not None
        assert 99 < due_in / 86_400 / 365 < 101

    def test_a_final_failure_is_dead_at_once_and_uncounted(self, queue: Queue) -> None:
        queue.add(max_attempts=5)
        job = queue.claim_one()
        assert queue.store.fail(ANNE, [failed(job, "bad address", is_final=True)]) == {job.claim: JobStatus.DEAD}
        assert queue.column(job.id, "failures") == 0
        assert len(queue.dead_letters()) == 1

    def test_without_a_maximum_a_job_is_retried_for_ever(self, queue: Queue) -> None:
        queue.add(max_attempts=None, retry_base_seconds=0.001, retry_max_seconds=1)
        for _ in range(12):
            job = queue.claim_one()
            assert queue.store.fail(ANNE, [failed(job)]) == {job.claim: JobStatus.SCHEDULED}
            queue.step(5)
            queue.store.promote()

    def test_putting_back_counts_no_failure_but_the_attempt_grows(self, queue: Queue) -> None:
        queue.add()
        first = queue.claim_one()
        assert queue.store.put_back(ANNE, [PutBack(first.claim)]) == {first.claim: None}
        second = queue.claim_one()
        assert (second.attempt, second.failures) == (2, 0)
        queue.store.put_back(ANNE, [PutBack(second.claim, 60.0, "later")])
        assert queue.claim() == []
        assert queue.column(first.id, "last_error") == "later"
        queue.step(61)
        queue.store.promote()
        assert queue.claim_one().attempt == 3
        assert queue.history() == []

    def test_long_texts_survive_to_the_dead_letters(self, queue: Queue) -> None:
        payload = '{"text": "' + "ä" * 300_000 + '"}'
        queue.add(payload=payload, max_attempts=1)
        queue.store.fail(ANNE, [failed(queue.claim_one(), "e" * 100_000)])
        [letter] = queue.dead_letters()
        assert letter["original_message"] == payload
        assert letter["error_message"] == "e" * 100_000


class TestWatchdog:
    def test_an_expired_lease_of_what_had_begun_is_reported_for_the_worker(self, queue: Queue) -> None:  # [REAP-1]
        queue.add(lease_seconds=30)
        job = queue.claim_one()
        assert queue.store.begin(ANNE, job.claim)
        queue.step(29)
        assert queue.store.reap() == {}
        queue.step(2)
        assert queue.store.reap() == {job.claim: JobStatus.SUSPECT}
        assert queue.column(job.id, "last_error") == "worker lease expired"
        assert queue.column(job.id, "failures") == 1
        [entry] = queue.history()
        assert (entry["status"], entry["error"]) == ("Failed", "worker lease expired")
        assert queue.store.reap() == {}

    def test_recovery_takes_at_most_the_lease_and_one_tick(self, queue: Queue) -> None:  # [REAP-1]
        lease_seconds, tick_seconds = 30.0, 10.0
        queue.add(lease_seconds=lease_seconds, retry_base_seconds=0.001)
        queue.claim_one()
        waited = 0.0
        while not queue.store.reap():
            queue.step(tick_seconds)
            waited += tick_seconds
        assert waited <= lease_seconds + tick_seconds

    def test_a_beat_keeps_the_lease(self, queue: Queue) -> None:
        queue.add(lease_seconds=30)
        job = queue.claim_one()
        for _ in range(5):
            queue.step(20)
            assert queue.store.heartbeat(ANNE, [job.claim]) == {job.claim: None}
            assert queue.store.reap() == {}

    def test_a_job_that_kills_its_workers_ends_in_the_dead_letters(self, queue: Queue) -> None:
        queue.add(max_attempts=3, retry_base_seconds=0.001)
        queue.claim_one()
        deaths = 0
        while not queue.dead_letters():
            queue.step(31)
            queue.store.reap()
            deaths += 1
            queue.step(1)
            found = next_suspect(queue.store, ANNE)
            assert found is None or queue.store.begin(ANNE, found.job.claim)
        assert deaths == 4
        [letter] = queue.dead_letters()
        assert (letter["error_message"], letter["dequeue_count"]) == ("worker lease expired", 4)

    def test_each_job_has_its_own_lease(self, queue: Queue) -> None:
        short, long = queue.add(lease_seconds=5).id, queue.add(lease_seconds=500).id
        queue.claim()
        queue.step(6)
        assert [claim.id for claim in queue.store.reap()] == [short]
        assert queue.status(long) == "running"

    def test_no_more_than_the_limit_at_once(self, queue: Queue) -> None:
        for _ in range(5):
            queue.add()
        queue.claim()
        queue.step(31)
        assert [len(queue.store.reap(2)) for _ in range(4)] == [2, 2, 1, 0]


class TestCancelling:
    def test_a_waiting_job_is_cancelled_at_once(self, queue: Queue) -> None:
        ready, scheduled = queue.add().id, queue.add(run_at=datetime.now(UTC) + timedelta(hours=1)).id
        changed = queue.store.cancel([ready, scheduled, JobId(999)], "wrong order")
        assert changed == {ready: JobStatus.CANCELLED, scheduled: JobStatus.CANCELLED}
        assert queue.claim() == []
        assert [entry["error"] for entry in queue.history()] == ["cancelled: wrong order"] * 2

    def test_a_running_job_is_asked_to_stop(self, queue: Queue) -> None:
        queue.add()
        job = queue.claim_one()
        assert queue.store.cancel([job.id], "wrong") == {job.id: JobStatus.RUNNING}
        assert queue.store.heartbeat(ANNE, [job.claim]) == {job.claim: "wrong"}
        assert queue.store.end_cancelled(ANNE, [Stopped(job.claim, 9)]) == {job.claim}
        assert queue.status(job.id) == "cancelled"
        assert queue.history()[0]["duration_ms"] == 9

    @pytest.mark.parametrize("way", ["fail", "put_back", "reap"])
    def test_a_cancelled_job_is_not_run_again(self, queue: Queue, way: str) -> None:
        queue.add()
        job = queue.claim_one()
        queue.store.cancel([job.id], "wrong")
        if way == "fail":
            assert queue.store.fail(ANNE, [failed(job)]) == {job.claim: JobStatus.CANCELLED}
        elif way == "put_back":
            assert queue.store.put_back(ANNE, [PutBack(job.claim)]) == {job.claim: None}
        else:
            queue.step(31)
            assert queue.store.reap() == {job.claim: JobStatus.CANCELLED}
        assert queue.status(job.id) == "cancelled"
        assert len(queue.history()) == 1

    def test_a_success_that_came_first_counts(self, queue: Queue) -> None:
        queue.add()
        job = queue.claim_one()
        queue.store.cancel([job.id], "too late")
        assert queue.store.complete(ANNE, [succeeded(job)]) == {job.claim}
        assert queue.store.cancel([job.id], "again") == {}


class TestRetryByHand:
    def test_a_dead_job_comes_back_and_its_attempt_goes_on(self, queue: Queue) -> None:
        added = queue.add(max_attempts=1)
        queue.store.fail(ANNE, [failed(queue.claim_one())])
        assert queue.store.retry([added.id], "eve") == {added.id}
        job = queue.claim_one()
        assert (job.id, job.attempt, job.failures) == (added.id, 2, 0)
        [letter] = queue.dead_letters()
        assert (letter["status"], letter["resolution_notes"], letter["resolved_by"]) == ("Resolved", "Retried", "eve")
        assert letter["retried_as"] == f"job-{added.id}"
        queue.store.fail(ANNE, [failed(job)])
        assert sorted(item["status"] for item in queue.dead_letters()) == ["Pending", "Resolved"]

    def test_a_running_or_unknown_job_is_left_alone(self, queue: Queue) -> None:
        added = queue.add()
        queue.claim_one()
        assert queue.store.retry([added.id, JobId(999)], "eve") == set()

    def test_a_taken_key_is_an_error_and_nothing_changes(self, queue: Queue) -> None:
        dead = queue.add(max_attempts=1, unique_key="k")
        queue.store.fail(ANNE, [failed(queue.claim_one())])
        queue.add(unique_key="k")
        with pytest.raises(JobError, match="unique key"):
            queue.store.retry([dead.id], "eve")
        assert queue.status(dead.id) == "dead"
        assert queue.dead_letters()[0]["status"] == "Pending"


class TestUniqueKeys:
    def test_one_active_job_per_key_and_topic(self, queue: Queue) -> None:
        first = queue.add(unique_key="k")
        again = queue.add(unique_key="k")
        assert first.is_new
        assert (again.is_new, again.id) == (False, first.id)
        assert queue.add("other", unique_key="k").is_new
        job = queue.claim_one()
        assert not queue.add(unique_key="k").is_new
        queue.store.complete(ANNE, [succeeded(job)])
        assert queue.add(unique_key="k").is_new

    def test_a_retried_job_keeps_its_key_and_a_dead_one_lets_go(self, queue: Queue) -> None:
        queue.add(unique_key="k", max_attempts=2, retry_base_seconds=0.001)
        queue.store.fail(ANNE, [failed(queue.claim_one())])
        assert not queue.add(unique_key="k").is_new
        queue.step(5)
        queue.store.promote()
        queue.store.fail(ANNE, [failed(queue.claim_one())])
        assert queue.add(unique_key="k").is_new

    def test_a_window_outlives_the_job(self, queue: Queue) -> None:
        queue.add(unique_key="k", unique_seconds=100.0)
        job = queue.claim_one()
        assert queue.store.complete(ANNE, [succeeded(job)]) == {job.claim}
        assert len(queue.history()) == 1
        assert not queue.add(unique_key="k", unique_seconds=100.0).is_new
        queue.step(101)
        assert queue.add(unique_key="k", unique_seconds=100.0).is_new

    @pytest.mark.parametrize("retention_seconds", [0.0, 90 * 86_400.0])
    def test_pruning_forgets_a_window_that_has_passed(self, queue: Queue, retention_seconds: float) -> None:
        queue.add(unique_key="k", unique_seconds=100.0)
        queue.store.complete(ANNE, [succeeded(queue.claim_one())])
        assert queue.store.prune(retention_seconds) == 0
        queue.step(101)
        assert queue.store.prune(retention_seconds) == 1

    def test_a_holder_that_ends_as_it_is_looked_for_makes_room(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue.add(unique_key="k")
        job = queue.claim_one()
        find = queue.store._holder

        def ends_first(connection: Connection, new: NewJob) -> JobId | None:
            queue.store.complete_on(connection, ANNE, succeeded(job))
            return find(connection, new)

        monkeypatch.setattr(queue.store, "_holder", ends_first)
        added = queue.add(unique_key="k")
        assert added.is_new
        assert queue.claim_one().id == added.id

    def test_a_key_that_is_never_free_nor_held_is_no_silent_loss(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue.add(unique_key="k")
        monkeypatch.setattr(queue.store, "_holder", lambda *_: None)
        with pytest.raises(Unavailable, match="changed hands"):
            queue.add(unique_key="k")


class TestBulk:
    def test_many_jobs_in_one_go(self, queue: Queue) -> None:
        jobs = [NewJob(topic="email", operation="send", payload=f'{{"n": {n}}}', priority=n % 3) for n in range(2500)]
        assert queue.store.enqueue_many(jobs) == 2500
        claimed = queue.claim(5000)
        assert {job.payload for job in claimed} == {job.payload for job in jobs}

    def test_bulk_keeps_every_option(self, queue: Queue) -> None:
        soon = datetime.now(UTC) + timedelta(hours=1)
        new = NewJob(
            topic="email",
            operation="send",
            payload='{"a": "\\t\\\\N"}',
            priority=3,
            max_attempts=None,
            run_at=soon,
            lease_seconds=7,
            retry_base_seconds=2,
            retry_max_seconds=9,
            correlation_id="c",
            instance_id="i",
            tags='["t"]',
        )
        queue.store.enqueue_many([new])
        queue.step(3601)
        queue.store.promote()
        job = queue.claim_one()
        assert (job.payload, job.priority, job.max_attempts, job.lease_seconds) == ('{"a": "\\t\\\\N"}', 3, None, 7)
        assert (job.correlation_id, job.instance_id, job.tags) == ("c", "i", '["t"]')
        assert (queue.column(job.id, "retry_base_seconds"), queue.column(job.id, "retry_max_seconds")) == (2, 9)

    def test_unique_keys_hold_in_bulk(self, queue: Queue) -> None:
        jobs = [NewJob(topic="email", operation="send", payload="{}", unique_key=key) for key in ("a", "b", "a")]
        assert queue.store.enqueue_many(jobs) == 2

    def test_enqueueing_joins_the_callers_transaction(self, queue: Queue) -> None:
        new = NewJob(topic="email", operation="send", payload="{}")
        with writing(queue.engine) as connection, connection.begin() as transaction:
            queue.store.enqueue(new, connection)
            queue.store.enqueue_many([new, new], connection)
            transaction.rollback()
        assert queue.claim() == []
        with writing(queue.engine) as connection, connection.begin():
            queue.store.enqueue(new, connection)
            queue.store.enqueue_many([new, new], connection)
        assert len(queue.claim()) == 3


class TestTopics:
    def test_a_paused_topic_is_not_claimed(self, queue: Queue) -> None:
        queue.add()
        queue.store.pause("email", True)
        assert queue.claim() == []
        queue.store.pause("email", False)
        assert len(queue.claim()) == 1

    def test_a_paused_limited_topic_is_not_claimed(self, queue: Queue) -> None:
        queue.store.set_limits("email", TopicLimits(max_running=5))
        queue.add()
        queue.store.pause("email", True)
        assert queue.claim_limited(10) == []
        assert queue.store.limited_topics() == []
        queue.store.pause("email", False)
        assert queue.store.limited_topics() == ["email"]
        assert len(queue.claim_limited(10)) == 1

    def test_a_limited_topic_runs_no_more_than_its_limit(self, queue: Queue) -> None:  # [LIMIT-1]
        queue.store.set_limits("email", TopicLimits(max_running=3))
        for _ in range(10):
            queue.add()
        assert queue.claim() == []
        first = queue.claim_limited(10)
        assert len(first) == 3
        assert queue.claim_limited(10, BERT) == []
        queue.store.complete(ANNE, [succeeded(first[0])])
        assert len(queue.claim_limited(10, BERT)) == 1

    def test_each_key_runs_no_more_than_its_limit(self, queue: Queue) -> None:  # [LIMIT-1]
        queue.store.set_limits("email", TopicLimits(max_running_per_key=2))
        for key in ("a", "a", "a", "b", None, None, None):
            queue.add(limit_key=key)
        claimed = queue.claim_limited(100)
        assert sorted(str(job.limit_key) for job in claimed) == ["None", "None", "None", "a", "a", "b"]
        assert queue.claim_limited(100, BERT) == []

    def test_a_full_key_does_not_hold_up_the_others(self, queue: Queue) -> None:
        queue.store.set_limits("email", TopicLimits(max_running_per_key=1))
        for _ in range(50):
            queue.add(limit_key="a")
        queue.add(limit_key="b")
        assert [job.limit_key for job in queue.claim_limited(1)] == ["a"]
        assert [job.limit_key for job in queue.claim_limited(10)] == ["b"]

    def test_keys_without_limits_are_claimed_too(self, queue: Queue) -> None:
        queue.add(limit_key="a")
        assert queue.store.limited_topics() == ["email"]
        assert len(queue.claim_limited(10)) == 1

    def test_a_rate_lets_so_many_start_per_time(self, queue: Queue) -> None:  # [LIMIT-1]
        queue.store.set_limits("email", TopicLimits(rate_count=4, rate_seconds=60))
        for _ in range(20):
            queue.add()
        assert len(queue.claim_limited(100)) == 4
        assert queue.claim_limited(100, BERT) == []
        queue.step(31)
        assert len(queue.claim_limited(100, BERT)) == 2
        queue.step(600)
        assert len(queue.claim_limited(100, BERT)) == 4

    def test_a_rate_per_key(self, queue: Queue) -> None:  # [LIMIT-1]
        queue.store.set_limits("email", TopicLimits(rate_count_per_key=1, rate_seconds_per_key=60))
        for key in ("a", "a", "b"):
            queue.add(limit_key=key)
        assert sorted(str(job.limit_key) for job in queue.claim_limited(100)) == ["a", "b"]
        queue.step(61)
        assert [job.limit_key for job in queue.claim_limited(100)] == ["a"]

    def test_many_keys_are_gone_round(self, queue: Queue) -> None:
        queue.store.set_limits("email", TopicLimits(max_running_per_key=1))
        keys = [f"k{number:04d}" for number in range(450)]
        queue.store.enqueue_many([NewJob(topic="email", operation="send", payload="{}", limit_key=key) for key in keys])
        seen = [job.limit_key for _ in range(4) for job in queue.claim_limited(1000)]
        assert sorted(map(str, seen)) == keys

    def test_a_claim_writes_only_the_buckets_it_draws_from(self, queue: Queue) -> None:
        queue.store.set_limits("email", TopicLimits(rate_count_per_key=2, rate_seconds_per_key=3600))
        keys = [f"k{number:02d}" for number in range(60)]
        for key in keys:
            queue.add(limit_key=key)
        assert len(queue.claim_limited(100)) == 60
        before = buckets(queue)
        assert sorted(before) == keys
        queue.step(60)
        for key in ("k00", "zz"):
            queue.add(limit_key=key)
        with written_to(queue, "holdfast_rate_buckets") as statements:
            assert len(queue.claim_limited(100)) == 2
        assert len(statements) == 1
        after = buckets(queue)
        assert {key for key in after if after[key] != before.get(key)} == {"k00", "zz"}

    def test_buckets_that_are_full_again_are_removed(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(base, "_DRAWS_PER_SWEEP", 3)
        limits = TopicLimits(rate_count=9, rate_seconds=1, rate_count_per_key=1, rate_seconds_per_key=60)
        queue.store.set_limits("email", limits)
        queue.add(limit_key="a")
        assert len(queue.claim_limited(9)) == 1
        queue.step(61)
        queue.add(limit_key="b")
        assert len(queue.claim_limited(9)) == 1
        assert sorted(buckets(queue)) == ["", "b"]

    def test_a_job_that_was_cancelled_as_it_was_picked_draws_nothing(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue.store.set_limits("email", TopicLimits(rate_count=5, rate_seconds=60))
        gone, kept = queue.add(limit_key="a").id, queue.add().id
        pick = queue.store._pick

        def picked_then_cancelled(connection: Connection, *args: Any) -> list[Candidate]:
            found = pick(connection, *args)
            queue.store.cancel([gone], "changed my mind", connection)
            return found

        monkeypatch.setattr(queue.store, "_pick", picked_then_cancelled)
        assert [job.id for job in queue.claim_limited(9)] == [kept]
        assert queue.status(gone) == "cancelled"
        [bucket] = buckets(queue).values()
        assert bucket[0] == 4

    def test_stats_count_by_topic_and_status(self, queue: Queue) -> None:
        queue.add()
        queue.add()
        queue.add("other")
        queue.claim(1)
        stats = {item.topic: item.jobs for item in queue.store.stats()}
        assert stats == {"email": {JobStatus.READY: 1, JobStatus.RUNNING: 1}, "other": {JobStatus.READY: 1}}

    def test_declared_topics_are_listed(self, queue: Queue) -> None:
        limits = TopicLimits(max_running=3, rate_count=5, rate_seconds=2.5)
        queue.store.set_limits("email", limits)
        [topic] = queue.store.topics()
        assert (topic.name, topic.is_paused, topic.limits) == ("email", False, limits)


def buckets(queue: Queue) -> dict[str, tuple[float, object]]:
    rows = queue.rows("SELECT limit_key, tokens, refilled_at FROM holdfast_rate_buckets")
    return {row["limit_key"]: (row["tokens"], row["refilled_at"]) for row in rows}


@contextmanager
def written_to(queue: Queue, table: str) -> Iterator[list[str]]:
    """Yield a list of the statements that change a table, as they are sent."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, sql: str, *_: object) -> None:
        if table in sql and not sql.startswith("SELECT"):
            sent.append(sql)

    event.listen(queue.engine, "before_cursor_execute", note)
    yield sent
    event.remove(queue.engine, "before_cursor_execute", note)


class TestTurns:
    """Who comes first within a limited topic: higher priority, then keys in turn, none left behind."""

    @staticmethod
    def claim_one(queue: Queue) -> ClaimedJob:
        [job] = queue.claim_limited(1)
        queue.store.complete(ANNE, [succeeded(job)])
        return job

    def keys_claimed(self, queue: Queue, times: int) -> list[str | None]:
        return [self.claim_one(queue).limit_key for _ in range(times)]

    def test_keys_take_turns(self, queue: Queue) -> None:
        queue.store.set_limits("email", TopicLimits(max_running=2))
        for key in ("a", "b", "c"):
            for _ in range(5):
                queue.add(limit_key=key)
        assert self.keys_claimed(queue, 7) == ["a", "b", "c", "a", "b", "c", "a"]

    def test_a_claim_takes_from_every_key_before_it_takes_a_second_job(self, queue: Queue) -> None:
        for key in ("a", "a", "a", "a", "b", "b", "c"):
            queue.add(limit_key=key)
        claimed = queue.claim_limited(5)
        assert sorted(str(job.limit_key) for job in claimed) == ["a", "a", "b", "b", "c"]

    def test_a_page_of_full_keys_does_not_hide_the_next(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queue.store, "most_keys_per_claim", 3)
        self.fill(queue, 10)
        queue.add(limit_key="z")
        assert [job.limit_key for job in queue.claim_limited(1)] == ["z"]

    def test_what_one_claim_did_not_reach_the_next_does(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queue.store, "most_keys_per_claim", 2)
        self.fill(queue, 9)
        queue.add(limit_key="z")
        monkeypatch.setattr(queue.store, "most_pages_per_claim", 2)
        claimed = [[job.limit_key for job in queue.claim_limited(1)] for _ in range(3)]
        assert ["z"] in claimed
        assert [] in claimed

    @staticmethod
    def fill(queue: Queue, count: int) -> None:
        """Let each of so many keys have a job that runs and one that waits."""
        queue.store.set_limits("email", TopicLimits(max_running_per_key=1))
        for number in range(count):
            for _ in range(2):
                queue.add(limit_key=f"k{number}")
        assert len(queue.claim_limited(100)) == count

    def test_higher_priority_goes_first_with_key_or_without(self, queue: Queue) -> None:
        for key, priority in (("a", 0), ("b", 5), (None, 9), (None, -1), ("a", 7)):
            queue.add(limit_key=key, priority=priority)
        assert [self.claim_one(queue).priority for _ in range(5)] == [9, 7, 5, 0, -1]

    def test_priority_holds_within_one_claim(self, queue: Queue) -> None:
        for number in range(30):
            queue.add(limit_key=f"k{number:02d}")
        for _ in range(5):
            queue.add(limit_key="k20", priority=9)
            queue.add(priority=4)
        claimed = queue.claim_limited(12)
        assert [job.priority for job in claimed] == [9] * 5 + [4] * 5 + [0] * 2

    def test_jobs_of_equal_priority_share_whether_they_have_a_key_or_not(self, queue: Queue) -> None:
        for _ in range(6):
            queue.add(limit_key="a")
            queue.add()
        assert Counter(self.keys_claimed(queue, 4)) == {"a": 2, None: 2}
        assert Counter(job.limit_key for job in queue.claim_limited(4)) == {"a": 2, None: 2}

    def test_an_urgent_key_does_not_cost_others_their_turn(self, queue: Queue) -> None:
        for _ in range(4):
            for key in ("a", "b"):
                queue.add(limit_key=key)
        order = []
        for _ in range(4):
            queue.add(limit_key="z", priority=9)
            order += self.keys_claimed(queue, 2)
        assert order == ["z", "a", "z", "b", "z", "a", "z", "b"]


class TestPeriodic:
    def test_a_slot_is_taken_once(self, queue: Queue) -> None:  # [PERIODIC-1]
        noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
        taken = []
        for slot in (noon, noon, noon + timedelta(hours=1), noon):
            with writing(queue.engine) as connection, connection.begin():
                taken.append(queue.store.take_slot(connection, "nightly", slot))
        assert taken == [True, False, True, False]

    def test_a_rolled_back_slot_is_free_again(self, queue: Queue) -> None:
        noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
        with writing(queue.engine) as connection, connection.begin() as transaction:
            assert queue.store.take_slot(connection, "nightly", noon)
            transaction.rollback()
        with writing(queue.engine) as connection, connection.begin():
            assert queue.store.take_slot(connection, "nightly", noon)


def test_progress_is_kept_while_the_attempt_runs(queue: Queue) -> None:
    queue.add()
    job = queue.claim_one()
    assert queue.store.progress(ANNE, job.claim, '{"done": 3}')
    assert queue.column(job.id, "progress") == '{"done": 3}'
    queue.store.put_back(ANNE, [PutBack(job.claim)])
    assert queue.claim_one().attempt == 2
    assert queue.column(job.id, "progress") is None


@pytest.mark.parametrize("bad", ["a\x00b", "a\ud800b"])
def test_no_text_is_too_odd_to_be_stored(queue: Queue, bad: str) -> None:
    for _ in range(4):
        queue.add(max_attempts=1)
    done, dead, back, stopped = queue.claim()
    assert queue.store.progress(ANNE, done.claim, bad)
    assert queue.store.complete(ANNE, [succeeded(done, f'"{bad}"' + "x" * 30_000)]) == {done.claim}
    assert queue.store.fail(ANNE, [failed(dead, bad)]) == {dead.claim: JobStatus.DEAD}
    assert queue.store.put_back(ANNE, [PutBack(back.claim, 1.0, bad)]) == {back.claim: None}
    assert queue.store.cancel([stopped.id, back.id], bad) == {
        stopped.id: JobStatus.RUNNING,
        back.id: JobStatus.CANCELLED,
    }
    assert queue.store.end_cancelled(ANNE, [Stopped(stopped.claim, 1)]) == {stopped.claim}
    assert queue.store.retry([dead.id], bad) == {dead.id}
    told = [entry["output"] or entry["error"] for entry in queue.history()]
    assert [text[:3] in ('"a\ufffd', '"a?', "a\ufffdb", "a?b", "can") for text in told] == [True] * 4
    assert len(told[0]) == 30_005


def test_a_job_that_waited_long_is_kept_from_when_it_was_cancelled(queue: Queue) -> None:
    waiting, running = queue.add("other").id, queue.add(lease_seconds=1e9)
    job = queue.claim_one()
    queue.step(1000)
    queue.store.cancel([waiting, running.id], "no")
    queue.store.end_cancelled(ANNE, [Stopped(job.claim, 3)])
    assert queue.store.prune(500) == 0
    queue.step(501)
    assert queue.store.prune(500) == 2


def test_pruning_keeps_what_a_dead_letter_is_about_and_forgets_the_cancelled(queue: Queue) -> None:
    dead, cancelled = queue.add(max_attempts=1).id, queue.add("other").id
    queue.store.fail(ANNE, [failed(queue.claim_one())])
    queue.store.cancel([cancelled], "no")
    queue.step(1000)
    assert queue.store.prune(2000) == 0
    assert queue.store.prune(500) == 1
    assert (queue.status(dead), queue.status(cancelled)) == ("dead", None)
    with queue.engine.begin() as connection:
        connection.execute(text("UPDATE holdfast_dead_letters SET status = 'Resolved'"))
    assert queue.store.prune(500) == 1
    assert queue.status(dead) is None


def test_workers_share_the_queue_without_taking_a_job_twice(queue: Queue) -> None:
    for _ in range(60):
        queue.add()
    workers = [WorkerId(f"w{number}") for number in range(6)]
    claimed = [job.id for worker in workers for job in queue.claim(10, worker)]
    assert len(claimed) == len(set(claimed)) == 60


def test_a_hostile_topic_is_only_a_name(queue: Queue) -> None:
    topic = "a'; DROP TABLE holdfast_jobs; -- %s :now \"ü"
    queue.add(topic)
    [job] = queue.claim(topics=(topic,))
    assert job.topic == topic
    assert queue.store.complete(ANNE, [succeeded(job)]) == {job.claim}


@pytest.mark.parametrize(("column", "longest"), [("topic", 140), ("operation", 200), ("correlation_id", 200)])
def test_no_row_can_exist_that_could_not_end(queue: Queue, column: str, longest: int) -> None:
    new = NewJob(**{"topic": "email", "operation": "send", "payload": "{}", column: "t" * (longest + 1)})  # type: ignore[arg-type] # names and texts
    with pytest.raises(JobError):
        queue.store.enqueue(new)
    fitting = NewJob(**{"topic": "email", "operation": "send", "payload": "{}", column: "t" * longest})  # type: ignore[arg-type] # names and texts
    added = queue.store.enqueue(fitting)
    [job] = queue.claim(topics=(fitting.topic,))
    queue.step(31)
    assert queue.store.reap() == {job.claim: JobStatus.SUSPECT}
    assert queue.status(added.id) == "suspect"
