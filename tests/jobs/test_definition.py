"""A decorated handler can still be called, and enqueues what it was told, or says in one sentence why it cannot."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from holdfast import Holdfast
from holdfast.core.errors import ConfigurationError, PayloadError
from holdfast.database.pools import writing
from holdfast.jobs.correlation import current_correlation_id
from holdfast.jobs.definition import BoundJob, JobDefinition, JobSettings, limits_of
from holdfast.jobs.model import ClaimedJob, TopicLimits
from holdfast.jobs.stores.base import SqlJobStore
from tests.jobs.queues import Queue


def send_receipt(context: object, order_id: int, when: date | None = None) -> str:
    """Send a receipt."""
    return f"sent {order_id}"


def no_store() -> SqlJobStore:
    raise AssertionError("nothing may reach the database here")


def job_of(queue: Queue, function: Callable[..., Any] = send_receipt, **options: Any) -> JobDefinition:
    return JobDefinition(function, topic="email", store=lambda: queue.store, **options)


def claimed(queue: Queue) -> list[ClaimedJob]:
    return sorted(queue.claim(), key=lambda job: job.id)


class TestManners:
    job = JobDefinition(send_receipt, topic="email", store=no_store)

    def test_it_can_be_called(self) -> None:
        assert self.job(None, 7) == "sent 7"
        assert self.job(None, order_id=8) == "sent 8"

    def test_it_looks_like_the_handler(self) -> None:
        assert (self.job.__name__, self.job.__doc__) == ("send_receipt", "Send a receipt.")  # type: ignore[attr-defined] # update_wrapper sets it
        assert inspect.signature(self.job) == inspect.signature(send_receipt)
        assert repr(self.job) == "JobDefinition(topic='email', operation='send_receipt')"

    def test_it_knows_the_handlers_form(self) -> None:
        async def handle(order_id: int) -> int:
            return order_id

        definition = JobDefinition(handle, topic="email", store=no_store, operation="orders.handle")
        assert (definition.operation, definition.is_async, definition.takes_context) == ("orders.handle", True, False)
        assert (self.job.operation, self.job.is_async, self.job.takes_context) == ("send_receipt", False, True)
        assert asyncio.run(definition(3)) == 3

    def test_a_handlers_attributes_do_not_overwrite_its_own(self) -> None:
        def handle() -> None: ...

        handle.topic = "other"  # type: ignore[attr-defined] # as decorators leave marks on functions
        assert JobDefinition(handle, topic="email", store=no_store).topic == "email"

    def test_defaults(self) -> None:
        assert self.job.settings == JobSettings(
            priority=0,
            max_attempts=5,
            lease_seconds=30,
            retry_base_seconds=1,
            retry_max_seconds=3600,
            unique_seconds=None,
            limits=TopicLimits(),
        )


class TestEnqueueing:
    def test_one_job(self, queue: Queue) -> None:
        settings = JobSettings(
            priority=3, max_attempts=None, lease_seconds=7, retry_base_seconds=2, retry_max_seconds=9, unique_seconds=60
        )
        added = job_of(queue, settings=settings).enqueue(order_id=7, when=date(2024, 2, 29))
        assert added.is_new
        [job] = claimed(queue)
        assert (job.id, job.topic, job.operation) == (added.id, "email", "send_receipt")
        assert job.payload == '{"order_id":7,"when":"2024-02-29"}'
        assert (job.priority, job.max_attempts, job.lease_seconds, job.unique_seconds) == (3, None, 7, None)
        assert (queue.column(job.id, "retry_base_seconds"), queue.column(job.id, "retry_max_seconds")) == (2, 9)

    def test_many_jobs(self, queue: Queue) -> None:
        assert job_of(queue).enqueue_many({"order_id": number} for number in range(50)) == 50
        assert [json.loads(job.payload)["order_id"] for job in claimed(queue)] == list(range(50))
        assert job_of(queue).enqueue_many([]) == 0

    def test_an_argument_may_have_any_other_name(self, queue: Queue) -> None:
        def handle(order_id: int, self: str) -> None: ...

        job_of(queue, handle).enqueue(order_id=1, self="x")
        asyncio.run(job_of(queue, handle).enqueue_async(order_id=1, self="x"))
        assert [job.payload for job in claimed(queue)] == ['{"order_id":1,"self":"x"}'] * 2

    def test_every_option_is_kept(self, queue: Queue) -> None:
        soon = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        bound = job_of(queue).options(
            run_at=soon,
            priority=-4,
            correlation_id="c",
            instance_id="i",
            tags=["a", "ü"],
            max_attempts=None,
            unique_key="k",
            unique_seconds=90,
        )
        assert bound.enqueue(order_id=1).is_new
        assert not bound.enqueue(order_id=1).is_new
        assert queue.claim() == []
        queue.step(3601)
        queue.store.promote()
        [job] = claimed(queue)
        assert (job.run_at, job.priority, job.correlation_id, job.instance_id) == (soon, -4, "c", "i")
        assert (job.tags, job.max_attempts, job.unique_seconds) == ('["a","ü"]', None, 90)

    def test_the_window_of_the_job_goes_with_a_unique_key(self, queue: Queue) -> None:
        definition = job_of(queue, settings=JobSettings(unique_seconds=60))
        definition.options(unique_key="k").enqueue(order_id=1)
        [job] = claimed(queue)
        assert job.unique_seconds == 60

    def test_the_key_is_what_limits_count_by(self, queue: Queue) -> None:
        job_of(queue).options(key="tenant-1").enqueue_many([{"order_id": 1}, {"order_id": 2}])
        found = queue.claim_limited(10)
        assert [job.limit_key for job in found] == ["tenant-1", "tenant-1"]

    def test_a_delay_is_counted_by_the_databases_clock(self, queue: Queue) -> None:
        queue.step(10_000)
        job_of(queue).options(delay_seconds=100).enqueue(order_id=1)
        job_of(queue).options(delay_seconds=100).enqueue_many([{"order_id": 2}])
        with writing(queue.engine) as connection, connection.begin():
            job_of(queue).options(delay_seconds=100).enqueue(order_id=3, connection=connection)
        queue.store.promote()
        assert queue.claim() == []
        queue.step(101)
        queue.store.promote()
        assert len(queue.claim()) == 3

    def test_options_are_put_on_top_of_each_other(self, queue: Queue) -> None:
        soon = datetime.now(UTC) + timedelta(hours=1)
        first = job_of(queue).options(priority=1, correlation_id="c", max_attempts=None, run_at=soon)
        second = first.options(priority=2, delay_seconds=0.001)
        with pytest.raises(FrozenInstanceError):
            first.run_at = None  # type: ignore[misc] # that it cannot be set is what this shows
        second.enqueue(order_id=1)
        queue.step(1)
        queue.store.promote()
        [job] = claimed(queue)
        assert (job.priority, job.correlation_id, job.max_attempts) == (2, "c", None)
        assert first.columns["priority"] == 1

    def test_without_blocking_the_loop(self, queue: Queue) -> None:
        async def run() -> None:
            current_correlation_id.set("business-9")
            assert (await job_of(queue).enqueue_async(order_id=1)).correlation_id == "business-9"
            assert await job_of(queue).enqueue_many_async([{"order_id": 2}, {"order_id": 3}]) == 2
            assert (await job_of(queue).options(correlation_id="own").enqueue_async(order_id=4)).correlation_id == "own"

        asyncio.run(run())
        assert [job.correlation_id for job in claimed(queue)] == ["business-9"] * 3 + ["own"]

    def test_inside_a_handler_the_correlation_id_is_inherited(self, queue: Queue) -> None:
        token = current_correlation_id.set("business-7")
        try:
            assert job_of(queue).enqueue(order_id=1).correlation_id == "business-7"
            assert job_of(queue).options(correlation_id="other").enqueue(order_id=1).correlation_id == "other"
            job_of(queue).enqueue_many([{"order_id": 2}])
        finally:
            current_correlation_id.reset(token)
        alone = job_of(queue).enqueue(order_id=3)
        assert alone.correlation_id == f"job-{alone.id}"
        assert [job.named_correlation_id for job in claimed(queue)] == ["business-7", "other", "business-7", None]


class TestTheCallersTransaction:
    @pytest.mark.parametrize("commits", [True, False])
    def test_a_connection(self, queue: Queue, commits: bool) -> None:
        with writing(queue.engine) as connection, connection.begin() as transaction:
            job_of(queue).enqueue(order_id=1, connection=connection)
            job_of(queue).enqueue_many([{"order_id": 2}], connection=connection)
            job_of(queue).options(priority=1).enqueue(order_id=3, connection=connection)
            if not commits:
                transaction.rollback()
        assert len(queue.claim()) == (3 if commits else 0)

    @pytest.mark.parametrize("commits", [True, False])
    def test_a_session(self, queue: Queue, commits: bool) -> None:
        with Session(queue.engine) as session:
            job_of(queue).enqueue(order_id=1, connection=session)
            if commits:
                session.commit()
        assert len(queue.claim()) == int(commits)

    def test_a_scoped_session(self, queue: Queue) -> None:
        session = scoped_session(sessionmaker(queue.engine))
        job_of(queue).enqueue(order_id=1, connection=session)
        session.rollback()
        job_of(queue).enqueue(order_id=2, connection=session)
        session.commit()
        session.remove()
        assert len(queue.claim()) == 1

    def test_anything_else_is_refused(self, queue: Queue) -> None:
        with pytest.raises(
            ConfigurationError, match="must be a SQLAlchemy Connection, Session or scoped_session, not Engine"
        ):
            job_of(queue).enqueue(order_id=1, connection=queue.engine)

    def test_another_driver_is_refused(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        with queue.engine.connect() as connection:
            monkeypatch.setattr(type(queue.engine.dialect), "driver", "ours")
            monkeypatch.setattr(connection, "dialect", type("Other", (), {"driver": "theirs"})())
            with pytest.raises(ConfigurationError, match="uses the driver theirs, but the queue is reached with ours"):
                job_of(queue).enqueue(order_id=1, connection=connection)


class TestRefusals:
    @pytest.mark.parametrize("topic", ["", "!secret", "a\nb", "a\x00", "x" * 151, " a", "\ud800", 7, None])
    def test_topics(self, topic: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"^Topic .* cannot be used: .*\.$"):
            JobDefinition(send_receipt, topic=topic, store=no_store)

    def test_the_longest_topic(self) -> None:
        assert JobDefinition(send_receipt, topic="x" * 140, store=no_store).topic == "x" * 140

    def test_an_operation_needs_a_name(self) -> None:
        class Handler:
            def __call__(self) -> None: ...

        with pytest.raises(ConfigurationError, match="Operation None cannot be used: it must be text"):
            JobDefinition(Handler(), topic="email", store=no_store)
        with pytest.raises(ConfigurationError, match="Operation '!x' cannot be used"):
            JobDefinition(send_receipt, topic="email", store=no_store, operation="!x")

    def test_a_parameter_called_connection(self) -> None:
        def handle(connection: str) -> None: ...

        with pytest.raises(ConfigurationError, match=r"has a parameter 'connection'.*Rename the parameter"):
            JobDefinition(handle, topic="email", store=no_store)

    @pytest.mark.parametrize(
        "settings",
        [
            {"priority": 2**15},
            {"priority": -(2**15) - 1},
            {"priority": True},
            {"priority": 1.5},
            {"max_attempts": 0},
            {"max_attempts": 2**31},
            {"max_attempts": "5"},
            {"lease_seconds": 0},
            {"lease_seconds": float("nan")},
            {"lease_seconds": "30"},
            {"retry_base_seconds": -1},
            {"retry_max_seconds": float("inf")},
            {"retry_base_seconds": 10, "retry_max_seconds": 5},
            {"unique_seconds": 0},
            {"unique_seconds": True},
        ],
        ids=str,
    )
    def test_numbers(self, settings: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError, match=list(settings)[-1]):
            JobSettings(**settings)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"unique_key": ""}, "unique_key '' cannot be used: it is empty"),
            ({"unique_key": "x" * 201}, "it has 201 characters, and 200 are the most"),
            ({"key": ""}, "key '' cannot be used: it is empty"),
            ({"key": 7}, "key 7 cannot be used: it must be text, not int"),
            ({"correlation_id": "a\x00"}, "it holds a NUL character"),
            ({"correlation_id": "a\n"}, "it holds control characters"),
            ({"instance_id": "x" * 201}, "instance_id 'xxx.* cannot be used"),
            ({"tags": "a"}, "tags must be a list of texts, not str"),
            ({"tags": {"a"}}, "tags must be a list of texts, not set"),
            ({"tags": [""]}, "Tag '' cannot be used: it is empty"),
            ({"tags": [1]}, "Tag 1 cannot be used: it must be text"),
            ({"tags": ["a"] * 51}, "50 tags at most, not 51"),
            ({"priority": 2**15}, "priority=32768 cannot be used"),
            ({"max_attempts": 0}, "max_attempts=0 cannot be used: give a positive whole number or None"),
            ({"unique_seconds": -1}, "unique_seconds=-1 cannot be used"),
            ({"delay_seconds": 0}, "delay_seconds=0 cannot be used"),
            ({"run_at": datetime(2024, 1, 1)}, "give a datetime with a time zone"),  # noqa: DTZ001 - naive on purpose
            ({"run_at": "2024-01-01"}, "give a datetime with a time zone"),
            ({"run_at": datetime(2024, 1, 1, tzinfo=UTC), "delay_seconds": 1}, "Give one of them"),
        ],
        ids=str,
    )
    def test_options(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            TestManners.job.options(**options)

    def test_the_longest_key(self) -> None:
        assert TestManners.job.options(key="x" * 200).columns["limit_key"] == "x" * 200

    def test_a_window_without_a_key(self, queue: Queue) -> None:
        with pytest.raises(ConfigurationError, match="Give a unique_key too"):
            job_of(queue).options(unique_seconds=5).enqueue(order_id=1)

    def test_one_key_for_many(self, queue: Queue) -> None:
        bound = job_of(queue).options(unique_key="k")
        with pytest.raises(ConfigurationError, match="can be held by one job, and 2 were to be enqueued"):
            bound.enqueue_many([{"order_id": 1}, {"order_id": 2}])
        assert bound.enqueue_many([{"order_id": 1}]) == 1
        assert len(queue.claim()) == 1

    def test_arguments_that_do_not_fit_add_nothing(self, queue: Queue) -> None:
        with pytest.raises(PayloadError, match="cannot take argument 'order_id'"):
            job_of(queue).enqueue(order_id="7")
        with pytest.raises(
            PayloadError, match=r"Arguments \[1\] of many, none of which was enqueued: Job 'send_receipt'"
        ):
            job_of(queue).enqueue_many([{"order_id": 7}, {}])
        with pytest.raises(PayloadError, match=r"\[0\].*must be a dict of names and values, not int"):
            job_of(queue).enqueue_many([7])  # type: ignore[list-item] # wrong on purpose
        with pytest.raises(PayloadError, match="payload of 15 bytes: at most 10"):
            job_of(queue, max_payload_bytes=10).enqueue(order_id=77)
        assert queue.claim() == []


class TestLimits:
    def test_all_of_them(self) -> None:
        limits = limits_of(concurrency=3, concurrency_per_key=1, rate=(100, 60), rate_per_key=(5, 0.5))
        assert limits == TopicLimits(
            max_running=3,
            max_running_per_key=1,
            rate_count=100,
            rate_seconds=60,
            rate_count_per_key=5,
            rate_seconds_per_key=0.5,
        )
        assert limits_of() == TopicLimits()

    @pytest.mark.parametrize(
        ("limits", "message"),
        [
            ({"concurrency": 0}, "concurrency=0 cannot be used"),
            ({"concurrency_per_key": -1}, "concurrency_per_key=-1 cannot be used"),
            ({"rate": "100/60"}, r"rate='100/60' cannot be used: give \(count, seconds\), as in rate=\(100, 60\)"),
            ({"rate": (1, 2, 3)}, r"give \(count, seconds\)"),
            ({"rate": (0, 60)}, "the count of rate=0 cannot be used"),
            ({"rate_per_key": (1, 0)}, "the seconds of rate_per_key=0 cannot be used"),
        ],
    )
    def test_refusals(self, limits: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            limits_of(**limits)


def test_a_bound_job_knows_its_definition() -> None:
    assert TestManners.job.options() == BoundJob(TestManners.job)


def test_a_topic_of_engines_is_refused() -> None:
    hf = Holdfast("sqlite:///never-opened.db")
    with pytest.raises(ConfigurationError, match="messages of engines"):
        hf.job(topic="engine.hmac-queue")(lambda: None)
