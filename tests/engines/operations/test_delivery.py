"""What a delivery does about what it finds: every case of the table."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Conflict, Unavailable
from holdfast.durable import OperationFailed, OperationTimedOut
from holdfast.engines.operations.delivery import Delivery, Done, Start, Terminate, Wait
from holdfast.engines.operations.instances import Instance, Owner, Phase
from tests.clocks import SteppedClock

OURS = Owner("tls", "renew", "c-1")
THEIRS = Owner("tls", "renew", "c-2")
ENDED = [Phase.COMPLETED, Phase.FAILED, Phase.TERMINATED]


class Table:
    """One delivery on a clock that a test steps."""

    def __init__(self, timeout_seconds: float | None = None) -> None:
        self.clock = SteppedClock()
        self.delivery = Delivery("tls-x", OURS, timeout_seconds=timeout_seconds, poll_seconds=1.0, clock=self.clock)

    def found(self, phase: Phase, owner: Owner | None = OURS, generation: int = 0, **fields: Any) -> Instance:
        created = SteppedClock().now() + timedelta(seconds=generation)
        return Instance(phase=phase, owner=owner, created_at=created, **fields)


def test_nothing_there_is_started() -> None:
    assert Table().delivery.next(None) == Start(None)


def test_what_runs_for_this_message_is_waited_for() -> None:
    table = Table()
    assert table.delivery.next(table.found(Phase.RUNNING)) == Wait(1.0)


def test_what_has_completed_for_this_message_is_not_started_again() -> None:
    table = Table()
    assert table.delivery.next(table.found(Phase.COMPLETED, output=7)) == Done(7)


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.TERMINATED])
def test_what_failed_in_an_earlier_delivery_is_started_anew(phase: Phase) -> None:
    table = Table()
    before = table.found(phase)
    assert table.delivery.next(before) == Start(before)


@pytest.mark.parametrize("owner", [THEIRS, Owner("tls", "revoke", "c-1"), Owner("tls-a", "renew", "c-1"), None])
def test_what_is_busy_with_something_else_is_a_conflict(owner: Owner | None) -> None:
    table = Table()
    with pytest.raises(Conflict, match="one at a time"):
        table.delivery.next(table.found(Phase.RUNNING, owner))


@pytest.mark.parametrize("phase", ENDED)
def test_what_ended_for_something_else_gives_way(phase: Phase) -> None:
    table = Table()
    before = table.found(phase, THEIRS)
    assert table.delivery.next(before) == Start(before)


def test_a_failure_during_this_delivery_is_told() -> None:
    table = Table()
    table.delivery.next(None)
    table.delivery.started()
    with pytest.raises(OperationFailed, match="'tls-x' failed: ValueError: no key"):
        table.delivery.next(table.found(Phase.FAILED, error="ValueError: no key"))


def test_a_failure_of_what_was_attached_to_is_told() -> None:
    table = Table()
    table.delivery.next(table.found(Phase.RUNNING))
    with pytest.raises(OperationFailed, match="no key"):
        table.delivery.next(table.found(Phase.FAILED, error="no key"))


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.COMPLETED])
def test_a_start_whose_answer_was_lost_is_not_repeated_when_it_was_accepted(phase: Phase) -> None:
    table = Table()
    before = table.found(Phase.FAILED)
    assert table.delivery.next(before) == Start(before)
    table.delivery.unanswered(Unavailable("lost"))
    assert not isinstance(table.delivery.next(table.found(phase, generation=1)), Start)


def test_a_start_whose_answer_was_lost_and_that_failed_at_once_is_this_deliverys_failure() -> None:
    table = Table()
    table.delivery.next(table.found(Phase.FAILED))
    table.delivery.unanswered(Unavailable("lost"))
    with pytest.raises(OperationFailed):
        table.delivery.next(table.found(Phase.FAILED, generation=1))


def test_a_start_that_was_not_accepted_is_repeated_but_not_for_ever() -> None:
    table = Table()
    before = table.found(Phase.FAILED)
    for _ in range(5):
        assert table.delivery.next(before) == Start(before)
        table.delivery.unanswered(Unavailable("the answer was lost"))
    with pytest.raises(Unavailable, match="the answer was lost") as given_up:
        table.delivery.next(before)
    with pytest.raises(Unavailable):
        table.delivery.unreachable(given_up.value)


def test_what_is_purged_or_replaced_while_it_is_watched_has_no_known_end() -> None:
    for found, error in ((None, OperationFailed), (Table().found(Phase.RUNNING, THEIRS), Conflict)):
        table = Table()
        table.delivery.next(table.found(Phase.RUNNING))
        with pytest.raises(error):
            table.delivery.next(found)


def test_what_runs_too_long_is_terminated_and_told() -> None:
    table = Table(timeout_seconds=10)
    table.delivery.next(None)
    table.delivery.started()
    table.clock.advance(9.5)
    assert table.delivery.next(table.found(Phase.RUNNING)) == Wait(0.5)
    table.clock.advance(0.5)
    assert isinstance(table.delivery.next(table.found(Phase.RUNNING)), Terminate)
    assert table.delivery.next(table.found(Phase.RUNNING)) == Wait(1.0), "it takes a while to end"
    with pytest.raises(OperationTimedOut, match=r"ran longer than its 10 s\. It was terminated\."):
        table.delivery.next(table.found(Phase.TERMINATED))


def test_what_completes_before_it_is_terminated_has_succeeded() -> None:
    table = Table(timeout_seconds=10)
    table.delivery.next(None)
    table.delivery.started()
    table.clock.advance(10)
    table.delivery.next(table.found(Phase.RUNNING))
    assert table.delivery.next(table.found(Phase.COMPLETED, output=7)) == Done(7)


def test_what_does_not_end_after_it_was_terminated_holds_no_delivery() -> None:
    table = Table(timeout_seconds=10)
    table.delivery.next(None)
    table.delivery.started()
    table.clock.advance(10)
    table.delivery.next(table.found(Phase.RUNNING))
    table.clock.advance(30)
    with pytest.raises(OperationTimedOut, match="still there"):
        table.delivery.next(table.found(Phase.RUNNING))


def test_a_redelivery_counts_the_time_since_the_start() -> None:
    table = Table(timeout_seconds=10)
    table.clock.advance(11)
    assert isinstance(table.delivery.next(table.found(Phase.RUNNING)), Terminate)


def test_a_termination_by_someone_else_is_a_failure_with_its_reason() -> None:
    table = Table(timeout_seconds=10)
    table.delivery.next(table.found(Phase.RUNNING))
    with pytest.raises(OperationFailed, match="was terminated: an operator") as raised:
        table.delivery.next(table.found(Phase.TERMINATED, error="an operator"))
    assert not isinstance(raised.value, OperationTimedOut)


def test_a_hub_that_restarts_fails_no_delivery_and_one_that_stays_away_does() -> None:
    table = Table()
    error = Unavailable("away")
    with pytest.raises(Unavailable):
        table.delivery.unreachable(error)  # nothing is known to be under way
    table.delivery.next(table.found(Phase.RUNNING))
    assert table.delivery.unreachable(error) == Wait(1.0)
    table.clock.advance(29)
    assert table.delivery.unreachable(error) == Wait(1.0)
    table.delivery.next(table.found(Phase.RUNNING))
    table.clock.advance(29)
    assert table.delivery.unreachable(error) == Wait(1.0), "it was back in between"
    table.clock.advance(30)
    with pytest.raises(Unavailable):
        table.delivery.unreachable(error)


def test_a_hub_that_does_not_answer_after_a_lost_answer_is_waited_for() -> None:
    table = Table()
    table.delivery.next(None)
    table.delivery.unanswered(Unavailable("lost"))
    assert table.delivery.unreachable(Unavailable("away")) == Wait(1.0), "the start may be under way"
