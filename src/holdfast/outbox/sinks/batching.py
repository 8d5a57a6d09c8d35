"""How messages are put into the batches of a client library: in order, and as many as the library's own batch takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ...core.errors import MessageError
from ..message import Message

_Batch = TypeVar("_Batch")


def send_in_batches(
    messages: Iterable[Message],
    *,
    new_batch: Callable[[], _Batch],
    add: Callable[[_Batch, Message], bool],
    send: Callable[[_Batch], None],
) -> None:
    """Send messages in order; a batch is sent when the next message no longer fits, and at the end.

    Args:
        messages: what to send.
        new_batch: returns an empty batch.
        add: puts a message into a batch, or returns False when it is full.
        send: returns when the other system has the batch for sure.

    Raises:
        MessageError: a message does not even fit into an empty batch; those before it were sent.
    """
    batch, is_filled = new_batch(), False
    for message in messages:
        if add(batch, message):
            is_filled = True
            continue
        if is_filled:
            send(batch)
            batch = new_batch()
            is_filled = add(batch, message)
        if not is_filled:
            raise MessageError(
                f"Message '{message.message_id}' is larger than what can be sent at once. Store its data elsewhere and "
                "append where it is, or have the limit of the queue or hub raised."
            )
    if is_filled:
        send(batch)


def by_key(messages: Sequence[Message], key_of: Callable[[Message], str | None]) -> dict[str | None, list[Message]]:
    """Return the messages of each key, in order; keys in the order in which they first appear."""
    found: dict[str | None, list[Message]] = {}
    for message in messages:
        found.setdefault(key_of(message), []).append(message)
    return found
