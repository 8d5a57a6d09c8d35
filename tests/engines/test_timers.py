"""Timer engines: every slot of a schedule is one message, whoever dies; slots nobody was there for are one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.errors import NotFoundError
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.runner import Outcome
from tests.engines.driving import Driven, Killed
from tests.engines.places import Bench, Place

HOURLY: dict[str, Any] = {"schedule": "0 * * * *", "operation": "check", "locks_registry": False, "singleton": True}


class Timed:
    """Engine ``health``, which checks at every full hour."""

    def __init__(self, place: Place) -> None:
        self.bench = Bench(place)
        self.place = place
        self.messages: list[EngineMessage] = []
        self.hf = self.process()
        self.hf.migrate()

    def process(self) -> Holdfast:
        hf = self.place.application()
        hf.engine("health", queue=f"{self.place.queue_name}-health", **HOURLY)(self._check)
        return hf

    def _check(self, context: EngineContext, message: EngineMessage) -> None:
        self.messages.append(message)

    def to_the_end(self) -> list[Outcome]:
        driven, outcomes = Driven(self.hf, "health"), []
        while (message := self.bench.receive(driven.queue)) is not None:
            outcomes.append(driven.handle(message))
        return outcomes


@pytest.fixture
def timed(place: Place) -> Timed:
    return Timed(place)


def test_the_first_tick_only_begins(timed: Timed) -> None:
    assert timed.hf.engines.tick("health") == 0
    assert timed.hf.engines.tick("health") == 0
    assert timed.to_the_end() == []


def test_every_slot_is_one_message(timed: Timed) -> None:
    timed.hf.engines.tick("health")
    for _ in range(2):
        timed.place.clock.advance(3600)
        assert [timed.hf.engines.tick("health") for _ in range(3)] == [1, 0, 0]
        assert timed.to_the_end() == [Outcome.SUCCEEDED]
    first, second = timed.messages
    assert first.payload == {"scheduledFor": "2026-01-01T01:00:00+00:00"}
    assert second.message_id == f"{timed.place.app_name}/health/check-20260101T020000Z"
    assert first.correlation_id != second.correlation_id


def test_slots_that_nobody_was_there_for_are_one_message_for_the_newest(timed: Timed) -> None:
    timed.hf.engines.tick("health")
    timed.place.clock.advance(timedelta(days=1, hours=3).total_seconds())
    assert timed.hf.engines.tick("health") == 1
    timed.to_the_end()
    assert [message.payload for message in timed.messages] == [{"scheduledFor": "2026-01-02T03:00:00+00:00"}]


@pytest.mark.parametrize("is_done_before", [True, False])
def test_a_worker_killed_between_message_and_slot_makes_one_execution(
    timed: Timed, is_done_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed.hf.engines.tick("health")
    timed.place.clock.advance(3600)
    [runner] = timed.hf.engines._timers("health")
    send = runner._send

    def send_and_die(*given: object) -> None:
        send(*given)  # type: ignore[arg-type]  # passed on
        raise Killed

    monkeypatch.setattr(runner, "_send", send_and_die)
    with runner.leased() as lease, pytest.raises(Killed):
        runner.process_batch(lease)
    if is_done_before:
        assert timed.to_the_end() == [Outcome.SUCCEEDED]
    assert timed.process().engines.tick("health") == 1, "the slot was not written down"
    timed.to_the_end()
    assert len(timed.messages) == 1


def test_of_two_workers_one_ticks(timed: Timed) -> None:
    timed.hf.engines.tick("health")
    timed.place.clock.advance(3600)
    [runner] = timed.hf.engines._timers("health")
    with runner.leased():
        assert timed.process().engines.tick("health") == 0
    assert timed.process().engines.tick("health") == 1


def test_a_tick_is_counted_retried_and_buried_like_any_message(timed: Timed) -> None:
    def fail(context: EngineContext, message: EngineMessage) -> None:
        raise ValueError("no answer")

    hf = timed.place.application()
    queue_name = f"{timed.place.queue_name}-health"
    options = {**HOURLY, "queue": queue_name, "max_retry_attempts": 2}
    hf.engine("health", **options)(fail)
    hf.engines.tick("health")
    timed.place.clock.advance(3600)
    assert hf.engines.tick("health") == 1
    driven = Driven(hf, "health")
    assert [driven.handle(timed.bench.next(driven.queue)) for _ in range(2)] == [Outcome.RETRIED, Outcome.DEAD_LETTERED]
    [letter] = hf.dead_letters.page().items
    assert (letter.engine, letter.correlation_id) == ("health", f"{timed.place.app_name}/health/check-20260101T010000Z")


def test_an_engine_that_is_not_declared_has_no_timer(timed: Timed) -> None:
    with pytest.raises(NotFoundError):
        timed.hf.engines.tick("nobody")


def test_timers_whose_names_read_alike_are_two(place: Place) -> None:
    hf = place.application()
    names = (("update", "publisher-evaluate"), ("update-publisher", "evaluate"))
    for engine, operation in names:
        queue = f"{place.queue_name}-{engine}"
        hf.engine(engine, queue=queue, schedule="0 * * * *", operation=operation)(lambda context, message: None)
    Bench(place)
    hf.migrate()
    for engine, _ in names:
        assert hf.engines.tick(engine) == 0
    place.clock.advance(3600)
    assert [hf.engines.tick(engine) for engine, _ in names] == [1, 1]


def test_the_id_of_a_slot_is_short_enough_whatever_the_names(place: Place) -> None:
    hf = place.application()
    Bench(place)
    hf.engine("health", queue=f"{place.queue_name}-long", operation="o" * 200, schedule="0 * * * *")(
        lambda message: None
    )
    hf.migrate()
    hf.engines.tick("health")
    place.clock.advance(3600)
    assert hf.engines.tick("health") == 1
