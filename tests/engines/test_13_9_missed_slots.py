"""Slots of a timer that could not begin in their time: the newest is executed, or none, or all of them [ENGINE-8]."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.errors import ConfigurationError
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.runner import Outcome
from holdfast.records.history import HistoryFilter, HistoryStatus
from tests.engines.conftest import EVERY_PLACE, open_place
from tests.engines.driving import Driven
from tests.engines.places import AT_ONCE, Bench, Place


class Hourly:
    """Engine ``health``, a singleton that checks at every full hour."""

    def __init__(self, place: Place, **options: Any) -> None:
        self.bench = Bench(place)
        self.place = place
        self.options = options
        self.fails = False
        self.done: list[str] = []
        self.hf = self.process()
        self.hf.migrate()
        self.hf.engines.tick("health")

    def process(self) -> Holdfast:
        hf = self.place.application()
        usual = {"schedule": "0 * * * *", "operation": "check", "singleton": True, "retry_policy": AT_ONCE}
        settings = {"queue": f"{self.place.queue_name}-health", "conflict_seconds": 0.0, **usual, **self.options}
        hf.engine("health", **settings)(self._check)
        return hf

    def _check(self, context: EngineContext, message: EngineMessage) -> None:
        self.done.append(message.payload["scheduledFor"][11:13])
        if self.fails:
            raise ValueError("no answer")

    def hours(self, count: int) -> None:
        """Let time pass until the next full hour, so many times; at each of them the timer ticks."""
        for _ in range(count):
            self.place.clock.advance(3600 - self.place.clock.now().timestamp() % 3600)
            self.hf.engines.tick("health")

    def deliver(self) -> Outcome:
        driven = Driven(self.hf, "health")
        return driven.handle(self.bench.next(driven.queue))

    def to_the_end(self) -> list[Outcome]:
        driven, outcomes = Driven(self.hf, "health"), []
        while (message := self.bench.receive(driven.queue)) is not None:
            outcomes.append(driven.handle(message))
        return outcomes

    def pile_up(self, count: int) -> None:
        """Let slots wait for the registry's lock, each delivered and refused."""
        self.hf.registry.acquire("maintenance", duration_seconds=30 * 86_400)
        for _ in range(count):
            self.hours(1)
            assert self.deliver() in (Outcome.CONFLICT, Outcome.SKIPPED)
        self.hf.registry.release("maintenance")

    @property
    def skipped(self) -> list[str]:
        """Return the hours of slots that the history calls skipped."""
        wanted = HistoryFilter(engine="health", status=HistoryStatus.SKIPPED)
        found = self.hf.history.page(wanted).items
        assert all("could not begin" in (entry.error or "") or "could begin" in (entry.error or "") for entry in found)
        return sorted(entry.correlation_id[-7:-5] for entry in found)


