"""A slot of a periodic job is enqueued once across a fleet, at the right moment, whatever clocks and processes do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import Connection

from holdfast.core.errors import ConfigurationError, PayloadError
from holdfast.jobs.correlation import current_correlation_id
from holdfast.jobs.definition import BoundJob, JobDefinition
from holdfast.jobs.model import NewJob
from holdfast.jobs.periodic import Periodic, PeriodicEnqueuer
from holdfast.jobs.stores.base import SqlJobStore
from tests.clocks import SteppedClock
from tests.jobs.queues import Queue

BERLIN = ZoneInfo("Europe/Berlin")


def tidy(context: object, depth: int = 1) -> None: ...


def no_store() -> SqlJobStore:
    raise AssertionError("nothing may reach the database here")


JOB = JobDefinition(tidy, topic="email", store=no_store)


def periodic(
    cron: str = "* * * * *",
    name: str = "tidy",
    zone: str = "UTC",
    job: JobDefinition | BoundJob = JOB,
    **arguments: Any,
) -> Periodic:
    return Periodic(name, cron, zone, job, arguments)


def slots(cron: str, start: datetime, count: int, zone: str = "Europe/Berlin") -> list[datetime]:
    found, at = [], start
    for _ in range(count):
        at = periodic(cron, zone=zone).next_after(at)
        found.append(at)
    return found


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type] # the parts of a moment


class TestSlots:
    def test_the_next_is_later(self) -> None:
        every_minute = periodic()
        assert every_minute.next_after(utc(2024, 1, 1, 12)) == utc(2024, 1, 1, 12, 1)
        assert every_minute.next_after(utc(2024, 1, 1, 12, 0, 59, 999_999)) == utc(2024, 1, 1, 12, 1)

    def test_hours_are_those_of_the_zone(self) -> None:
        assert slots("30 6 * * *", utc(2024, 1, 10), 1) == [utc(2024, 1, 10, 5, 30)]
        assert slots("30 6 * * *", utc(2024, 7, 10), 1) == [utc(2024, 7, 10, 4, 30)]
        assert slots("30 6 * * *", utc(2024, 7, 10), 1, "Asia/Kolkata") == [utc(2024, 7, 10, 1)]

    def test_six_fields_begin_with_the_second(self) -> None:
        assert slots("*/20 * * * * *", utc(2024, 1, 1), 2) == [utc(2024, 1, 1, 0, 0, 20), utc(2024, 1, 1, 0, 0, 40)]

    def test_spring_forward(self) -> None:  # on 2024-03-31 there is no hour from 02:00 to 03:00 in Berlin
        before = datetime(2024, 3, 30, 12, tzinfo=BERLIN)
        assert slots("30 2 * * *", before, 3) == [
            utc(2024, 3, 31, 1),  # the end of the gap, 03:00
            utc(2024, 4, 1, 0, 30),
            utc(2024, 4, 2, 0, 30),
        ]
        assert slots("0,30 2 * * *", before, 2) == [utc(2024, 3, 31, 1), utc(2024, 4, 1)]
        assert slots("30 * * * *", utc(2024, 3, 31), 3) == [utc(2024, 3, 31, hour, 30) for hour in (0, 1, 2)]
        assert slots("0 30 2 * * *", before, 1) == [utc(2024, 3, 31, 1)]

    def test_fall_back(self) -> None:  # on 2024-10-27 the hour from 02:00 to 03:00 comes twice in Berlin
        before = datetime(2024, 10, 26, 12, tzinfo=BERLIN)
        assert slots("30 2 * * *", before, 2) == [utc(2024, 10, 27, 0, 30), utc(2024, 10, 28, 1, 30)]
        assert slots("30 * * * *", utc(2024, 10, 27), 3) == [utc(2024, 10, 27, hour, 30) for hour in (0, 1, 2)]
        assert slots("0 30 2 * * *", before, 2) == [utc(2024, 10, 27, 0, 30), utc(2024, 10, 28, 1, 30)]

    def test_inside_the_second_pass_of_an_hour(self) -> None:
        nightly = periodic("30 2 * * *", zone="Europe/Berlin")
        assert nightly.next_after(utc(2024, 10, 27, 1, 10)) == utc(2024, 10, 28, 1, 30)
        assert nightly.latest_slot(utc(2024, 10, 27, 0, 30), utc(2024, 10, 27, 1, 59)) is None

    def test_leap_day(self) -> None:
        assert slots("0 0 29 2 *", utc(2023, 1, 1), 2, "UTC") == [utc(2024, 2, 29), utc(2028, 2, 29)]
        leap = periodic("0 0 29 2 *")
        assert leap.latest_slot(utc(2020, 3, 1), utc(2024, 2, 28, 23, 59)) is None
        assert leap.latest_slot(utc(2020, 3, 1), utc(2024, 2, 29)) == utc(2024, 2, 29)

    def test_the_newest_that_is_due(self) -> None:
        hourly = periodic("0 * * * *")
        noon = utc(2024, 1, 1, 12)
        assert hourly.latest_slot(noon, noon + timedelta(minutes=59)) is None
        assert hourly.latest_slot(noon - timedelta(seconds=1), noon) == noon
        assert hourly.latest_slot(noon - timedelta(days=900), noon + timedelta(minutes=59)) == noon
        assert hourly.latest_slot(noon, noon - timedelta(days=1)) is None

    @settings(deadline=None)
    @given(
        st.sampled_from(
            [
                "* * * * *",
                "*/7 * * * *",
                "30 2 * * *",
                "0,30 1-3 * * *",
                "15 */2 * * *",
                "*/11 2 * * SUN",
                "0 0 2 * * *",
            ]
        ),
        st.sampled_from(["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "UTC"]),
        st.sampled_from([utc(2024, 3, 31), utc(2024, 10, 27), utc(2024, 4, 6, 12), utc(2024, 10, 5, 12)]),
        st.integers(0, 86_400),
        st.integers(0, 7_200),
    )
    def test_the_newest_is_the_last_of_all(self, cron: str, zone: str, day: datetime, start: int, seconds: int) -> None:
        schedule = periodic(cron, zone=zone)
        after = day + timedelta(seconds=start)
        now = after + timedelta(seconds=seconds)
        expected, following = None, schedule.next_after(after)
        while following <= now:
            expected, following = following, schedule.next_after(following)
        assert schedule.latest_slot(after, now) == expected

    @pytest.mark.parametrize(
        ("cron", "newest"),
        [
            ("* * * * *", utc(2024, 2, 29)),
            ("* * * * * *", utc(2024, 2, 29)),
            ("0 0 29 2 *", utc(2024, 2, 29)),
            ("* * * * 1 *", utc(2024, 1, 31, 23, 59, 59)),
        ],
    )
    def test_a_long_absence_is_looked_at_in_few_steps(
        self, cron: str, newest: datetime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps, next_after = [], Periodic.next_after

        def counted(schedule: Periodic, moment: datetime) -> datetime:
            steps.append(moment)
            return next_after(schedule, moment)

        monkeypatch.setattr(Periodic, "next_after", counted)
        assert periodic(cron).latest_slot(utc(2004, 1, 1), utc(2024, 2, 29)) == newest
        assert len(steps) < 100


class TestRefusals:
    @pytest.mark.parametrize(
        "cron",
        [
            "* * *",
            "61 * * * *",
            "",
            "@daily",
            "* * * * * * *",
            "0 0 31 2 *",
            "5-1 * * * *",
            "a * * * *",
            "9" * 5000,
            None,
        ],
        ids=lambda cron: str(cron)[:12],
    )
    def test_bad_expressions(self, cron: Any) -> None:
        with pytest.raises(
            ConfigurationError, match=r"(?s)^The cron expression .* of periodic job 'tidy' cannot be read"
        ):
            periodic(cron)

    def test_an_expression_that_never_comes(self) -> None:
        with pytest.raises(ConfigurationError, match="names no moment in the next fifty years"):
            periodic("* * */20 * 1L")

    @pytest.mark.parametrize("zone", ["Europe/Atlantis", "", "../etc/passwd", "/etc/passwd", "Europe", None])
    def test_unknown_zones(self, zone: Any) -> None:
        with pytest.raises(ConfigurationError, match=f"time zone {zone!r}, which is not known here"):
            periodic(zone=zone)

    @pytest.mark.parametrize("name", ["", "!x", "x" * 151])
    def test_names(self, name: str) -> None:
        with pytest.raises(ConfigurationError, match=r"The name of a periodic job .* cannot be used"):
            periodic(name=name)

    def test_two_of_the_same_name(self, queue: Queue) -> None:
        with pytest.raises(ConfigurationError, match="Two periodic jobs are called 'tidy'"):
            PeriodicEnqueuer(queue.store, [periodic(), periodic("0 * * * *")], SteppedClock())

    def test_arguments_are_checked_at_once(self) -> None:
        with pytest.raises(PayloadError, match="has no argument 'deep'"):
            periodic(deep=3)

    def test_its_time_is_its_slot(self) -> None:
        for bound in (JOB.options(delay_seconds=1), JOB.options(run_at=utc(2024, 1, 1))):
            with pytest.raises(ConfigurationError, match="runs at its slots"):
                periodic(job=bound)


class Fleet:
    """Enqueuers on one queue, their database and monotonic time stepped together."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.clock = SteppedClock()

    def join(self, *periodics: Periodic) -> PeriodicEnqueuer:
        enqueuer = PeriodicEnqueuer(self.queue.store, periodics, self.clock)
        enqueuer.tick()
        return enqueuer

    def step(self, seconds: float) -> None:
        self.queue.step(seconds)
        self.clock.advance(seconds)

    def to_next_slot(self, schedule: Periodic) -> datetime:
        now = self.queue.store.now()
        slot = schedule.next_after(now)
        self.step((slot - now).total_seconds() + 1)
        return slot

    def jobs(self) -> list[datetime]:
        return sorted(job.run_at for job in self.queue.claim() if job.run_at is not None)


