"""A timer whose slot was taken by a clock ten years ahead goes on, and skips nothing that was right."""

from __future__ import annotations

import pytest

from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.runner import Outcome
from tests.engines.conftest import open_place
from tests.engines.driving import Driven
from tests.engines.places import Bench
from tests.engines.test_timers import HOURLY

TEN_YEARS = 3653 * 86_400.0


@pytest.mark.parametrize(
    "kind",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.component("postgres18")),
        pytest.param("mariadb", marks=pytest.mark.component("mariadb")),
    ],
)
def test_14_11_a_slot_that_lies_ahead_is_taken_back(
    kind: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    place = open_place(kind, request)
    request.addfinalizer(place.empty)
    hf, bench, done = place.application(), Bench(place), []

    @hf.engine("health", queue=f"{place.queue_name}-health", **{**HOURLY, "singleton": False})
    def check(context: EngineContext, message: EngineMessage) -> None:
        done.append(str(message.payload["scheduledFor"])[:13])

    def deliver() -> Outcome:
        driven = Driven(hf, "health")
        return driven.handle(bench.next(driven.queue))

    hf.migrate()
    assert hf.engines.tick("health") == 0
    place.clock.advance(3600)
    assert (hf.engines.tick("health"), hf.engines.tick("health")) == (1, 0)
    place.clock.advance(TEN_YEARS)
    assert hf.engines.tick("health") == 1
    place.clock.advance(-TEN_YEARS)
    assert deliver() is Outcome.SUCCEEDED, "its slot was not missed: the newest one was taken by a wrong clock"
    assert deliver() is Outcome.SUCCEEDED
    sent = []
    for seconds in (3600, 61, 0, 3600):
        place.clock.advance(seconds)
        sent.append(hf.engines.tick("health"))
    assert sent == [0, 0, 1, 1], "the slot that came due meanwhile is not lost"
    assert [deliver(), deliver()] == [Outcome.SKIPPED, Outcome.SUCCEEDED]
    assert done == ["2026-01-01T01", "2036-01-02T01", "2026-01-01T03"]
    assert "Timer of engine 'health/check': its last slot, 2036-01-02T01:00:00+00:00, is in the future" in caplog.text
