"""14.13: whether and when what failed is tried again."""

from __future__ import annotations

import pytest

from holdfast.core.errors import DeliveryError, HandlerError
from holdfast.core.retry import RetryPolicy
from holdfast.outbox.course import Failed
from holdfast.outbox.patience import LONGEST_WAIT_SECONDS, REFUSED_IN_A_ROW, TRIES_BEFORE_STOP, Patience
from tests.outbox.sinks.messages import APPENDED_AT

POLICY = RetryPolicy(max_retries=100, base_delay_seconds=1.0, max_delay_seconds=60.0)
EVERY_ON_ERROR = ["stop", "retry", "park", "dead_letter"]


def pause(on_error: str, error: Exception, attempts: int = 1, in_a_row: int = 0) -> float | None:
    wrapped = HandlerError("failed")
    wrapped.__cause__ = error
    return Patience(POLICY, on_error).pause_after(Failed(wrapped, attempts, APPENDED_AT, APPENDED_AT), in_a_row)


@pytest.mark.parametrize("on_error", EVERY_ON_ERROR)
@pytest.mark.parametrize(
    ("asked", "waits"),
    [(None, 1.0), (0.2, 1.0), (30.0, 30.0), (1e9, LONGEST_WAIT_SECONDS), (-5.0, 1.0), (float("nan"), 1.0)],
)
def test_14_13_the_pause_is_what_the_receiver_asks_for_but_never_shorter_and_not_too_long(
    on_error: str, asked: float | None, waits: float
) -> None:
    assert pause(on_error, DeliveryError("busy", retry_after_seconds=asked)) == waits


@pytest.mark.parametrize(("on_error", "most"), [("stop", 101), ("park", 101), ("dead_letter", 101)])
def test_14_13_what_may_pass_is_tried_by_the_policy(on_error: str, most: int) -> None:
    tries = next(count for count in range(1, 200) if pause(on_error, DeliveryError("busy"), count) is None)
    assert tries == most


@pytest.mark.parametrize(("on_error", "most"), [("stop", TRIES_BEFORE_STOP), ("park", 1), ("dead_letter", 1)])
def test_14_13_what_is_refused_for_good_is_believed_at_once_unless_that_would_stop_everything(
    on_error: str, most: int
) -> None:
    refused = DeliveryError("no", is_permanent=True)
    assert next(count for count in range(1, 200) if pause(on_error, refused, count) is None) == most


def test_14_13_to_retry_is_to_retry_for_ever_whatever_is_answered() -> None:
    assert pause("retry", DeliveryError("no", is_permanent=True), 10_000) == 60.0
    assert pause("retry", ValueError("no"), 10_000) == 60.0


@pytest.mark.parametrize("on_error", ["park", "dead_letter"])
def test_14_13_when_one_message_after_the_other_is_refused_each_is_tried_again_later_and_later(on_error: str) -> None:
    """An address that answers 404 to everything must not bury the whole outbox in a minute."""
    refused = DeliveryError("no", is_permanent=True)
    assert pause(on_error, refused, 1, REFUSED_IN_A_ROW - 1) is None
    pauses = [pause(on_error, refused, 1, REFUSED_IN_A_ROW + more) for more in (0, 1, 2, 50)]
    assert pauses == [1.0, 2.0, 4.0, 60.0]
    assert pause(on_error, refused, 2, REFUSED_IN_A_ROW) is None


def test_14_13_an_error_that_the_policy_leaves_out_is_not_tried_again_except_for_ever() -> None:
    policy = RetryPolicy(max_retries=5, retry_on=ConnectionError)
    wrapped = HandlerError("failed")
    wrapped.__cause__ = ValueError("no")
    failed = Failed(wrapped, 1, APPENDED_AT, APPENDED_AT)
    assert Patience(policy, "dead_letter").pause_after(failed, 0) is None
    assert Patience(policy, "retry").pause_after(failed, 0) == 1.0
