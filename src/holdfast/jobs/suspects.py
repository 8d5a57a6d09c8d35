"""Finds the job that kills its worker, without charging those that were beside it [SUSPECT-1].

What a lost worker held is marked, and tested: one suspect at a time, with nothing else beginning on its worker, and
its begin recorded. If the worker dies now, it was the suspect. If nothing happens for a while, it is cleared and normal
work goes on beside it; a worker lost later marks it again, and its next test lasts twice as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from ..core.clock import Clock
from ..core.errors import UNANSWERED
from .model import Claim, ClaimedJob, Suspect, WorkerId
from .stores.protocol import WorkerStore

PATIENCE_SECONDS = 1.0  # for what is in flight when a test is to begin
_AGAIN_SECONDS = 0.5  # after a claim found no room: meanwhile a place is kept, as long as that is repeated
_SHORTEST_TEST_SECONDS = 2.0
_LONGEST_TEST_SECONDS = 60.0
_NEVER_CLEARED = 10  # so many workers were lost with it: the next is charged, whatever runs beside it
_PERIOD_SECONDS = 5.0  # of tests, then normal work has its turn


def trial_seconds(suspicions: int) -> float:
    """Return how long a suspect runs under test: twice as long for each worker that was lost with it."""
    return float(min(_LONGEST_TEST_SECONDS, _SHORTEST_TEST_SECONDS * 2 ** (min(suspicions, 10) - 1)))


def is_clearable(suspicions: int) -> bool:
    """Return whether a suspect that has passed its test is charged no more: not if it was there too often."""
    return suspicions < _NEVER_CLEARED


class Tested(Protocol):
    """A job under test, as far as its test needs to know it."""

    @property
    def claim(self) -> Claim:
        """Return the claim it is held by."""
        ...

    def lose(self, *, is_certain: bool) -> None:
        """Note that it is no longer ours."""
        ...


class Held(Protocol):
    """What the worker holds."""

    def __len__(self) -> int: ...

    def get(self, claims: Sequence[Claim]) -> Sequence[object]:
        """Return those of the claims that are held."""
        ...

    def remove(self, claims: Sequence[Claim]) -> None:
        """Let go of jobs."""
        ...


Job = TypeVar("Job", bound=Tested)


class Suspects(Generic[Job]):
    """The tests of one worker, one at a time, driven from the thread that claims.

    Args:
        claim: claims the next suspect, if one can begin here now; tells also whether any waits.
        hold: takes a claimed job in and returns it as one that is in flight.
        make_way: gives back what has not begun.
        start: begins a job at once, whatever else runs.
        put_back: gives back one that is held and has not begun.
    """

    def __init__(
        self,
        store: WorkerStore,
        worker: WorkerId,
        in_flight: Held,
        clock: Clock,
        *,
        claim: Callable[[], tuple[Suspect | None, bool]],
        hold: Callable[[ClaimedJob], Job],
        make_way: Callable[[], None],
        start: Callable[[Job], None],
        put_back: Callable[[Job], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._in_flight = in_flight
        self._clock = clock
        self._claim = claim
        self._hold = hold
        self._make_way = make_way
        self._start = start
        self._put_back = put_back
        self._are_waiting = False
        self._tested: Job | None = None
        self._suspicions = 0
        self._begun_at: float | None = None
        self._since: float | None = None  # when this period of tests began
        self._rests_until = 0.0
        self._again_at = 0.0

    @property
    def is_testing(self) -> bool:
        """Return whether nothing else may begin now."""
        return self._tested is not None

    def heard(self, are_waiting: bool) -> None:
        """Take in whether suspects wait somewhere."""
        self._are_waiting = are_waiting

    def nothing_else(self) -> None:
        """Take in that there is no other work: then none has to be given its turn."""
        self._rests_until = 0.0

    def step(self) -> int:
        """Do what is to be done now; return 1 if a test began or ended, else 0.

        Raises:
            Unavailable, Ambiguous: the database does not answer; the step is done again next time.
            Exception: a test cannot go on, and was ended: other work must not wait for it.
        """
        try:
            return self._step()
        except UNANSWERED:
            raise
        except Exception:
            self.stop()
            raise

    def stop(self) -> None:
        """End the test, if there is one: what has not begun is given back."""
        if self._tested is not None:
            tested, has_begun = self._tested, self._begun_at is not None
            self._over()
            if not has_begun:
                self._put_back(tested)

    def _step(self) -> int:
        if self._tested is None:
            return self._take_next()
        if not self._in_flight.get([self._tested.claim]):
            return self._over()
        if self._begun_at is None:
            return self._begin(self._tested) if self._has_waited() else 0
        if self._clock.monotonic() - self._begun_at >= trial_seconds(self._suspicions):
            return self._pass(self._tested)
        return 0

    def seconds_left(self) -> float:
        """Return how long nothing need be done, if no news comes."""
        now = self._clock.monotonic()
        if self._begun_at is not None:
            return max(0.0, self._begun_at + trial_seconds(self._suspicions) - now)
        if self._tested is not None:
            return max(0.0, (self._since or now) + PATIENCE_SECONDS - now)
        return max(0.0, self._next_at - now) if self._are_waiting else math.inf

    @property
    def _next_at(self) -> float:
        return max(self._rests_until, self._again_at)

    def _take_next(self) -> int:
        now = self._clock.monotonic()
        if not self._are_waiting or now < self._next_at:
            return 0
        found, self._are_waiting = self._claim()
        if found is None:
            self._since, self._again_at = None, now + _AGAIN_SECONDS
            return 0
        self._take(found, now)
        return 1

    def _take(self, found: Suspect, now: float) -> None:
        self._tested, self._suspicions, self._begun_at = self._hold(found.job), found.suspicions, None
        if self._since is None:
            self._since = now
            self._make_way()

    def _has_waited(self) -> bool:
        """Return whether nothing else runs, or has been waited for long enough: a test must begin some time."""
        assert self._since is not None
        return len(self._in_flight) <= 1 or self._clock.monotonic() - self._since >= PATIENCE_SECONDS

    def _begin(self, tested: Job) -> int:
        if self._store.begin(self._worker, tested.claim):
            self._begun_at = self._clock.monotonic()
            self._start(tested)
        else:
            tested.lose(is_certain=True)
            self._in_flight.remove([tested.claim])
            self._over()
        return 1

    def _pass(self, tested: Job) -> int:
        """Let other work go on beside a suspect that has not killed its worker so far."""
        if is_clearable(self._suspicions):
            self._store.clear(self._worker, tested.claim)
        return self._over()

    def _over(self) -> int:
        """Go on with the next suspect, or give normal work as much time as the tests have had."""
        self._tested, self._begun_at = None, None
        now = self._clock.monotonic()
        if self._since is not None and now - self._since >= _PERIOD_SECONDS:
            self._rests_until, self._since = now + (now - self._since), None
        return 1
