"""What people do to the queue: all of it or nothing, once, and audited in the same transaction."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from holdfast.core.errors import ConfigurationError, Conflict, JobError
from holdfast.jobs import operator
from holdfast.jobs.model import Failure, JobId, JobStatus, NewJob, Success
from holdfast.records import audit
from holdfast.records.database import changing
from holdfast.records.dead_letters import DeadLetter, DeadLetters, LetterFilter, LetterStatus
from holdfast.records.redrive import Redrives
from holdfast.records.tables import SqlLetterTable
from tests.jobs.queues import ANNE, Queue
from tests.records.samples import add_letter, days_ago


def bury(queue: Queue, error: str = "boom", **options: Any) -> JobId:
    """Add a job that fails for good at once."""
    added = queue.add(max_attempts=1, **options)
    queue.store.fail(ANNE, [Failure(queue.claim_one().claim, 5, error)])
    assert queue.status(added.id) == "dead"
    return added.id


def letter_of(queue: Queue, job_id: JobId) -> DeadLetter:
    return DeadLetters(queue.engine).of_item(f"job-{job_id}")[-1]


def retrying(queue: Queue) -> Redrives:
    return Redrives(queue.engine, {"jobs:": operator.JobRedrive(queue.store)})


def forget(queue: Queue, *tables: str) -> None:
    with changing(queue.engine) as connection:
        for table in tables:
            connection.execute(text(f"DELETE FROM {table}"))


def audited(queue: Queue) -> list[tuple[str, str, str]]:
    return [(row.actor, row.action, row.target) for row in audit.page(queue.engine).items]


class TestCancelling:
    def test_waiting_and_running_jobs(self, queue: Queue) -> None:
        running = queue.add().id
        queue.claim_one()
        ready = queue.add().id
        changed = operator.cancel_jobs(queue.store, [running, ready], "wrong order", "eve")
        assert changed == {running: JobStatus.RUNNING, ready: JobStatus.CANCELLED}
        assert sorted(audited(queue)) == [("eve", "jobs cancel", f"job-{number}") for number in (running, ready)]

    def test_all_or_nothing(self, queue: Queue) -> None:
        ready, dead = queue.add(topic="other").id, bury(queue)
        with pytest.raises(Conflict, match=f"Job {dead} is dead; nothing was changed"):
            operator.cancel_jobs(queue.store, [ready, dead], "wrong", "eve")
        with pytest.raises(ConfigurationError, match="Job 999 is not in the queue; nothing was changed"):
            operator.cancel_jobs(queue.store, [ready, JobId(999)], "wrong", "eve")
        assert queue.status(ready) == "ready"
        assert audited(queue) == []


class TestMessagesOfEngines:
    """They end in the records of their engine, or not at all."""

    def test_they_are_neither_cancelled_nor_retried(self, queue: Queue) -> None:
        message = queue.add(topic="engine.work-queue", run_at=datetime.now(UTC) + timedelta(hours=1)).id
        job = queue.add(run_at=datetime.now(UTC) + timedelta(hours=1)).id
        told = f"Job {message} is a message of engine queue 'work-queue'.* nothing was changed"
        with pytest.raises(Conflict, match=told):
            operator.cancel_jobs(queue.store, [message, job], "wrong", "eve")
        with pytest.raises(Conflict, match=told):
            operator.retry_jobs(queue.store, [message, job], "eve")
        assert [queue.status(number) for number in (message, job)] == ["scheduled"] * 2
        assert audited(queue) == []


class TestRetryingJobs:
    def test_dead_cancelled_and_scheduled_jobs_run_now(self, queue: Queue) -> None:
        dead = bury(queue)
        scheduled = queue.add(run_at=datetime.now(UTC) + timedelta(hours=1)).id
        cancelled = queue.add(topic="other").id
        queue.store.cancel([cancelled], "no")
        operator.retry_jobs(queue.store, [dead, scheduled, cancelled], "eve")
        assert [queue.status(number) for number in (dead, scheduled, cancelled)] == ["ready"] * 3
        assert letter_of(queue, dead).resolution_notes == "Retried"
        assert len(audited(queue)) == 3

    def test_all_or_nothing(self, queue: Queue) -> None:
        dead, ready = bury(queue), queue.add().id
        with pytest.raises(Conflict, match=f"Job {ready} is ready"):
            operator.retry_jobs(queue.store, [dead, ready], "eve")
        assert queue.status(dead) == "dead"
        assert letter_of(queue, dead).status is LetterStatus.PENDING
        assert audited(queue) == []

    def test_a_job_that_is_gone_comes_back_from_its_letter(self, queue: Queue) -> None:
        dead = bury(queue)
        forget(queue, "holdfast_jobs")
        operator.retry_jobs(queue.store, [dead], "eve")
        assert queue.claim_one().id == dead

    def test_a_job_that_succeeded_is_not_run_again(self, queue: Queue) -> None:
        queue.add()
        job = queue.claim_one()
        queue.store.complete(ANNE, [Success(job.claim, 1)])
        with pytest.raises(ConfigurationError, match=f"holdfast jobs show {job.id}"):
            operator.retry_jobs(queue.store, [job.id], "eve")


class TestRetryingOneLetter:
    def test_the_same_job_runs_again_and_counts_on(self, queue: Queue) -> None:
        dead = bury(queue, payload='{"n": 1}')
        letter = letter_of(queue, dead)
        retrying(queue).retry(letter, "eve")
        job = queue.claim_one()
        assert (job.id, job.attempt, job.payload) == (dead, 2, '{"n": 1}')
        after = letter_of(queue, dead)
        assert (after.status, after.resolution_notes, after.resolved_by, after.retried_as) == (
            LetterStatus.RESOLVED,
            "Retried",
            "eve",
            f"job-{dead}",
        )
        assert audited(queue) == [("eve", "dlq retry", f"jobs:email/{letter.row_key}")]

    def test_a_job_that_is_gone_is_put_back_with_its_attempts(self, queue: Queue) -> None:
        dead = bury(queue, payload='{"n": 1}', correlation_id="order-7", instance_id="inst-1")
        retrying(queue).retry(letter_of(queue, dead), "eve")
        queue.store.fail(ANNE, [Failure(queue.claim_one().claim, 5, "again")])
        forget(queue, "holdfast_jobs")
        retrying(queue).retry(letter_of(queue, dead), "eve")
        job = queue.claim_one()
        assert (job.id, job.attempt, job.failures, job.topic, job.operation) == (dead, 3, 0, "email", "send")
        assert (job.payload, job.correlation_id, job.instance_id) == ('{"n": 1}', "order-7", "inst-1")
        assert {item.status for item in DeadLetters(queue.engine).of_item(f"job-{dead}")} == {LetterStatus.RESOLVED}
        assert queue.add().id > dead

    def test_who_comes_second_is_told(self, queue: Queue) -> None:
        letter = letter_of(queue, bury(queue))
        retrying(queue).retry(letter, "eve")
        with pytest.raises(Conflict, match=r"is Resolved by eve \(Retried\); nothing was changed"):
            retrying(queue).retry(letter, "bob")
        assert len(audited(queue)) == 1

    @pytest.mark.parametrize("is_gone", [False, True])
    def test_of_many_at_once_one_wins(self, queue: Queue, is_gone: bool) -> None:
        letter = letter_of(queue, bury(queue))
        if is_gone:
            forget(queue, "holdfast_jobs")
        won, lost = list[str](), list[str]()

        def attempt(name: str) -> None:
            try:
                retrying(queue).retry(letter, name)
                won.append(name)
            except Conflict:
                lost.append(name)

        threads = [threading.Thread(target=attempt, args=(name,)) for name in ("anne", "bert", "cleo", "dora")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 3)
        assert [actor for actor, _, _ in audited(queue)] == won
        assert len(queue.claim()) == 1

    def test_a_letter_whose_job_waits_again_is_left_alone(self, queue: Queue) -> None:
        dead = bury(queue)
        letter = letter_of(queue, dead)
        with changing(queue.engine) as connection:
            connection.execute(text("UPDATE holdfast_jobs SET status = 'ready'"))
        with pytest.raises(Conflict, match=f"Job {dead} is ready already"):
            retrying(queue).retry(letter, "eve")
        assert letter_of(queue, dead) == letter

    def test_a_taken_key_is_told_and_nothing_changes(self, queue: Queue) -> None:
        dead = bury(queue, unique_key="k")
        queue.add(unique_key="k")
        with pytest.raises(JobError, match="holds the same unique key"):
            retrying(queue).retry(letter_of(queue, dead), "eve")
        assert queue.status(dead) == "dead"
        assert letter_of(queue, dead).status is LetterStatus.PENDING
        assert audited(queue) == []

    def test_what_is_not_a_jobs_is_told(self, queue: Queue) -> None:
        with pytest.raises(ConfigurationError, match="nothing here knows where it came from"):
            retrying(queue).retry(add_letter(queue.engine), "eve")
        with pytest.raises(ConfigurationError, match="names no job"):
            retrying(queue).retry(add_letter(queue.engine, engine="jobs:email", item="m-7"), "eve")

    def test_a_job_nobody_remembers_is_told(self, queue: Queue) -> None:
        dead = bury(queue)
        forget(queue, "holdfast_jobs", "holdfast_history")
        with pytest.raises(ConfigurationError, match="gone from the queue and from the history"):
            retrying(queue).retry(letter_of(queue, dead), "eve")
        assert letter_of(queue, dead).status is LetterStatus.PENDING


class TestRetryingManyLetters:
    def test_those_that_are_wanted(self, queue: Queue) -> None:
        timeouts = [bury(queue, "Timeout after 3 s") for _ in range(3)]
        other = bury(queue, "no such user")
        [done] = retrying(queue).retry_all(LetterFilter(engine="jobs:email", error="timeout"), "eve")
        assert (done.count, done.refusals) == (3, [])
        assert [queue.status(number) for number in (*timeouts, other)] == ["ready"] * 3 + ["dead"]
        assert len(audited(queue)) == 3

    def test_one_that_cannot_come_back_does_not_hold_up_the_others(self, queue: Queue) -> None:
        taken = bury(queue, unique_key="k")
        queue.add(unique_key="k", topic="email")
        holder = queue.claim_one()
        free = bury(queue)
        foreign = add_letter(queue.engine, last_failure_at=days_ago(1))
        [done] = retrying(queue).retry_all(LetterFilter(), "eve")
        assert done.count == 1
        assert len(done.refusals) == 2
        assert any("unique key" in refusal for refusal in done.refusals)
        assert any(foreign.row_key in refusal for refusal in done.refusals)
        assert [queue.status(number) for number in (taken, free, holder.id)] == ["dead", "ready", "running"]
        assert letter_of(queue, taken).status is LetterStatus.PENDING

    def test_more_than_a_page(self, queue: Queue) -> None:
        failing = NewJob(topic="email", operation="send", payload="{}", max_attempts=1)
        queue.store.enqueue_many([failing] * 150)
        queue.store.fail(ANNE, [Failure(job.claim, 1, "boom") for job in queue.claim(150)])
        batches = list(retrying(queue).retry_all(LetterFilter(), "eve"))
        assert sum(batch.count for batch in batches) == 150
        assert SqlLetterTable(queue.engine).count(LetterFilter(status=LetterStatus.PENDING)) == 0

    def test_none(self, queue: Queue) -> None:
        assert [batch.count for batch in retrying(queue).retry_all(LetterFilter(), "eve")] == [0]


class TestPausing:
    def test_and_resuming(self, queue: Queue) -> None:
        queue.add()
        assert operator.pause_topic(queue.store, "email", True, "eve")
        assert not operator.pause_topic(queue.store, "email", True, "eve")
        assert queue.claim() == []
        assert operator.pause_topic(queue.store, "email", False, "bob")
        assert len(queue.claim()) == 1
        assert audited(queue) == [("bob", "jobs resume", "email"), ("eve", "jobs pause", "email")]

    def test_an_unknown_topic_is_told(self, queue: Queue) -> None:
        queue.add("email")
        with pytest.raises(ConfigurationError, match=r"no topic named 'emial'.*Known here: email\."):
            operator.pause_topic(queue.store, "emial", True, "eve")
        assert queue.store.topics() == []
