"""What a relay needs of another system, and how a sink says what that has when a send fails half-way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from ...core.errors import DeliveryError
from ...database.error_text import error_text
from ..message import Message


class Sink(Protocol):
    """Takes messages, at least once.

    What a send does not say to be delivered comes again, in the same order and with the same message ids: whoever
    receives it deduplicates by them.
    """

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages in order; return when the other system has them for sure, raise when it does not.

        A ``DeliveryError`` says which of them were delivered before it failed, which failed, and whether it helps to
        try again, and when. After any other error all of them come again.
        """
        ...


class Taken:
    """What the other system has of one send, attached to the error that ends the send."""

    def __init__(self) -> None:
        self._ids: list[str] = []

    def add(self, messages: Sequence[Message]) -> None:
        """Note messages that the other system has for sure."""
        self._ids += ids_of(messages)

    @contextmanager
    def before(self, messages: Sequence[Message]) -> Iterator[None]:
        """Have an error of the block say what was delivered before, and that these messages are the ones that failed.

        Raises:
            DeliveryError: whatever was raised, if that was none.
        """
        try:
            yield
        except DeliveryError as error:
            error.delivered = (*self._ids, *error.delivered)
            error.about = error.about or ids_of(messages)
            raise
        except Exception as error:
            sentence = f"It was not possible to send {called(messages)}: {error_text(error).rstrip('.')}."
            raise DeliveryError(sentence, delivered=self._ids, about=ids_of(messages)) from error


def ids_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the ids of messages."""
    return tuple(message.message_id for message in messages)


def called(messages: Sequence[Message]) -> str:
    """Return what people call messages that are sent together."""
    if len(messages) == 1:
        return f"message '{messages[0].message_id}'"
    return f"the batch of {len(messages)} from message '{messages[0].message_id}' on"


def relaying(sink: Sink) -> Callable[[list[Message]], None]:
    """Return the handler of a processor that sends everything to a sink."""

    def relay(messages: list[Message]) -> None:
        sink.send(messages)

    return relay
