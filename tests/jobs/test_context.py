"""A job's context is a handler's context like any other, filled in from the job when it is asked."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from holdfast.core.clock import SystemClock
from holdfast.jobs.context import JobContext
from holdfast.jobs.lanes import Lane
from holdfast.jobs.runner import Execution
from holdfast.jobs.running import Running
from holdfast.jobs.telemetry import WorkerTelemetry
from holdfast.runtime.context import HandlerContext
from tests.jobs.queues import ANNE, Queue, open_queue
from tests.jobs.workers import Work

SHARED = [
    "correlation_id",
    "attempt",
    "fencing_token",
    "lease_lost",
    "deadline",
    "heartbeat",
    "progress",
    "transaction",
]


def context_of(queue: Queue, **options: Any) -> tuple[JobContext, Running]:
    queue.add(correlation_id="order-7")
    running = Running(queue.claim_one(), Work(queue).job(lambda: None, **options), Lane(1, 0), 0.0)
    telemetry = WorkerTelemetry(ANNE, None)
    execution = Execution(
        queue.store, ANNE, queue.engine, telemetry, SystemClock(), lambda report: None, lambda running: None
    )
    return JobContext(running, execution), running


@pytest.mark.parametrize("name", SHARED)
def test_what_every_context_has_is_defined_once(name: str) -> None:
    assert name in vars(HandlerContext)
    assert name not in vars(JobContext)


def test_every_field_is_read_from_the_job(sqlite_url: str) -> None:
    with open_queue(sqlite_url) as queue:
        context, running = context_of(queue, max_seconds=60)
        running.begin(SystemClock().monotonic())
        assert (context.correlation_id, context.attempt, context.fencing_token) == ("order-7", 1, 1)
        assert context.deadline is not None
        assert context.deadline == context.deadline
        assert not context.lease_lost.is_set()
        running.lose(is_certain=False)
        assert context.lease_lost.is_set()
        for field in fields(context):
            if field.name != "_no_transaction":  # it has one, or what opens it says why not
                getattr(context, field.name)
        assert "correlation_id='order-7'" in repr(context)
        assert running.transaction is not None
        running.transaction.close()


def test_two_jobs_are_never_the_same_and_nobody_changes_them(sqlite_url: str) -> None:
    with open_queue(sqlite_url) as queue:
        (one, _), (other, _) = context_of(queue), context_of(queue)
        assert (one.correlation_id, one.attempt) == (other.correlation_id, other.attempt)
        assert one != other
        assert len({one, other}) == 2
        with pytest.raises(FrozenInstanceError):
            one.attempt = 5  # type: ignore[misc]  # that is the point
        with pytest.raises(AttributeError, match="'JobContext' object has no attribute 'tag'"):
            _ = one.tag  # type: ignore[attr-defined]  # that is the point
