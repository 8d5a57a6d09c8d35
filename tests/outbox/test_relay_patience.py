"""A relay outlasts the outage of its receiver, unless it is told otherwise."""

from __future__ import annotations

import pytest

from holdfast.core.retry import RetryPolicy
from holdfast.outbox.message import Message
from tests.outbox.shops import Shop


class Sink:
    def send(self, messages: object) -> None:
        raise AssertionError("never sent")


def seconds_of(policy: RetryPolicy) -> float:
    return sum(policy.delay_for_attempt(attempt) for attempt in range(policy.max_retries))


@pytest.mark.parametrize(("on_error", "least", "most"), [("stop", 6 * 86_400, 8 * 86_400), ("dead_letter", 600, 1200)])
def test_the_default_policy_outlasts_an_outage(sqlite_shop: Shop, on_error: str, least: int, most: int) -> None:
    sqlite_shop.app.relay("orders", Sink(), on_error=on_error)
    settings = sqlite_shop.app.processors.get("orders").settings
    assert least < seconds_of(settings.retry_policy) < most
    assert not settings.transactional


def test_a_policy_of_ones_own_is_kept(sqlite_shop: Shop) -> None:
    own = RetryPolicy(max_retries=1)
    sqlite_shop.app.relay("orders", Sink(), retry_policy=own)
    assert sqlite_shop.app.processors.get("orders").settings.retry_policy is own


def test_messages_reach_a_sink_in_order_and_again_after_a_failure(shop: Shop) -> None:
    got: list[int] = []

    class Flaky:
        fails = True

        def send(self, messages: list[Message]) -> None:
            got.extend(message.data["amount"] for message in messages)
            if Flaky.fails:
                Flaky.fails = False
                raise ConnectionError("reset")

    shop.append_each(1, 2, 3)
    policy = RetryPolicy(max_retries=1, base_delay_seconds=0.001)
    shop.app.relay("orders", Flaky(), retry_policy=policy)  # type: ignore[arg-type]  # a list is a sequence
    shop.run("orders")
    assert got == [1, 2, 3, 1, 2, 3]
