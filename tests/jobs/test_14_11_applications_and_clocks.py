"""Periodic names and topics' limits belong to an application; a clock that was wrong for a moment stops nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from holdfast import ConfigurationError, Holdfast
from holdfast.core.schedule import Schedule
from holdfast.jobs.definition import JobDefinition
from holdfast.jobs.model import TopicLimits, WorkerId
from holdfast.jobs.overview import next_runs
from holdfast.jobs.periodic import Periodic, PeriodicEnqueuer
from holdfast.jobs.settings import limits_of
from holdfast.jobs.store import job_store
from holdfast.jobs.stores.base import SqlJobStore
from tests.clocks import SteppedClock
from tests.jobs.conftest import DATABASES
from tests.jobs.queues import Queue

TEN_YEARS = 3653 * 86_400.0


class Service:
    """One application's enqueuer on a queue whose time is stepped."""

    def __init__(self, queue: Queue, name: str | None, clock: SteppedClock, cron: str = "0 * * * *") -> None:
        self.queue, self.clock = queue, clock
        self.store: SqlJobStore = job_store(queue.engine, ahead_seconds=lambda: queue.ahead_seconds, application=name)
        topic = name or "anybody"

        def cleanup() -> None: ...

        self.periodic = Periodic("cleanup", cron, "UTC", JobDefinition(cleanup, topic=topic, store=lambda: self.store))
        self.enqueuer = PeriodicEnqueuer(self.store, [self.periodic], clock)
        self.topic = topic
        self.enqueuer.tick()

    def step(self, seconds: float) -> None:
        self.queue.step(seconds)
        self.clock.advance(max(0.0, seconds))

    def to_next_slot(self) -> datetime:
        now = self.store.now()
        slot = self.periodic.next_after(now)
        self.step((slot - now).total_seconds() + 1)
        return slot

    def taken(self) -> list[datetime | None]:
        """Return the slots of jobs that were enqueued since the last call."""
        self.enqueuer.tick()
        self.store.promote()
        return [job.run_at for job in self.queue.claim(topics=(self.topic,))]


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


def wrong_for_one_tick(service: Service) -> None:
    service.queue.step(TEN_YEARS)
    service.clock.advance(61)
    service.enqueuer.tick()
    service.queue.step(-TEN_YEARS)


