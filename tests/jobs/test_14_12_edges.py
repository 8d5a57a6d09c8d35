"""At the edges of a handler: rates, forgotten awaits, what leaks, groups of errors, values that cannot be."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.errors import ConfigurationError
from holdfast.jobs.context import JobContext
from holdfast.jobs.definition import BoundJob, JobDefinition
from holdfast.jobs.limits import Bucket
from holdfast.jobs.listing import job_id_of
from holdfast.jobs.outcomes import Discard, Retry, Snooze, decisive
from holdfast.jobs.settings import WorkerSettings, limits_of
from tests.components.processes import wait_until
from tests.jobs.queues import Queue, open_queue
from tests.jobs.workers import QUICK, Work

RARE = WorkerSettings(concurrency=4, beat_seconds=1, watchdog_seconds=60, poll_seconds=60, drain_seconds=10)
ONE_THREAD = WorkerSettings(concurrency=1, ahead=0, beat_seconds=1, poll_seconds=0.05)


@pytest.fixture
def alone(sqlite_url: str) -> Iterator[Queue]:
    """One database is enough for what is not about its statements."""
    with open_queue(sqlite_url) as opened:
        yield opened


def errors_of(queue: Queue) -> list[str]:
    return [entry["error"] for entry in queue.history()]


class TestRates:
    def test_14_12_a_worker_looks_again_when_the_next_token_comes(self, queue: Queue) -> None:
        """Whoever waits for the next poll, a minute here, starts one job a minute."""
        work = Work(queue, RARE)
        job = work.job(lambda n: n)
        queue.store.set_limits("email", limits_of(rate=(1, 0.1)))
        job.enqueue_many([{"n": n} for n in range(8)])
        with work.running():
            work.until_empty()
        assert len(queue.history()) == 8

    def test_14_12_rates_of_keys_too(self, alone: Queue) -> None:
        work = Work(alone, RARE)
        job = work.job(lambda n: n)
        alone.store.set_limits("email", limits_of(rate_per_key=(1, 0.1)))
        for key in ("a", "b"):
            job.options(key=key).enqueue_many([{"n": n} for n in range(4)])
        with work.running():
            work.until_empty()
        assert len(alone.history()) == 8

    def test_14_12_a_look_that_comes_a_moment_late_costs_nothing(self, queue: Queue) -> None:
        queue.store.set_limits("email", limits_of(rate=(1, 0.1)))
        for _ in range(40):
            queue.add()
        started, passed = 0, 0.0
        while passed < 2.5:
            started += len(queue.claim_limited())
            pause = queue.store.rate_opens_in("email")
            if pause is not None:
                queue.step(pause + 0.03)
                passed += pause + 0.03
        assert started >= 23, "of 26 that the rate allows; without what came late it would be 20"

    def test_14_12_a_long_pause_gives_no_more_than_the_count(self) -> None:
        for count, seconds in ((1, 60.0), (1, 0.1), (100, 1.0)):
            bucket = Bucket.refilled(count, seconds, 0.0, 1e6)
            assert int(bucket.tokens) == count
        assert Bucket.refilled(1, 60.0, 0.0, 1e6).tokens < 1.001, "not even a fraction of the next that counts"


@pytest.mark.parametrize("wish", [Snooze(in_seconds=1), Retry(), Discard()], ids=lambda wish: type(wish).__name__)
def test_14_12_a_wish_that_is_returned_is_a_failure_that_says_what_to_write(alone: Queue, wish: Exception) -> None:
    work = Work(alone)
    work.job(lambda: wish, max_attempts=1).enqueue()
    with work.running():
        work.until_empty()
    kind = type(wish).__name__
    assert errors_of(alone) == [f"The handler returned {kind}(…) instead of raising it. Write: raise {kind}(…)"]


class TestForgottenAwaits:
    def test_14_12_a_def_handler_that_returns_a_coroutine_has_failed(self, alone: Queue) -> None:
        ran: list[str] = []

        async def send() -> None:
            ran.append("it")

        def forgetful() -> Any:
            return send()

        async def forgetful_too() -> Any:
            return send()

        def generating() -> Any:
            return (number for number in range(3))

        work = Work(alone)
        for function in (forgetful, forgetful_too, generating):
            work.job(function, max_attempts=1).enqueue()
        with work.running():
            work.until_empty()
        assert ran == []
        first, second, third = sorted(errors_of(alone))
        assert first.startswith("The handler returned 'TestForgottenAwaits.test_14_12_a_def_handler_that")
        assert {first.rpartition("never done. ")[2], second.rpartition("never done. ")[2]} == {
            "Make the handler an async def, and await it there.",
            "Write return await ….",
        }
        assert third == "The handler returned a generator, which nobody runs, so nothing was done. Return a value."


TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


class TestWhatLeaks:
    def test_14_12_context_variables_and_decimals_are_each_jobs_own(self, alone: Queue) -> None:
        def leaky(n: int) -> list[Any]:
            found = [TENANT.get(), decimal.getcontext().prec]
            TENANT.set(f"tenant {n}")
            decimal.getcontext().prec = 3 + n
            return [*found, threading.get_ident()]

        async def leaky_async(n: int) -> list[Any]:
            return leaky(n)

        work = Work(alone, ONE_THREAD)
        for function in (leaky, leaky_async):
            work.job(function).enqueue_many([{"n": n} for n in range(4)])
        with work.running():
            work.until_empty()
        found = [entry["output"] for entry in alone.history()]
        assert len(found) == 8
        assert all(output.startswith('["nobody", 28, ') for output in found), found
        assert len(set(found)) == 2, "one thread, and the loop's"


class TestGroups:
    def run(self, queue: Queue, *errors: BaseException, **settings: Any) -> int:
        async def grouped() -> None:
            async def fail(error: BaseException) -> None:
                raise error

            async with asyncio.TaskGroup() as tasks:
                for error in errors:
                    tasks.create_task(fail(error))

        work = Work(queue)
        added = work.job(grouped, **settings).enqueue()
        with work.running():
            wait_until(lambda: queue.status(added.id) not in ("ready", "running"), "it to end")
        return added.id

    def test_14_12_the_causes_are_told(self, alone: Queue) -> None:
        self.run(alone, ValueError("bad order"), KeyError("price"), max_attempts=1)
        [error] = errors_of(alone)
        said = "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): "
        assert error == f"{said}ValueError: bad order; KeyError: 'price'"

    def test_14_12_a_snooze_inside_is_a_snooze(self, alone: Queue) -> None:
        job_id = self.run(alone, Snooze("later", in_seconds=600), max_attempts=1)
        assert (alone.status(job_id), alone.history()) == ("scheduled", [])  # type: ignore[arg-type] # an id

    def test_14_12_a_discard_inside_is_a_dead_letter_at_once(self, alone: Queue) -> None:
        self.run(alone, ValueError("bad"), Discard("never"), max_attempts=5)
        [letter] = alone.dead_letters()
        assert letter["error_message"] == "never"

    def test_14_12_what_counts_in_a_group(self) -> None:
        snooze, longer = Snooze(in_seconds=1), Snooze(in_seconds=2)
        retry, discard, error = Retry(in_seconds=3), Discard("no"), ValueError("x")
        for expected, inside in (
            (longer, [snooze, longer]),
            (retry, [snooze, error, retry]),
            (discard, [retry, ExceptionGroup("inner", [error, discard])]),
        ):
            assert decisive(ExceptionGroup("outer", inside)) is expected
        failed = ExceptionGroup("outer", [snooze, error])
        assert decisive(failed) is failed
        assert decisive(error) is error


NOT_JSON: list[Any] = [object(), float("nan"), {1: {2, 3}}, Decimal(1), b"x"]


class TestValuesThatCannotBe:
    @pytest.mark.parametrize("wish", [Snooze, Retry])
    @pytest.mark.parametrize("seconds", [Decimal("1.5"), "5", True, float("nan"), timedelta(seconds=1)])
    def test_14_12_pauses(self, wish: Callable[..., Exception], seconds: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"in_seconds=.* cannot be used: give a number of seconds"):
            wish(in_seconds=seconds)

    def test_14_12_pauses_that_are_too_long_or_negative_can_be_meant(self) -> None:
        assert Snooze(in_seconds=-1).in_seconds == 0
        assert Snooze(in_seconds=10**400).in_seconds == Snooze(in_seconds=float("inf")).in_seconds

    @pytest.mark.parametrize(
        "moment",
        [
            datetime.min.replace(tzinfo=UTC),
            datetime.min.replace(tzinfo=timezone(timedelta(hours=2))),
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-2))),
            datetime(999, 12, 31, tzinfo=UTC),
        ],
    )
    def test_14_12_moments(self, moment: datetime) -> None:
        with pytest.raises(ConfigurationError, match=r"run_at=.* in UTC it must be in the years 1000 to 9999"):
            self.anything().options(run_at=moment)

    def test_14_12_the_first_and_the_last_moment(self, queue: Queue) -> None:
        work = Work(queue)
        job = work.job(lambda: None)
        first = job.options(run_at=datetime(1000, 1, 1, tzinfo=UTC)).enqueue()
        last = job.options(run_at=datetime.max.replace(tzinfo=UTC)).enqueue()
        assert (queue.status(first.id), queue.status(last.id)) == ("ready", "scheduled")

    def anything(self) -> BoundJob:
        def job() -> None: ...

        return BoundJob(JobDefinition(job, topic="email", store=lambda: pytest.fail("nothing may reach the database")))

    def test_14_12_progress(self, alone: Queue) -> None:
        refused: list[str] = []

        def tell(context: JobContext) -> None:
            for progress in ("x" * 20_000_000, *NOT_JSON[:2]):
                with pytest.raises(ConfigurationError) as caught:
                    context.heartbeat(progress)
                refused.append(str(caught.value))
            context.heartbeat({"done": 3})

        work = Work(alone)
        work.job(tell, max_attempts=1).enqueue()
        with work.running():
            work.until_empty()
        assert [entry["status"] for entry in alone.history()] == ["Succeeded"]
        assert refused[0].startswith("The progress has 20,000,002 bytes, and at most 1,048,576 are kept.")
        assert all(error.startswith("The progress cannot be kept as JSON: ") for error in refused[1:])

    def test_14_12_results_cost_neither_the_job_nor_its_neighbours(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        results = [*NOT_JSON, "\ud800", "x" * 2_000_000, "\x00", 2**70]

        def give(n: int) -> Any:
            return results[n] if n < len(results) else n

        work = Work(queue, QUICK)
        work.job(give, max_attempts=1).enqueue_many([{"n": n} for n in range(20)])
        with work.running():
            work.until_empty()
        # attempts are not looked at: a slow worker gives some back before they begin
        assert [entry["status"] for entry in queue.history()] == ["Succeeded"] * 20
        assert sum("was not kept" in message for message in caplog.messages) == len(NOT_JSON) + 1

    def test_14_12_pauses_that_cannot_be_cost_no_neighbour(self, queue: Queue) -> None:
        def wish(n: int) -> None:
            if n == 0:
                raise Snooze(in_seconds=Decimal("1.5"))  # type: ignore[arg-type] # that is the point
            raise Discard("as meant")

        work = Work(queue, QUICK)
        work.job(wish, max_attempts=1).enqueue_many([{"n": n} for n in range(10)])
        with work.running():
            work.until_empty()
        errors = errors_of(queue)
        assert errors.count("as meant") == 9
        [other] = [error for error in errors if error != "as meant"]
        assert other.startswith("ConfigurationError: in_seconds=Decimal('1.5') cannot be used")

    def test_14_12_ids(self, sqlite_url: str) -> None:
        hf = Holdfast(sqlite_url)
        added = hf.job(topic="mail", name="a")(lambda: None).enqueue()
        for call in (hf.jobs.cancel, hf.jobs.retry):
            with pytest.raises(ConfigurationError, match="is no job's id: ids are less than 2⁶³"):
                call(added.id, 2**63)
        for find in (hf.jobs.get, hf.jobs.result):
            with pytest.raises(ConfigurationError, match="is no job's id"):
                find(2**70)
            assert find(2**63 - 1) is None
        found = hf.jobs.get(added.id)
        assert found is not None
        assert found.status == "ready", "the neighbour was not touched"
        assert job_id_of(f"job-{2**63}") is None
        hf._provider.dispose_all()


BIG = 10**400
ENDLESS = 10**5000  # which Python does not even show


@pytest.mark.parametrize(
    "seconds", [BIG, -BIG, ENDLESS, 1e400, float("nan")], ids=["big", "below", "endless", "inf", "nan"]
)
@pytest.mark.parametrize(
    "give",
    [
        lambda hf, given: hf.job(max_seconds=given),
        lambda hf, given: hf.job(lease_seconds=given),
        lambda hf, given: hf.job(retry_base_seconds=given),
        lambda hf, given: hf.job(retry_max_seconds=given),
        lambda hf, given: hf.job(unique_seconds=given),
        lambda hf, given: hf.job(rate=(1, given)),
        lambda hf, given: hf.job(name="late")(lambda: None).options(delay_seconds=given),
        lambda hf, given: WorkerSettings(poll_seconds=given),
        lambda hf, given: WorkerSettings(drain_seconds=given),
    ],
)
def test_14_12_no_number_of_seconds_is_too_large_for_a_clear_sentence(give: Callable[..., Any], seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"a century at most|must be above 0") as caught:
        give(Holdfast("sqlite:///never-opened.db"), seconds)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("seconds", [BIG, ENDLESS], ids=["big", "endless"])
def test_14_12_a_pause_without_end_is_a_century(seconds: Any) -> None:
    assert Snooze(in_seconds=seconds).in_seconds == Retry("x", in_seconds=seconds).in_seconds == 100 * 366 * 86_400
    assert Snooze(in_seconds=-seconds).in_seconds == 0
