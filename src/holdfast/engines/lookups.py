"""Looks into the history, for many messages at once, whether they were done before [ENGINE-2].

An answer is used only for a moment, and never across a message about the same in this process: from before the look
until its end is recorded, only one message of an application has a key (engine, operation, correlation id) in hand.
Messages about the same that other workers have claimed are found by the same look [ENGINE-7].
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice

from ..core.clock import Clock
from ..core.errors import AlreadyRunning
from ..jobs.model import Claim, WorkerId
from ..jobs.running import Running
from ..records.history import SuccessKey
from .twins import Look

_FRESH_SECONDS = 0.05
_MOST_AHEAD = 250
_UNSEEN = (Look(), -math.inf)


class SuccessLookups:
    """The looks of one process. Called from several threads.

    Args:
        find: returns which of the keys have a success, or are in another worker's hand.
        most_ahead: how many messages that wait in line are looked up with one that begins, at most: fewer where
            messages take so long that answers are too old when their turn comes.
    """

    def __init__(
        self, find: Callable[[WorkerId, Collection[SuccessKey]], Look], clock: Clock, *, most_ahead: int = _MOST_AHEAD
    ) -> None:
        self._find = find
        self._clock = clock
        self._most_ahead = self._ahead = most_ahead
        self._too_far_at = 0.0  # when an answer was found too old: others of its look, or before, are no news
        self._lock = threading.Lock()
        self._looking = threading.Lock()  # while one asks, the others that want to know wait, and get its answer
        self._waiting: dict[Claim, SuccessKey] = {}
        self._keys: dict[Claim, SuccessKey] = {}
        self._in_hand: dict[SuccessKey, Claim] = {}
        self._asking: set[SuccessKey] = set()
        self._seen: dict[SuccessKey, tuple[Look, float]] = {}
        self._ended: set[SuccessKey] = set()  # since the look that is under way began: its answer may be too old

    def expect(self, jobs: Sequence[Running], keys: Sequence[SuccessKey | None]) -> None:
        """Learn which keys messages have that wait for their turn, None for what nobody can read."""
        with self._lock:
            for running, key in zip(jobs, keys, strict=True):
                running.on_gone = partial(self._gone, running.claim)
                if key is not None:
                    self._waiting[running.claim] = key

    def has_succeeded(self, worker: WorkerId, claim: Claim, key: SuccessKey) -> bool:
        """Take a key in hand and return whether it has a success. It is let go of when the worker lets go of the job.

        Raises:
            AlreadyRunning: another message has it in hand, here or in another worker.
        """
        look = self._taken(worker, claim, key)
        if key in look.succeeded:
            return True
        twin = look.elsewhere.get(key)
        if twin is not None:
            raise AlreadyRunning(
                f"Another worker has a message with correlation id '{key.correlation_id}' for '{key.operation}' in "
                "hand.",
                comes_first=claim.id < twin,
            )
        return False

    def _taken(self, worker: WorkerId, claim: Claim, key: SuccessKey) -> Look:
        with self._lock:
            self._waiting.pop(claim, None)
            if self._in_hand.setdefault(key, claim) != claim:
                raise AlreadyRunning(
                    f"Another message with correlation id '{key.correlation_id}' is at work on '{key.operation}' in "
                    "this process."
                )
            self._keys[claim] = key
            asked_at, looked_at = self._clock.monotonic(), self._seen.get(key, _UNSEEN)[1]
            known = self._known(key, math.inf)
            if known is not None:
                self._ahead = min(self._most_ahead, 2 * self._ahead)
                return known
            if looked_at >= self._too_far_at:
                self._ahead, self._too_far_at = max(1, self._ahead // 2), asked_at
            self._asking.add(key)
        return self._looked_up(worker, key, asked_at)

    def _known(self, key: SuccessKey, asked_at: float) -> Look | None:
        """Return an answer, once, that is fresh, or of a look that began after the key was in hand: that is as good."""
        look, looked_at = self._seen.pop(key, _UNSEEN)
        is_fresh = self._clock.monotonic() - looked_at <= _FRESH_SECONDS
        return look if is_fresh or looked_at > asked_at else None

    def _looked_up(self, worker: WorkerId, key: SuccessKey, asked_at: float) -> Look:
        with self._looking:
            with self._lock:
                known = self._known(key, asked_at)
                self._asking.discard(key)
                wanted = {key, *self._asking, *self._next_in_line()}
                self._ended.clear()
            if known is not None:
                return known
            looked_at = self._clock.monotonic()
            found = self._find(worker, wanted)
            with self._lock:
                self._seen |= dict.fromkeys(wanted - self._ended - {key}, (found, looked_at))
            return found

    def _next_in_line(self) -> list[SuccessKey]:
        """Return the keys that come next and are neither in hand nor known."""
        oldest = self._clock.monotonic() - _FRESH_SECONDS
        ahead = islice(self._waiting.values(), self._ahead)
        return [each for each in ahead if each not in self._in_hand and self._seen.get(each, _UNSEEN)[1] < oldest]

    def _gone(self, claim: Claim) -> None:
        """Forget a message that the worker holds no more; whoever has the same key must look again."""
        with self._lock:
            key = self._keys.pop(claim, None) or self._waiting.pop(claim, None)
            if key is not None:
                self._seen.pop(key, None)
                self._ended.add(key)
                if self._in_hand.get(key) == claim:
                    del self._in_hand[key]
