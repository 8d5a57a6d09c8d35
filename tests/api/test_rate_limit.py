"""The rate limit: each caller has its own, it fills up again, and it never takes more than so much memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from anyio.from_thread import BlockingPortal

from holdfast import Holdfast
from holdfast.api import RateLimit
from holdfast.api.rate_limit import Buckets
from holdfast.core.errors import ConfigurationError
from tests.api.clients import Office
from tests.clocks import SteppedClock


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def busy(small_hf: Holdfast, portal: BlockingPortal, clock: SteppedClock) -> Office:
    """An office that takes three requests at once and one more every four seconds."""
    return Office(small_hf, portal, rate_limit=RateLimit(per_second=0.25, burst=3), clock=clock)


def test_who_asks_too_often_is_429_and_told_when_to_try_again(busy: Office, clock: SteppedClock) -> None:
    assert [busy.reader.get("/api/dlq").status for _ in range(4)] == [200, 200, 200, 429]
    answer = busy.reader.get("/api/dlq")
    assert answer.refusal == (429, "TOO_MANY_REQUESTS", None)
    assert answer.headers["retry-after"] == "4"
    clock.advance(3.5)
    assert busy.reader.get("/api/dlq").headers["retry-after"] == "1"
    clock.advance(0.5)
    assert [busy.reader.get("/api/dlq").status for _ in range(2)] == [200, 429]


def test_each_token_has_its_own(busy: Office) -> None:
    for _ in range(4):
        busy.reader.get("/api/dlq")
    assert busy.operator.get("/api/dlq").status == 200


def test_a_change_over_the_limit_changes_nothing(busy: Office) -> None:
    for _ in range(3):
        busy.operator.get("/api/dlq")
    assert busy.operator("POST", "/api/dlq/expire", json={"olderThanDays": 0}).status == 429


def test_who_guesses_tokens_is_slowed_down_by_address(busy: Office) -> None:
    guesser = busy.nobody
    statuses = [guesser.with_token(f"guess-{number}").get("/api/dlq").status for number in range(5)]
    assert statuses == [401, 401, 401, 429, 429]
    assert replace(guesser, address="10.0.0.2").get("/api/dlq").status == 401
    assert busy.reader.get("/api/dlq").status == 200


def test_addresses_of_one_ipv6_network_count_as_one(busy: Office) -> None:
    statuses = [replace(busy.nobody, address=f"2001:db8::{n}").get("/api/dlq").status for n in range(1, 5)]
    assert statuses == [401, 401, 401, 429]
    assert replace(busy.nobody, address="2001:db8:1::1").get("/api/dlq").status == 401


def test_callers_without_end_take_no_memory_without_end(clock: SteppedClock) -> None:
    buckets = Buckets(RateLimit(per_second=1, burst=1), clock, most_callers=100)
    for number in range(1000):
        assert buckets.wait_seconds(f"caller {number}") == 0
        assert buckets.wait_seconds("the steady one") == (0 if number == 0 else 1)
    assert len(buckets) == 100


def test_without_a_limit_there_is_none(small_hf: Holdfast, portal: BlockingPortal) -> None:
    office = Office(small_hf, portal, rate_limit=None)
    assert {office.reader.get("/api/dlq").status for _ in range(105)} == {200}


@pytest.mark.parametrize(("per_second", "burst"), [(0, 1), (-1, 1), (float("nan"), 1), (1, 0)])
def test_a_limit_that_lets_nobody_in_is_refused(per_second: float, burst: int) -> None:
    with pytest.raises(ConfigurationError, match="lets nobody in"):
        RateLimit(per_second=per_second, burst=burst)