@EVERY_PLACE
def test_13_9_of_slots_behind_a_lock_only_the_newest_is_executed(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.engines")
    timed = Hourly(place)
    timed.pile_up(4)
    outcomes = timed.to_the_end()
    assert set(outcomes) <= {Outcome.SUCCEEDED, Outcome.SKIPPED}
    assert timed.done == ["04"]
    assert timed.skipped == ["01", "02", "03"]
    lines = [record.getMessage() for record in caplog.records if "skips message" in record.getMessage()]
    assert len(lines) == 3
    timed.hours(1)
    assert timed.to_the_end() == [Outcome.SUCCEEDED], "the next slot is on time"
    assert timed.done == ["04", "05"]


@EVERY_PLACE
def test_13_9_run_all_executes_every_slot_also_those_that_nobody_was_there_for(place: Place) -> None:
    timed = Hourly(place, missed="run-all")
    timed.pile_up(2)
    place.clock.advance(3 * 3600)
    assert timed.hf.engines.tick("health") == 3
    assert timed.hf.engines.tick("health") == 0
    assert set(timed.to_the_end()) == {Outcome.SUCCEEDED}
    assert sorted(timed.done) == ["01", "02", "03", "04", "05"]
    assert timed.skipped == []


@EVERY_PLACE
def test_13_9_skip_executes_only_slots_that_begin_in_their_minute(place: Place) -> None:
    timed = Hourly(place, missed="skip")
    timed.hours(1)
    assert timed.to_the_end() == [Outcome.SUCCEEDED]
    timed.hf.registry.acquire("maintenance", duration_seconds=86_400)
    timed.hours(1)
    assert timed.deliver() is Outcome.CONFLICT
    timed.hf.registry.release("maintenance")
    place.clock.advance(61)
    assert timed.to_the_end() == [Outcome.SKIPPED], "late, though no newer one was sent"
    place.clock.advance(8 * 3600)
    timed.hf.engines.tick("health")
    assert timed.to_the_end() == [Outcome.SKIPPED], "nobody was there at its time"
    assert (timed.done, timed.skipped) == (["01"], ["02", "10"])


@EVERY_PLACE
def test_13_9_a_slot_that_always_fails_is_buried_though_newer_ones_wait(place: Place) -> None:
    timed = Hourly(place, max_retry_attempts=3)
    timed.fails = True
    timed.hours(1)
    assert timed.deliver() is Outcome.RETRIED
    timed.hours(1)
    assert sorted(timed.to_the_end()) == [Outcome.DEAD_LETTERED] * 2 + [Outcome.RETRIED] * 3
    assert timed.skipped == []


@EVERY_PLACE
def test_13_9_a_slot_that_failed_is_not_tried_again_behind_a_newer_success(place: Place) -> None:
    timed = Hourly(place, retry_policy=replace(AT_ONCE, base_delay_seconds=50.0, max_delay_seconds=50.0))
    timed.fails = True
    timed.hours(1)
    assert timed.deliver() is Outcome.RETRIED
    timed.fails = False
    timed.hours(1)
    driven = Driven(timed.hf, "health")
    [newer] = driven.queue.receive(1, 30)
    assert driven.handle(newer) is Outcome.SUCCEEDED
    assert timed.to_the_end() == [Outcome.SKIPPED]
    assert (timed.done, timed.skipped) == (["01", "02"], ["01"])


@EVERY_PLACE
def test_13_9_a_dead_letter_that_people_put_back_is_executed_however_old(place: Place) -> None:
    timed = Hourly(place, max_retry_attempts=2, missed="skip")
    timed.fails = True
    timed.hours(1)
    assert timed.to_the_end() == [Outcome.RETRIED, Outcome.DEAD_LETTERED]
    timed.fails = False
    timed.hours(1)
    assert timed.to_the_end() == [Outcome.SUCCEEDED]
    [letter] = timed.hf.dead_letters.page().items
    timed.hf.redrive.retry(letter, "anne")
    assert timed.to_the_end() == [Outcome.SUCCEEDED]
    assert timed.done == ["01", "02", "01"]


@EVERY_PLACE
def test_13_9_a_timer_that_only_began_skips_nothing(place: Place) -> None:
    """Its place was lost: what waits is not taken for older than a slot that was never sent."""
    timed = Hourly(place)
    timed.hours(1)
    leases = timed.hf._resources.engine_leases()
    [name] = [name for name in leases.pollers() if name.startswith("timer-health-check")]
    found = leases.documents.read(leases.document_name(name))
    assert found is not None
    leases.documents.delete(leases.document_name(name), found.etag)
    place.clock.advance(1800)
    assert timed.process().engines.tick("health") == 0
    assert timed.to_the_end() == [Outcome.SUCCEEDED]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"schedule": "0 * * * *", "missed": "all"}, "must be one of 'newest', 'skip', 'run-all'"),
        ({"schedule": "0 * * * *", "missed": None}, "must be one of"),
        ({"missed": "skip"}, "about the slots of a schedule"),
    ],
)
def test_13_9_what_missed_cannot_be_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Holdfast("sqlite:///none.db").engine("health", **options)(lambda message: None)


@EVERY_PLACE
def test_13_9_each_instance_has_slots_of_its_own(place: Place) -> None:
    """Processes of one application, each for another tenant, share its queue: none takes the other's slots."""
    place.instance_id = "tenant-1"
    first = Hourly(place)
    place.instance_id = "Tenant-1"
    second = first.process()
    assert second.engines.tick("health") == 0, "it begins"
    place.clock.advance(3600)
    assert [hf.engines.tick("health") for hf in (first.hf, second)] == [1, 1]
    assert first.to_the_end() == [Outcome.SUCCEEDED] * 2
    entries = first.hf.history.page(HistoryFilter(engine="health")).items
    assert sorted(entry.instance_id for entry in entries) == ["Tenant-1", "tenant-1"]
    first.hours(1)
    place.clock.advance(3600)
    assert second.engines.tick("health") == 1
    assert first.to_the_end() == [Outcome.SUCCEEDED] * 2, "a newer slot of the other is none of its own"


@pytest.mark.parametrize(
    "database",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.component("postgres18")),
        pytest.param("mariadb", marks=pytest.mark.component("mariadb")),
    ],
)
def test_13_9_timers_of_two_applications_do_not_end_each_others_slots(
    database: str, request: pytest.FixtureRequest
) -> None:
    place = open_place(database, request)
    both = [Hourly(place), Hourly(replace(place, app_name="another"))]
    place.clock.advance(3600)
    for timed in both:
        timed.hf.engines.tick("health")
        assert timed.to_the_end() == [Outcome.SUCCEEDED]
    assert [timed.done for timed in both] == [["01"], ["01"]]
    place.empty()