@pytest.fixture
def fleet(queue: Queue) -> Fleet:
    return Fleet(queue)


def check_one_job_per_slot(fleet: Fleet) -> None:
    every_hour = periodic("0 * * * *", depth=2)
    anne, bert = fleet.join(every_hour), fleet.join(every_hour)
    for _ in range(3):
        slot = fleet.to_next_slot(every_hour)
        anne.tick()
        bert.tick()
        assert fleet.jobs() == [slot]


class TestFleet:
    def test_a_slot_is_enqueued_once(self, fleet: Fleet) -> None:  # [PERIODIC-1]
        check_one_job_per_slot(fleet)

    def test_without_the_guard_it_would_be_enqueued_twice(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fleet.queue.store, "take_slot", lambda *_: True)
        with pytest.raises(AssertionError):
            check_one_job_per_slot(fleet)

    def test_all_at_the_same_time(self, fleet: Fleet) -> None:  # [PERIODIC-1]
        every_hour = periodic("0 * * * *")
        enqueuers = [fleet.join(every_hour) for _ in range(4)]
        slot = fleet.to_next_slot(every_hour)
        run_together([enqueuer.tick for enqueuer in enqueuers])
        assert fleet.jobs() == [slot]

    def test_the_job_is_as_it_was_told(self, fleet: Fleet) -> None:
        token = current_correlation_id.set("not its business")
        try:
            nightly = periodic("0 * * * *", job=JOB.options(priority=4, tags=["night"]), depth=2)
        finally:
            current_correlation_id.reset(token)
        enqueuer = fleet.join(nightly)
        slot = fleet.to_next_slot(nightly)
        enqueuer.tick()
        [job] = fleet.queue.claim()
        assert (job.operation, job.payload, job.run_at) == ("tidy", '{"depth":2}', slot)
        assert (job.priority, job.tags, job.named_correlation_id) == (4, '["night"]', None)

    def test_a_new_one_does_not_run_at_once(self, fleet: Fleet) -> None:
        fleet.join(periodic("0 * * * *"), periodic(name="other"))
        assert fleet.jobs() == []

    def test_missed_slots_collapse_into_one_run(self, fleet: Fleet) -> None:
        every_minute = periodic()
        enqueuer = fleet.join(every_minute)
        fleet.to_next_slot(every_minute)
        enqueuer.tick()
        assert len(fleet.jobs()) == 1
        fleet.step(86_400)
        slot = fleet.to_next_slot(every_minute)
        restarted = fleet.join(every_minute)
        assert fleet.jobs() == [slot]
        enqueuer.tick()
        restarted.tick()
        assert fleet.jobs() == []

    def test_a_first_slot_that_nobody_was_there_for(self, fleet: Fleet) -> None:
        monthly = periodic("0 0 1 * *")
        fleet.join(monthly)
        slot = fleet.to_next_slot(monthly)
        fleet.step(3600)
        fleet.join(monthly)
        assert fleet.jobs() == [slot]

    def test_a_late_joiner_does_not_forget_a_slot_in_between(self, fleet: Fleet) -> None:
        every_minute = periodic()
        anne = fleet.join(every_minute)
        slot = fleet.to_next_slot(every_minute)
        fleet.join(every_minute)
        anne.tick()
        assert fleet.jobs() == [slot]

    def test_a_crash_between_taking_and_enqueueing_gives_the_slot_back(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        every_minute = periodic()
        anne, bert = fleet.join(every_minute), fleet.join(every_minute)
        slot = fleet.to_next_slot(every_minute)

        def crash(job: NewJob, connection: Connection) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(fleet.queue.store, "enqueue", crash)
            with pytest.raises(KeyboardInterrupt):
                anne.tick()
        bert.tick()
        anne.tick()
        assert fleet.jobs() == [slot]

    def test_a_unique_key_skips_slots_while_a_run_goes_on(self, fleet: Fleet) -> None:
        every_minute = periodic(job=JOB.options(unique_key="tidy"))
        enqueuer = fleet.join(every_minute)
        for expected in (1, 0, 0):
            fleet.to_next_slot(every_minute)
            enqueuer.tick()
            assert len(fleet.jobs()) == expected

    def test_a_clock_that_is_set_back_repeats_nothing(self, fleet: Fleet) -> None:
        every_minute = periodic()
        enqueuer = fleet.join(every_minute)
        fleet.to_next_slot(every_minute)
        enqueuer.tick()
        fleet.queue.step(-600)
        fleet.clock.advance(61)
        enqueuer.tick()
        assert len(fleet.jobs()) == 1


class TestTicking:
    def test_it_says_when_the_next_slot_comes(self, fleet: Fleet) -> None:
        enqueuer = PeriodicEnqueuer(fleet.queue.store, [periodic(), periodic("0 0 1 1 *", "yearly")], fleet.clock)
        now = fleet.queue.store.now()
        seconds = enqueuer.tick()
        assert seconds is not None
        assert 0 < seconds <= (periodic().next_after(now) - now).total_seconds()

    def test_it_looks_again_within_a_minute(self, fleet: Fleet) -> None:
        far = next(cron for cron in ("0 0 1 1 *", "0 0 1 7 *") if wait_of(fleet, cron) > 60)
        assert PeriodicEnqueuer(fleet.queue.store, [periodic(far)], fleet.clock).tick() == 60

    def test_it_does_not_ask_the_database_before(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        enqueuer = PeriodicEnqueuer(fleet.queue.store, [periodic()], fleet.clock)
        seconds = enqueuer.tick()
        assert seconds is not None
        monkeypatch.setattr(fleet.queue.store, "now", lambda *_: pytest.fail("asked too early"))
        fleet.clock.advance(seconds / 2)
        assert enqueuer.tick() == pytest.approx(seconds / 2)

    def test_nothing_to_watch(self, queue: Queue) -> None:
        assert PeriodicEnqueuer(queue.store, []).tick() is None

    def test_the_databases_time_is_aware_and_follows_its_steps(self, queue: Queue) -> None:
        before = queue.store.now()
        queue.step(5000)
        with queue.store.transaction() as connection:
            assert timedelta(seconds=4999) < queue.store.now(connection) - before < timedelta(seconds=5300)
        assert before.utcoffset() == timedelta(0)


def wait_of(fleet: Fleet, cron: str) -> float:
    now = fleet.queue.store.now()
    return (periodic(cron).next_after(now) - now).total_seconds()


def run_together(actions: Sequence[Callable[[], object]]) -> None:
    """Run actions in threads that start as one, and let their errors out."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(actions))

    def run(action: Callable[[], object]) -> None:
        start.wait()
        try:
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
