"""How messages are put into the batches of a client library: in order, and as many as the library's own batch takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from ...core.errors import DeliveryError
from ..message import Message
from .protocol import Taken

_Batch = TypeVar("_Batch")


def send_in_batches(
    messages: Sequence[Message],
    taken: Taken,
    *,
    new_batch: Callable[[], _Batch],
    add: Callable[[_Batch, Message], bool],
    send: Callable[[_Batch], None],
    translated: Callable[[Sequence[Message]], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Send messages in order; a batch is sent when the next message no longer fits, and at the end.

    Args:
        messages: what to send.
        taken: learns what was sent.
        new_batch: returns an empty batch.
        add: puts a message into a batch, or returns False when it is full.
        send: returns when the other system has the batch for sure.
        translated: turns the client's errors about some messages into ours.

    Raises:
        DeliveryError: a batch was not taken, or a message fits into none. Those before it were sent.
    """
    left = list(messages)
    while left:
        with taken.before(left), translated(left):
            batch = new_batch()
        packed = _packed(batch, left, add, taken)
        with taken.before(packed), translated(packed):
            send(batch)
        taken.add(packed)
        left = left[len(packed) :]


def _packed(
    batch: _Batch, messages: Sequence[Message], add: Callable[[_Batch, Message], bool], taken: Taken
) -> Sequence[Message]:
    """Put as many messages into a batch as it takes, at least one; return them.

    What cannot be put into any waits until what is before it was sent.
    """
    for number, message in enumerate(messages):
        try:
            with taken.before([message]):
                if not add(batch, message):
                    _require_some(number, message)
                    return messages[:number]
        except DeliveryError:
            if number:
                return messages[:number]
            raise
    return messages


def _require_some(number: int, message: Message) -> None:
    if not number:
        raise DeliveryError(
            f"Message '{message.message_id}' is larger than what can be sent at once. Store its data elsewhere and "
            "append where it is, or have the limit of the queue or hub raised.",
            is_permanent=True,
        )


def by_key(messages: Sequence[Message], key_of: Callable[[Message], str | None]) -> dict[str | None, list[Message]]:
    """Return the messages of each key, in order; keys in the order in which they first appear."""
    found: dict[str | None, list[Message]] = {}
    for message in messages:
        found.setdefault(key_of(message), []).append(message)
    return found
