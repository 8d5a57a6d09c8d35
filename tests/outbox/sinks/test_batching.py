"""Batches: in order, never too large, nothing left behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import DeliveryError
from holdfast.outbox.message import Message
from holdfast.outbox.sinks.batching import by_key, send_in_batches
from holdfast.outbox.sinks.protocol import Taken
from tests.outbox.sinks.messages import message, messages

LIMIT = 10


class Wire:
    """Batches that hold ten units; a message's size is its data."""

    def __init__(self) -> None:
        self.sent: list[list[Message]] = []
        self.taken = Taken()

    def add(self, batch: list[Message], item: Message) -> bool:
        if sum(each.data for each in batch) + item.data > LIMIT:
            return False
        batch.append(item)
        return True

    def send(self, items: list[Message]) -> None:
        send_in_batches(items, self.taken, new_batch=list[Message], add=self.add, send=self.sent.append)


@given(sizes=st.lists(st.integers(1, LIMIT), max_size=40))
def test_everything_is_sent_once_in_order_in_batches_that_fit(sizes: list[int]) -> None:
    wire = Wire()
    items = [message(number, data=size) for number, size in enumerate(sizes)]
    wire.send(items)
    assert [each for batch in wire.sent for each in batch] == items
    assert all(0 < sum(each.data for each in batch) <= LIMIT for batch in wire.sent)
    for batch, following in zip(wire.sent, wire.sent[1:], strict=False):
        assert sum(each.data for each in batch) + following[0].data > LIMIT


@pytest.mark.parametrize(("sizes", "sent"), [([11], []), ([3, 11, 1], [["m0"]]), ([6, 6, 11], [["m0"], ["m1"]])])
def test_a_message_that_fits_nowhere_raises_after_those_before_it_were_sent(
    sizes: list[int], sent: list[list[str]]
) -> None:
    wire = Wire()
    items = [message(number, data=size) for number, size in enumerate(sizes)]
    with pytest.raises(DeliveryError, match=f"Message 'm{sizes.index(11)}' is larger") as caught:
        wire.send(items)
    assert (caught.value.delivered, caught.value.about) == (
        tuple(name for batch in sent for name in batch),
        (f"m{sizes.index(11)}",),
    )
    assert caught.value.is_permanent
    assert [[each.message_id for each in batch] for batch in wire.sent] == sent


def test_groups_keep_the_order_of_each_key() -> None:
    keys = ["a", "b", "a", None, "b", "a"]
    items = [message(number, key=key) for number, key in enumerate(keys)]
    groups = by_key(items, lambda each: each.key)
    assert {key: [each.position for each in group] for key, group in groups.items()} == {
        "a": [0, 2, 5],
        "b": [1, 4],
        None: [3],
    }
    assert list(groups) == ["a", "b", None]
    assert by_key(messages(0), lambda each: each.key) == {}