def test_14_11_a_database_clock_that_is_ten_years_ahead_for_one_tick_stops_nothing(
    queue: Queue, clock: SteppedClock, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(queue, "shop", clock)
    slot = service.to_next_slot()
    assert service.taken() == [slot]
    wrong_for_one_tick(service)
    with queue.engine.begin() as connection:  # as if the clock had been right again when the job was written
        connection.execute(text("UPDATE holdfast_jobs SET status = 'scheduled' WHERE status = 'ready'"))
    service.clock.advance(61)
    assert service.taken() == [], "the present clock is not believed at once"
    service.clock.advance(61)
    assert len(service.taken()) == 1, "what waited for that slot runs now"
    [told] = [message for message in caplog.messages if "is taken back" in message]
    assert told.startswith("Periodic job 'cleanup': its last slot, 20")
    for _ in range(2):
        slot = service.to_next_slot()
        assert service.taken() == [slot]


def test_14_11_another_worker_that_knows_better_misses_nothing(queue: Queue, clock: SteppedClock) -> None:
    """The one whose clock was wrong died; a slot came due before the others noticed."""
    anne, bert = Service(queue, "shop", clock), Service(queue, "shop", clock)
    wrong_for_one_tick(anne)
    assert len(queue.claim(topics=("shop",))) == 1
    slot = bert.to_next_slot()
    assert bert.taken() == [], "refused, because of the slot that lies ahead"
    for seconds in (30, 61):
        bert.clock.advance(seconds)
        bert.enqueuer.tick()
    bert.clock.advance(61)
    assert bert.taken() == [slot]


def test_14_11_a_clock_that_was_set_back_a_little_repeats_nothing(queue: Queue, clock: SteppedClock) -> None:
    service = Service(queue, "shop", clock)
    slot = service.to_next_slot()
    assert service.taken() == [slot]
    queue.step(-1800)
    for _ in range(3):
        clock.advance(61)
        assert service.taken() == []


def test_14_11_two_services_with_a_periodic_job_of_one_name_have_slots_of_their_own(
    queue: Queue, clock: SteppedClock
) -> None:
    shop, mail = Service(queue, "shop", clock), Service(queue, "mail", clock)
    second_worker = Service(queue, "mail", clock)
    for _ in range(2):
        slot = shop.to_next_slot()
        assert (shop.taken(), mail.taken(), second_worker.taken()) == ([slot], [slot], [])
    assert set(queue.store.places()) == {"cleanup", "!mail!cleanup"}
    for service in (shop, mail):
        [run] = next_runs(service.store, [service.periodic])
        assert (run.last_slot, run.next_slot) == (slot, slot + timedelta(hours=1))


def test_14_11_a_place_from_before_there_were_applications_is_gone_on_with(queue: Queue, clock: SteppedClock) -> None:
    """A worker of the release before, which knows no applications, shares its slots with the new one meanwhile."""
    before = Service(queue, None, clock)
    slot = before.to_next_slot()
    assert before.taken() == [slot]
    before.step(86_400)
    new = Service(queue, "shop", clock)
    assert len(new.taken()) == 1, "what was missed"
    before.step(3600)
    assert len(before.taken()) == 1
    assert new.taken() == []
    assert {name: place.application for name, place in queue.store.places().items()} == {"cleanup": "shop"}


@pytest.mark.parametrize(
    ("cron", "spring", "autumn"),
    [
        ("0 30 2 * * *", ["03-31T01:00:00", "04-01T00:30:00"], ["10-27T00:30:00", "10-28T01:30:00"]),
        ("*/30 30 2 * * *", ["03-31T01:00:00", "03-31T01:00:30"], ["10-27T00:30:00", "10-27T00:30:30"]),
        ("15 0 */2 * * *", ["03-30T13:00:15", "03-30T15:00:15"], ["10-26T10:00:15", "10-26T12:00:15"]),
        ("0 */30 2 * * *", ["04-01T00:00:00", "04-01T00:30:00"], ["10-27T00:00:00", "10-27T00:30:00"]),
    ],
)
def test_14_11_schedules_of_six_fields_follow_the_rule_of_five_when_clocks_change(
    cron: str, spring: list[str], autumn: list[str]
) -> None:
    schedule = Schedule("a test", cron, "Europe/Berlin")
    for day, expected in (((2024, 3, 30, 12), spring), ((2024, 10, 26, 9), autumn)):
        first = schedule.next_after(datetime(*day, tzinfo=UTC))
        assert [f"{slot:%m-%dT%H:%M:%S}" for slot in (first, schedule.next_after(first))] == expected


def test_14_11_one_that_names_its_hours_runs_once_in_the_hour_that_comes_twice() -> None:
    six, five = (Schedule("a test", cron, "Europe/Berlin") for cron in ("0 30 2 * * *", "30 2 * * *"))
    at = datetime(2024, 3, 1, tzinfo=UTC)
    for _ in range(300):
        following = six.next_after(at)
        assert following == five.next_after(at)
        at = following


class TestLimits:
    @pytest.fixture(params=DATABASES)
    def url(self, request: pytest.FixtureRequest) -> str:
        found: str = request.getfixturevalue(request.param)
        return found

    @pytest.fixture
    def shop(self, url: str) -> Iterator[Holdfast]:
        yield from self.application(url, "shop", concurrency=3)

    @pytest.fixture
    def mail(self, url: str) -> Iterator[Holdfast]:
        yield from self.application(url, "mail")

    def application(self, url: str, name: str, **limits: int) -> Iterator[Holdfast]:
        hf = Holdfast(url, app_name=name)
        hf.job(topic="api", name=f"call of {name}", **limits)(lambda: None)  # type: ignore[arg-type] # as given
        yield hf
        hf._provider.dispose_all()

    def limits(self, hf: Holdfast) -> tuple[TopicLimits, str | None]:
        [topic] = hf.jobs.store.topics()
        return topic.limits, topic.limited_by

    def test_14_11_another_services_declaration_erases_nothing(self, shop: Holdfast, mail: Holdfast) -> None:
        shop.jobs.declare_limits()
        mail.jobs.declare_limits()
        assert self.limits(shop) == (limits_of(concurrency=3), "shop")

    def test_14_11_its_own_application_takes_them_back(self, shop: Holdfast, url: str) -> None:
        shop.jobs.declare_limits()
        [later] = self.application(url, "shop", concurrency=4)
        later.jobs.declare_limits()
        assert self.limits(shop) == (limits_of(concurrency=4), "shop")
        [last] = self.application(url, "shop")
        last.jobs.declare_limits()
        assert self.limits(shop) == (TopicLimits(), None)

    def test_14_11_other_limits_are_refused_while_the_first_application_is_at_work(
        self, shop: Holdfast, url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        shop.jobs.declare_limits()
        shop.jobs.store.announce(WorkerId("anne"), {"api": ["call of shop"]})
        [other] = self.application(url, "other", concurrency=9)
        with pytest.raises(ConfigurationError, match=r"limits of the application 'shop', which is at work"):
            other.jobs.declare_limits()
        shop.jobs.store.withdraw(WorkerId("anne"))
        other.jobs.declare_limits()
        assert self.limits(shop) == (limits_of(concurrency=9), "other")
        assert "Topic 'api' had limits of the application 'shop', which is not at work" in caplog.text

    def test_14_11_limits_from_before_there_were_applications_stay(
        self, shop: Holdfast, mail: Holdfast, url: str
    ) -> None:
        job_store(shop.database).set_limits("api", limits_of(concurrency=2))
        mail.jobs.declare_limits()
        assert self.limits(shop) == (limits_of(concurrency=2), None)
        shop.jobs.declare_limits()
        assert self.limits(shop) == (limits_of(concurrency=3), "shop")
