"""Judges what became of one item: what was promised, compared with what the handler did and the database kept.

The first rules hold whatever the handler did; the last one is about what its way should have led to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.runtime.scenes import Call, Deliberate, Ending
from tests.runtime.ways import Then

TRIES = 2
UNDONE = 1  # attempts in a row that a worker of these tests does not charge when the database undid them
ENDED_ITSELF = "ended context.transaction itself"
CAUGHT = "failed and was caught"


@dataclass(frozen=True)
class Settled:
    """What a workload says of an item once nothing more happens to it by itself.

    ``reason`` is what an operator reads, None where there is nothing to read. ``rests`` is whether the item is buried
    or its workload stopped, so that only an operator's decision makes it run again.
    """

    is_done: bool
    rests: bool = False
    reason: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of an item. ``kept`` are the effects the database has, as (call, step)."""

    settled: Settled
    calls: Sequence[Call]
    kept: Sequence[tuple[int, str]]
    left_behind: Sequence[str] = ()

    @property
    def says_ended(self) -> bool:
        return ENDED_ITSELF in (self.settled.reason or "")

    @property
    def expected(self) -> list[tuple[int, str]]:
        """Return what the call that returned has written."""
        return [(call.number, step) for call in self.calls if call.returned for step in call.written]


def violations(outcome: Outcome, then: Then, ending: Ending) -> list[str]:
    """Return every promise that was broken, in words; nothing when all were kept."""
    most_calls = TRIES * (1 + UNDONE) if then is Then.BROKEN else TRIES
    return [*_always(outcome, most_calls), *_by_what_it_led_to(outcome, then, ending)]


def _always(outcome: Outcome, most_calls: int) -> Iterator[str]:
    settled, calls = outcome.settled, outcome.calls
    if not 1 <= len(calls) <= most_calls:
        yield f"the handler was called {len(calls)} times"
    if settled.is_done and Counter(outcome.kept) != Counter(outcome.expected):
        yield f"recorded as done with the effects {outcome.kept} instead of {outcome.expected}"
    if settled.is_done and sum(call.returned for call in calls) != 1:
        yield f"recorded as done, and {sum(call.returned for call in calls)} calls returned"
    if not settled.is_done and not settled.reason:
        yield "not recorded as done, and nothing says why"
    if not settled.is_done and outcome.kept and not _rests_with_the_sentence(outcome):
        yield f"the effects {outcome.kept} were kept, it is not done, and it was not left to an operator at once"
    if outcome.left_behind:
        yield f"prepared transactions were left behind: {outcome.left_behind}"


def _rests_with_the_sentence(outcome: Outcome) -> bool:
    return len(outcome.calls) == 1 and outcome.settled.rests and outcome.says_ended


def _by_what_it_led_to(outcome: Outcome, then: Then, ending: Ending) -> Iterator[str]:
    settled = outcome.settled
    match then:
        case Then.WHOLE if ending is Ending.RETURNS:
            if not settled.is_done or len(outcome.calls) != 1:
                yield f"a whole transaction was not recorded as done at once: {settled.reason}"
        case Then.WHOLE:
            yield from _failed_plainly(outcome)
        case Then.FAILED | Then.BROKEN:
            yield from _not_done(outcome)
        case Then.ENDED:
            yield from _not_done(outcome)
            if any(call.did for call in outcome.calls) and not _rests_with_the_sentence(outcome):
                yield f"the handler ended it, and it was not left to an operator at once: {settled.reason}"
        case Then.UNDONE:
            yield from _undone(outcome)


def _not_done(outcome: Outcome) -> Iterator[str]:
    if outcome.settled.is_done:
        yield "recorded as done"


def _undone(outcome: Outcome) -> Iterator[str]:
    yield from _not_done(outcome)
    went_unnoticed = any(call.returned for call in outcome.calls)
    if went_unnoticed and not outcome.says_ended and CAUGHT not in (outcome.settled.reason or ""):
        yield f"the handler is not told what it did: {outcome.settled.reason}"


def _failed_plainly(outcome: Outcome) -> Iterator[str]:
    yield from _not_done(outcome)
    if len(outcome.calls) != TRIES:
        yield f"a handler that raised was called {len(outcome.calls)} times instead of {TRIES}"
    if Deliberate.__name__ not in (outcome.settled.reason or ""):
        yield f"the handler's own error is not told: {outcome.settled.reason}"
