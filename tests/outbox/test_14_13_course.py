"""14.13: how far a batch is: nothing open is passed, and nothing that was taken comes again."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import DeliveryError, HandlerError
from holdfast.outbox.course import Course, Failed, Passage, failed_again
from holdfast.outbox.message import Checkpoint, Message
from holdfast.outbox.store import Move
from tests.outbox.sinks.messages import APPENDED_AT, message

KEYS = [None, "a", "b", "c"]


@dataclass
class Delivery:
    """What became of a batch of which some messages are refused for ever and the others taken bit by bit."""

    messages: list[Message]
    refused: set[str]
    parks: bool
    course: Course = field(init=False)
    taken: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    stood: list[Checkpoint | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        move = Move(None, self.messages[-1].checkpoint, 99)
        self.course = Course(self.messages, move, in_order=lambda place: place, parks=self.parks)

    def run(self, sizes: list[int]) -> None:
        """Take as many messages at a time as the sizes say."""
        rounds = 0
        while messages := self.course.next():
            self.send(messages, sizes[rounds % len(sizes)])
            rounds += 1
            assert rounds <= 2 * len(self.messages), "a course ends"
        self.store()

    def send(self, messages: list[Message], size: int) -> None:
        ids = [each.message_id for each in messages]
        bad = next((name for name in ids if name in self.refused), None)
        good = ids[: ids.index(bad)] if bad in ids else ids
        if bad is None and size >= len(ids):
            passage = self.course.over(messages)
            self.taken += good
            self.course.delivered(ids)
            self.pass_by(passage)
            return
        some = good[:size]
        self.taken += some
        self.course.delivered(some)
        self.store()
        if bad is not None and len(some) == len(good):
            error = DeliveryError("refused", about=[bad], is_permanent=True)
            [blamed] = self.course.blamed(messages, error)
            assert blamed.message_id == bad
            self.course.give_up(blamed, failure(error))
            self.store()

    def store(self) -> None:
        passage = self.course.passage()
        if passage is not None:
            self.pass_by(passage)

    def pass_by(self, passage: Passage) -> None:
        assert passage.move.expected == self.course.at
        for aside in passage.asides:
            (self.waiting if aside.failed is None else self.failed).append(aside.message.message_id)
        self.course.moved(passage)
        self.stood.append(self.course.at)
        dealt_with = {*self.taken, *self.failed, *self.waiting}
        passed = [each for each in self.messages if each.checkpoint <= passage.move.to]
        assert {each.message_id for each in passed} <= dealt_with


def failure(error: Exception) -> Failed:
    wrapped = HandlerError("refused")
    wrapped.__cause__ = error
    return failed_again(None, wrapped, APPENDED_AT)


@given(
    keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=12),
    refused=st.sets(st.integers(0, 11)),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    parks=st.booleans(),
)
def test_14_13_every_message_is_taken_once_or_set_aside_and_the_checkpoint_passes_nothing_else(
    keys: list[str | None], refused: set[int], sizes: list[int], parks: bool
) -> None:
    messages = [message(number, key=key) for number, key in enumerate(keys)]
    delivery = Delivery(messages, {f"m{number}" for number in refused}, parks)
    delivery.run(sizes)
    ends = [*delivery.taken, *delivery.failed, *delivery.waiting]
    assert sorted(ends) == sorted(each.message_id for each in messages)
    assert delivery.course.at == messages[-1].checkpoint
    assert delivery.stood == sorted(delivery.stood, key=lambda place: place or Checkpoint(0, 0))
    for key in {each.key for each in messages}:
        of_key = [each.message_id for each in messages if each.key == key]
        assert [name for name in delivery.taken if name in of_key] == [
            name for name in of_key if name in delivery.taken
        ]
        if parks and key is not None and set(of_key) & set(delivery.failed):
            [first] = [name for name in of_key if name in delivery.failed]
            assert [name for name in of_key if name in delivery.waiting] == of_key[of_key.index(first) + 1 :]


def test_14_13_what_is_taken_behind_a_failure_does_not_come_again_and_is_passed_later() -> None:
    messages = [message(1, key="a"), message(2, key="b"), message(3, key="a")]
    course = Course(messages, Move(None, Checkpoint(9, 9), 9), in_order=lambda place: place)
    assert course.delivered(["m1", "m3", "another"]) == 2
    passage = course.passage()
    assert passage is not None
    course.moved(passage)
    assert (course.at, course.next()) == (messages[0].checkpoint, [messages[1]])
    assert course.over([messages[1]]).move == Move(messages[0].checkpoint, Checkpoint(9, 9), 9)


def test_14_13_messages_that_failed_together_are_delivered_alone_and_those_before_them_together() -> None:
    messages = [message(number) for number in range(1, 5)]
    course = Course(messages, Move(None, Checkpoint(9, 9), 9), in_order=lambda place: place)
    course.deliver_alone(course.blamed(messages, DeliveryError("refused", about=["m3", "m4"])))
    seen = []
    while found := course.next():
        seen.append([each.message_id for each in found])
        course.delivered(each.message_id for each in found)
    assert seen == [["m1", "m2"], ["m3"], ["m4"]]


def test_14_13_an_error_that_names_nobody_is_about_everything_that_is_left() -> None:
    messages = [message(1), message(2)]
    course = Course(messages, Move(None, Checkpoint(9, 9), 9), in_order=lambda place: place)
    course.delivered(["m1"])
    for error in (ValueError("no"), DeliveryError("no"), DeliveryError("no", about=["m1"])):
        assert course.blamed(messages, error) == [messages[1]]
