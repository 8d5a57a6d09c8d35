"""How far a batch is: what of it was delivered, what is set aside, and how far the checkpoint may move. No I/O.

A message is open until it is delivered or set aside: it failed for good, or its key is parked and it waits behind what
failed. The checkpoint passes what is not open any more, from the beginning of the batch on; so whatever is open when a
process dies comes again, and what an answer has confirmed does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, takewhile

from ..core.errors import DeliveryError, HandlerError
from .message import Checkpoint, Message
from .store import Move


@dataclass(frozen=True, slots=True)
class Failed:
    """How a message, or several together, failed up to now."""

    error: HandlerError
    attempts: int
    first_at: datetime
    last_at: datetime

    @property
    def cause(self) -> BaseException:
        """Return what the handler raised."""
        return self.error.__cause__ or self.error

    @property
    def is_permanent(self) -> bool:
        """Return whether a sink has said that the same will be refused again."""
        return isinstance(self.cause, DeliveryError) and self.cause.is_permanent


def failed_again(before: Failed | None, error: HandlerError, now: datetime) -> Failed:
    """Return how something failed that had failed before, or (None) had not."""
    attempts, first_at = (1, now) if before is None else (before.attempts + 1, before.first_at)
    return Failed(error, attempts, first_at, now)


@dataclass(frozen=True, slots=True)
class Aside:
    """A message that is passed and not delivered: it failed, or (None) it waits behind one of its key that did.

    ``is_parked`` says that its key waits with it.
    """

    message: Message
    failed: Failed | None
    is_parked: bool


@dataclass(frozen=True, slots=True)
class Passage:
    """A step of the checkpoint, and the messages that it passes by."""

    move: Move
    asides: tuple[Aside, ...]
    number: int
    """How many messages of the batch are passed then."""


class Course:
    """The course of one batch.

    Args:
        messages: the batch, in order.
        move: the step over all of it.
        in_order: returns a message's place as the processor's order has it.
        parks: whether the key of a message that fails is parked.
        parked_keys: the keys that are parked already.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        move: Move,
        *,
        in_order: Callable[[Checkpoint], Checkpoint],
        parks: bool = False,
        parked_keys: Collection[str] = (),
    ) -> None:
        self._messages = messages
        self._move = move
        self._in_order = in_order
        self._parks = parks
        self._parked_keys = set(parked_keys)
        self._at = move.expected
        self._passed = 0
        self._delivered: set[str] = set()
        self._failed: dict[str, Failed] = {}
        self._alone: set[str] = set()

    @property
    def at(self) -> Checkpoint | None:
        """Return where the checkpoint stands now."""
        return self._at

    def next(self) -> list[Message]:
        """Return what to deliver together now, in order; nothing when no message is open."""
        left = self._open()
        first = next(left, None)
        if first is None or first.message_id in self._alone:
            return [] if first is None else [first]
        return [first, *takewhile(lambda message: message.message_id not in self._alone, left)]

    def passage(self, delivering: Iterable[Message] = ()) -> Passage | None:
        """Return how far the checkpoint may move, also over what is being delivered; None when not at all."""
        closing = {message.message_id for message in delivering}
        number = self._passed
        while number < len(self._messages) and self._is_closed(self._messages[number], closing):
            number += 1
        if number == self._passed:
            return None
        passed = self._messages[self._passed : number]
        last = number == len(self._messages)
        to = self._move.to if last else self._in_order(passed[-1].checkpoint)
        asides = tuple(self._aside(message) for message in passed if self._is_aside(message))
        return Passage(Move(self._at, to, self._move.highest_position), asides, number)

    def over(self, messages: Iterable[Message]) -> Passage:
        """Return the step over what is being delivered, which begins where the checkpoint stands."""
        passage = self.passage(messages)
        assert passage is not None, "something is passed when anything is delivered"
        return passage

    def moved(self, passage: Passage) -> None:
        """Note that the checkpoint was stored."""
        self._at, self._passed = passage.move.to, passage.number

    def delivered(self, ids: Iterable[str]) -> int:
        """Note what the other system has; return how many messages of this batch it has more than before."""
        before = len(self._delivered)
        self._delivered |= {message.message_id for message in self._open()} & set(ids)
        return len(self._delivered) - before

    def blamed(self, messages: Sequence[Message], error: BaseException) -> list[Message]:
        """Return which of the messages that were delivered together an error is about."""
        left = [message for message in messages if self._is_open(message)]
        named = set(error.about) if isinstance(error, DeliveryError) else set()
        return [message for message in left if message.message_id in named] or left

    def give_up(self, message: Message, failed: Failed) -> None:
        """Set a message aside that failed for good, and with it, where keys are parked, those of its key behind it."""
        self._failed[message.message_id] = failed
        if self._parks and message.key is not None:
            self._parked_keys.add(message.key)

    def deliver_alone(self, messages: Iterable[Message]) -> None:
        """Deliver each of some messages alone from now on: it is not known which of them fails."""
        self._alone |= {message.message_id for message in messages}

    def _open(self) -> Iterator[Message]:
        left = islice(self._messages, self._passed, None)
        return (message for message in left if self._is_open(message))

    def _is_open(self, message: Message) -> bool:
        return message.message_id not in self._delivered and not self._is_aside(message)

    def _is_closed(self, message: Message, closing: Collection[str]) -> bool:
        return message.message_id in closing or not self._is_open(message)

    def _is_aside(self, message: Message) -> bool:
        return message.message_id in self._failed or self._waits(message)

    def _waits(self, message: Message) -> bool:
        return message.key in self._parked_keys and message.message_id not in self._delivered

    def _aside(self, message: Message) -> Aside:
        failed = self._failed.get(message.message_id)
        return Aside(message, failed, is_parked=message.key in self._parked_keys)
