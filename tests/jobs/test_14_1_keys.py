"""Keys of jobs are equal only if their bytes are, in every database; and those that some could not keep are refused."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.jobs.listing import JobFilter, find
from holdfast.jobs.model import Failure, Success, TopicLimits
from holdfast.records.tables import SqlHistoryTable
from tests.jobs.queues import ANNE, Queue, open_queue

ALIKE = ["order-7", "order-7 ", "order-7  ", "Order-7", "örder-7", "o\u0308rder-7", "order-7\u00a0"]
IMPOSSIBLE = ["a\x00b", "a\ud800", "k" * 5000]


def test_14_1_a_unique_key_is_taken_by_its_own_bytes_alone(queue: Queue) -> None:
    added = [queue.add(unique_key=key) for key in ALIKE]
    assert all(one.is_new for one in added)
    assert [queue.add(unique_key=key).id for key in ALIKE] == [one.id for one in added]


def test_14_1_limit_keys_that_look_alike_are_limited_each_by_itself(queue: Queue) -> None:
    queue.store.set_limits("email", TopicLimits(max_running_per_key=1, rate_count_per_key=2, rate_seconds_per_key=3600))
    for key in ALIKE * 3:
        queue.add(limit_key=key)
    for _ in range(2):
        claimed = queue.claim_limited()
        assert Counter(job.limit_key for job in claimed) == dict.fromkeys(ALIKE, 1)
        assert queue.claim_limited() == []
        queue.store.complete(ANNE, [Success(job.claim, 1) for job in claimed])
    assert queue.claim_limited() == []  # the rate of each is used up


def test_14_1_topics_and_operations_that_look_alike_are_claimed_apart(queue: Queue) -> None:
    for name in ALIKE:
        queue.add(topic=name, operation=name)
    for name in ALIKE:
        [job] = queue.claim(topics=(name,), operations=(name,))
        assert (job.topic, job.operation) == (name, name)


def test_14_1_jobs_and_their_history_are_found_by_exactly_their_correlation_id(queue: Queue) -> None:
    for key in ALIKE:
        queue.add(correlation_id=key)
    for key in ALIKE:
        assert [job.correlation_id for job in find(queue.engine, JobFilter(correlation_id=key)).items] == [key]
    claimed = queue.claim()
    queue.store.complete(ANNE, [Success(job.claim, 1) for job in claimed])
    history = SqlHistoryTable(queue.engine)
    for key in ALIKE:
        [entry] = history.of_correlation("jobs:email", key)
        assert entry.correlation_id == key
    assert queue.rows("SELECT count(DISTINCT correlation_id) AS n FROM holdfast_history") == [{"n": len(ALIKE)}]


def test_14_1_periodic_names_that_look_alike_have_slots_of_their_own(queue: Queue) -> None:
    now = queue.store.now()
    with queue.store.transaction() as connection:
        for name in ALIKE:
            queue.store.start_periodic(connection, name, now)
            assert queue.store.take_slot(connection, name, now.replace(year=now.year + 1))
    assert sorted(queue.store.places()) == sorted(ALIKE)


def test_14_1_what_no_job_can_hold_finds_none(queue: Queue) -> None:
    queue.add()
    for key in IMPOSSIBLE:
        for wanted in (JobFilter(topic=key), JobFilter(correlation_id=key), JobFilter(tag=key), JobFilter(error=key)):
            assert find(queue.engine, wanted).items == []


def test_14_1_who_retries_may_have_any_name(queue: Queue) -> None:
    queue.add()
    [job] = queue.claim()
    queue.store.fail(ANNE, [Failure(job.claim, 1, "boom", is_final=True)])
    assert queue.store.retry([job.id], "eve\x00" * 100) == {job.id}
    [letter] = queue.dead_letters()
    assert len(letter["resolved_by"]) == 200


@pytest.mark.component("mariadb")
def test_14_1_a_session_with_a_collation_of_its_own_claims_as_others_do(mariadb_url: str) -> None:
    with open_queue(f"{mariadb_url}&collation=utf8mb4_bin") as queue:
        queue.add(limit_key="a ")
        queue.store.set_limits("email", TopicLimits(rate_count_per_key=1, rate_seconds_per_key=60))
        assert [job.limit_key for job in queue.claim_limited()] == ["a "]
        queue.add(topic="other", operation="send")
        assert len(queue.claim(topics=("other",))) == 1
