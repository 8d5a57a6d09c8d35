"""What a relay needs of another system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..message import Message


class Sink(Protocol):
    """Takes messages, at least once.

    A batch that fails half-way comes again whole, in the same order and with the same message ids: whoever receives it
    deduplicates by them.
    """

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages in order; return when the other system has them for sure, raise when it does not."""
        ...


def relaying(sink: Sink) -> Callable[[list[Message]], None]:
    """Return the handler of a processor that sends everything to a sink."""

    def relay(messages: list[Message]) -> None:
        sink.send(messages)

    return relay
