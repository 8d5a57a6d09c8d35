"""Looking through the queue: every column, filters that mean what they say, pages that neither repeat nor skip."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.core.errors import ConfigurationError
from holdfast.jobs.listing import JobFilter, find, job_id_of, jobs_by_id
from holdfast.jobs.model import Failure, JobId, JobStatus
from tests.jobs.queues import ANNE, Queue


def found(queue: Queue, **wanted: Any) -> list[int]:
    return [job.id for job in find(queue.engine, JobFilter(**wanted)).items]


def test_every_column_comes_back_with_aware_times(queue: Queue) -> None:
    due = datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    added = queue.add(
        payload='{"n": "ü"}',
        priority=3,
        limit_key="customer-1",
        max_attempts=7,
        retry_base_seconds=2,
        retry_max_seconds=9,
        lease_seconds=11,
        run_at=due,
        unique_key="k",
        unique_seconds=5,
        correlation_id="order-7",
        instance_id="inst-1",
        tags='["red", "ü"]',
    )
    [job] = find(queue.engine).items
    assert jobs_by_id(queue.engine, [added.id, JobId(999)]) == {added.id: job}
    assert (job.id, job.topic, job.operation, job.payload) == (added.id, "email", "send", '{"n": "ü"}')
    assert (job.status, job.priority, job.limit_key) == (JobStatus.SCHEDULED, 3, "customer-1")
    assert (job.max_attempts, job.retry_base_seconds, job.retry_max_seconds, job.lease_seconds) == (7, 2, 9, 11)
    assert (job.run_at, job.unique_key, job.unique_seconds) == (due, "k", 5)
    assert (job.correlation_id, job.instance_id, job.tags) == ("order-7", "inst-1", ["red", "ü"])
    assert job.created_at.tzinfo is UTC


def test_a_running_job_shows_its_lease(queue: Queue) -> None:
    queue.add()
    claimed = queue.claim_one()
    [job] = find(queue.engine).items
    assert (job.status, job.locked_by, job.attempt) == (JobStatus.RUNNING, "anne", 1)
    assert job.started_at is not None
    assert job.lease_until is not None
    assert job.lease_until > job.started_at
    assert job.correlation_id == job.item_id == f"job-{claimed.id}"


def test_filters(queue: Queue) -> None:
    one = queue.add(tags='["red", "dark blue"]', correlation_id="order-1", max_attempts=1).id
    queue.store.fail(ANNE, [Failure(queue.claim_one().claim, 1, "Disk 100% full_")])
    two = queue.add("sms", tags=json.dumps(["Red", "ü", 'a"b'])).id
    created = jobs_by_id(queue.engine, [two])[two].created_at
    assert found(queue) == [two, one]
    assert found(queue, topic="sms") == [two]
    assert found(queue, status=JobStatus.DEAD) == [one]
    assert found(queue, tag="red") == [one]
    assert found(queue, tag="dark") == []
    assert found(queue, tag="ü") == [two]
    assert found(queue, tag='a"b') == [two]
    assert found(queue, correlation_id="order-1") == [one]
    assert found(queue, correlation_id=f"job-{two}") == [two]
    assert found(queue, correlation_id=f"job-{one}") == []
    assert found(queue, error="disk 100% full_") == [one]
    assert found(queue, error="disk%full") == []
    assert found(queue, since=created, until=created + timedelta(hours=1)) == [two]
    assert found(queue, until=created - timedelta(hours=1)) == []


def test_pages_neither_repeat_nor_skip_while_jobs_come_and_go(queue: Queue) -> None:
    ids = [queue.add().id for _ in range(5)]
    first = find(queue.engine, limit=2)
    queue.add()
    second = find(queue.engine, limit=2, after=first.continuation_token)
    third = find(queue.engine, limit=2, after=second.continuation_token)
    assert [job.id for page in (first, second, third) for job in page.items] == ids[::-1]
    assert third.continuation_token is None


def test_a_wrong_limit_or_token_is_refused(queue: Queue) -> None:
    with pytest.raises(ConfigurationError, match="between 1 and 100"):
        find(queue.engine, limit=101)
    with pytest.raises(ConfigurationError, match="not a continuation token of the jobs"):
        find(queue.engine, after="7")


@pytest.mark.parametrize(
    ("name", "job_id"),
    [("job-7", 7), ("job-07", None), ("job-", None), ("7", None), ("job--7", None), ("job-\u0667", None), (None, None)],
)
def test_the_job_behind_a_name(name: str | None, job_id: int | None) -> None:
    assert job_id_of(name) == job_id
