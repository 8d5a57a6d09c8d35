"""Looks into the history are shared, used only while they are fresh, and never across a message about the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.errors import AlreadyRunning
from holdfast.engines.lookups import SuccessLookups
from holdfast.engines.twins import Look
from holdfast.jobs.model import Attempt, Claim, JobId, WorkerId
from holdfast.records.history import SuccessKey
from tests.clocks import SteppedClock
from tests.components.processes import wait_until


class Desk:
    """Messages of one process that wait, begin and end, and a history that counts its questions."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.history: set[SuccessKey] = set()
        self.asked: list[set[SuccessKey]] = []
        self.while_looking: Callable[[], None] = lambda: None
        self.lookups = SuccessLookups(self._find, self.clock)
        self._waiting: dict[Claim, Any] = {}

    def _find(self, worker: WorkerId, keys: Collection[SuccessKey]) -> Look:
        self.asked.append(set(keys))
        found = self.history & set(keys)
        self.while_looking()
        return Look(found)

    def claim(self, number: int, business: str) -> None:
        running: Any = SimpleNamespace(claim=_claim(number), on_gone=None)
        self._waiting[running.claim] = running
        self.lookups.expect([running], [_key(business)])

    def begin(self, number: int, business: str) -> bool:
        return self.lookups.has_succeeded(WorkerId("w"), _claim(number), _key(business))

    def end(self, number: int, business: str | None = None) -> None:
        """Let a message go, with its success in the history if it is named."""
        if business is not None:
            self.history.add(_key(business))
        self._waiting.pop(_claim(number)).on_gone()


def _claim(number: int) -> Claim:
    return Claim(JobId(number), Attempt(1))


def _key(business: str) -> SuccessKey:
    return SuccessKey("hmac", "rotate", business, "shop")


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_all_that_wait_in_line_are_looked_up_at_once(desk: Desk) -> None:
    desk.history.add(_key("c-3"))
    for number in range(100):
        desk.claim(number, f"c-{number}")
    assert [number for number in range(100) if desk.begin(number, f"c-{number}")] == [3]
    assert len(desk.asked) == 1


def test_an_answer_is_asked_for_again_when_it_is_no_longer_fresh(desk: Desk) -> None:
    for number in (1, 2):
        desk.claim(number, f"c-{number}")
    assert not desk.begin(1, "c-1")
    desk.history.add(_key("c-2"))  # by another process
    desk.clock.advance(0.051)
    assert desk.begin(2, "c-2")


def test_two_messages_about_the_same_are_never_at_work_together(desk: Desk) -> None:
    desk.claim(1, "c-1")
    desk.claim(2, "c-1")
    assert not desk.begin(1, "c-1")
    with pytest.raises(AlreadyRunning, match="correlation id 'c-1'"):
        desk.begin(2, "c-1")
    desk.end(2)
    desk.end(1, "c-1")
    desk.claim(3, "c-1")
    assert desk.begin(3, "c-1")


def test_an_answer_from_before_the_end_of_the_same_is_not_used(desk: Desk) -> None:
    for number, business in ((1, "c-1"), (2, "c-1"), (3, "c-3")):
        desk.claim(number, business)
    assert not desk.begin(1, "c-1")
    assert not desk.begin(3, "c-3")
    desk.end(1, "c-1")
    assert desk.begin(2, "c-1")


def test_an_answer_that_comes_while_the_same_ends_is_not_kept(desk: Desk) -> None:
    """The question was asked before the success was written, the answer arrives after the message has gone."""
    desk.claim(1, "c-1")
    desk.begin(1, "c-1")
    desk.claim(3, "c-3")
    desk.clock.advance(1)

    def end_meanwhile() -> None:
        desk.while_looking = lambda: None
        desk.end(1, "c-1")

    desk.while_looking = end_meanwhile
    desk.claim(2, "c-1")
    desk.begin(3, "c-3")
    assert desk.begin(2, "c-1")


def test_threads_that_want_to_know_at_once_ask_together(desk: Desk) -> None:
    """The first asks; those that come while it waits are answered by one question more."""
    for number in range(1, 6):
        desk.claim(number, f"c-{number}")
    others = [threading.Thread(target=desk.begin, args=(number, f"c-{number}")) for number in range(2, 6)]

    def start_others() -> None:
        desk.while_looking = lambda: None
        for thread in others:
            thread.start()

    desk.while_looking = start_others
    desk.begin(1, "c-1")
    for thread in others:
        thread.join(30)
    assert len(desk.asked) <= 2


def test_one_question_answers_all_that_have_waited_for_it_however_long_it_takes(desk: Desk) -> None:
    others = [threading.Thread(target=desk.begin, args=(number, f"c-{number}")) for number in range(2, 6)]

    def start_others() -> None:
        desk.while_looking = lambda: desk.clock.advance(1.0)
        for thread in others:
            thread.start()
        wait_until(lambda: len(desk.lookups._asking) == len(others), "the others to ask")
        desk.clock.advance(1.0)

    desk.while_looking = start_others
    desk.begin(1, "c-1")
    for thread in others:
        thread.join(30)
    assert desk.asked == [{_key("c-1")}, {_key(f"c-{number}") for number in range(2, 6)}]


def test_fewer_are_looked_up_ahead_where_messages_take_long_and_more_again_where_not(desk: Desk) -> None:
    for number in range(600):
        desk.claim(number, f"c-{number}")
    for number in range(300):
        desk.begin(number, f"c-{number}")
        desk.clock.advance(0.06 if number < 20 else 0.0)
    sizes = [len(keys) for keys in desk.asked]
    assert sizes[0] > 200
    assert sizes[19] == 2
    assert len(sizes) < 35
    assert sizes[-1] > 100


def test_nothing_is_kept_of_messages_that_are_gone(desk: Desk) -> None:
    for number in range(50):
        desk.claim(number, f"c-{number % 40}")
    for number in range(20):
        desk.begin(number, f"c-{number}")
    for number in range(50):
        desk.end(number)
    kept = desk.lookups
    assert [len(each) for each in (kept._waiting, kept._keys, kept._in_hand, kept._asking, kept._seen)] == [0] * 5
