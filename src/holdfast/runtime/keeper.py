"""Keeps alive everything that this process holds: leases, the registry's lock, jobs and messages at work.

One thread beats, whatever is due first. A store may take a write and never answer, so a second thread looks at the
clock alone: it declares lost what has run out, and it leaves a beat that is not answered within a moment to its thread
and lets another one go on. So a write that hangs neither keeps us believing in a lease nor delays another's beat, and
there are two threads for any number of held things, plus one for every write that hangs at this moment.

The threads start with the first thing held and end a while after the last, so hosts without a worker need nothing else.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ..core.clock import Clock, SystemClock
from ..core.errors import ConfigurationError, DbError, LostLeaseError, RegistryLocked
from ..core.patience import until_lost

_PATIENCE_SECONDS = 0.25
_LEAST_LOOK_SECONDS = 0.05
_LEAST_PAUSE_SECONDS = 0.01
_LINGER_SECONDS = 5.0
_LET_GO_SECONDS = 1.0
_log = logging.getLogger("holdfast.runtime")


class Held(Protocol):
    """What the keeper needs of whatever it keeps alive.

    What has ``beats_with`` and ``heartbeat_together``, as leases have, is extended with others by one write.

    ``lost`` ends the keeping. What has many parts, of which each can be lost alone, leaves it unset: then ``mark_lost``
    is called at every look for which ``seconds_left`` is not positive.
    """

    lost: threading.Event

    @property
    def ttl_seconds(self) -> float:
        """Return how long it lives without being extended."""
        ...

    @property
    def is_protected(self) -> bool:
        """Return whether nobody can take it although it is not extended."""
        ...

    def seconds_since_renewal(self) -> float:
        """Return how long ago the last write that extended it was begun."""
        ...

    def seconds_left(self) -> float:
        """Return how long we may still act on it, by our own clock."""
        ...

    def mark_lost(self) -> None:
        """Give it up as lost."""
        ...

    def heartbeat(self, *, wait_seconds: float) -> None:
        """Extend it by one write; wait at most that long for another write of the same holder.

        Raises:
            LostLeaseError, RegistryLocked: it is someone else's by now.
            Exception: whatever else; a retry can help.
        """
        ...


def checked_interval(interval_seconds: float | None, ttl_seconds: float) -> float:
    """Return the interval between beats: a third of the time to live unless another is given.

    Raises:
        ConfigurationError: it is not below half the time to live, so one late beat could lose the lease.
    """
    if interval_seconds is None:
        return ttl_seconds / 3
    if not 0 < interval_seconds < ttl_seconds / 2:
        raise ConfigurationError(
            f"heartbeat_interval_seconds={interval_seconds:g} must be above 0 and below half of the lease's "
            f"{ttl_seconds:g} s: use {ttl_seconds / 3:g} or less."
        )
    return interval_seconds


class Kept:
    """One held thing, and when it is to be looked at next. A commit extends a lease, too, so not every turn writes."""

    def __init__(self, held: Held, interval_seconds: float | None = None) -> None:
        checked_interval(interval_seconds, held.ttl_seconds)
        self.held = held
        self._interval_seconds = interval_seconds
        self.due_at = 0.0
        self.at_rest = threading.Event()
        self.at_rest.set()
        self._has_failed = False

    @property
    def interval(self) -> float:
        """Return the interval between beats, which shrinks with the time to live."""
        return self._interval_seconds or self.held.ttl_seconds / 3

    @property
    def common(self) -> object | None:
        """Return what it shares with others that the same write can extend; None when it is extended alone."""
        return getattr(self.held, "beats_with", None)

    def pause(self) -> float:
        """Return how long until the next turn."""
        if self.held.is_protected:
            return self.interval / 4
        if self._has_failed:
            return max(_LEAST_PAUSE_SECONDS, min(self.interval / 4, self.held.seconds_left()))
        return max(0.0, self.interval - self.held.seconds_since_renewal())

    def turn(self) -> None:
        """Beat, unless something else extended it within the interval."""
        if self._has_failed or self.held.seconds_since_renewal() >= self.interval:
            self._has_failed = not self._beat()
        self.lose_if_over()

    def lose_if_over(self) -> None:
        """Mark it lost when its usable time has passed without an extension that was answered."""
        if not self.held.lost.is_set() and not self.held.is_protected and self.held.seconds_left() <= 0:
            self._lose()

    def _lose(self) -> None:
        try:
            self.held.mark_lost()
        except Exception:  # whoever is notified of the loss may raise anything, and others wait for their turn
            _log.exception("A lost lease could not be made known to everyone")

    def _beat(self) -> bool:
        """Extend it; return whether that succeeded. What must happen with each beat is called here."""
        try:
            with until_lost(self.held.lost):
                self.held.heartbeat(wait_seconds=max(0.0, self.held.seconds_left()))
        except (LostLeaseError, RegistryLocked):
            self._lose()
        except DbError as error:
            if not self._has_failed:
                _log.warning("A lease could not be extended and is tried again: %s", error)
            return False
        except Exception:  # a store of the user's own may raise anything; a beat that failed is no beat
            _log.exception("A heartbeat failed unexpectedly and is tried again")
            return False
        return True


class Keeper:
    """Keeps any number of things alive on one clock. ``keeper_on`` finds the one of this process."""

    def __init__(self, clock: Clock, linger_seconds: float = _LINGER_SECONDS) -> None:
        self._clock = clock
        self._linger_seconds = linger_seconds
        self.forget_everything()

    def forget_everything(self) -> None:
        """Begin anew. After a fork the parent's threads are not here, and what the parent holds is the parent's."""
        self._lock = threading.Lock()
        self._kept: set[Kept] = set()
        self._due = threading.Event()
        self._changed = threading.Event()
        self._watcher: threading.Thread | None = None
        self._beater: threading.Thread | None = None
        self._beating_since: float | None = None
        self._has_lost_beater = False

    @property
    def is_alive(self) -> bool:
        """Return whether its threads live and none of them has died, while anything is kept."""
        with self._lock:
            return not self._kept or (
                self._watcher is not None
                and self._watcher.is_alive()
                and not self._has_lost_beater
                and not self._is_beater_dead()
            )

    def take(self, kept: Kept) -> None:
        """Keep something alive from now on."""
        with self._lock:
            if self._watcher is None or not self._watcher.is_alive():
                self._watcher = _started("keeper", self._watch)
            if not self._kept:  # what died before concerns nobody any more
                self._beater = None if self._is_beater_dead() else self._beater
                self._has_lost_beater = False
            kept.due_at = self._clock.monotonic() + kept.pause()
            self._kept.add(kept)
        self._due.set()
        self._changed.set()

    def look_again(self, kept: Kept) -> None:
        """Learn that something is due sooner than it was: its time to live is shorter now, or a beat is wanted."""
        with self._lock:
            kept.due_at = 0.0
        self._due.set()
        self._changed.set()

    def let_go(self, kept: Kept) -> None:
        """Extend it no more. Waits a moment for a beat that is on its way."""
        with self._lock:
            self._kept.discard(kept)
        self._changed.set()
        kept.at_rest.wait(_LET_GO_SECONDS)

    # The thread that looks at the clock

    def _watch(self) -> None:
        empty_since: float | None = None
        while True:
            self._changed.clear()
            with self._lock:
                kept = list(self._kept)
                empty_since = None if kept else empty_since or self._clock.monotonic()
                if empty_since is not None and self._clock.monotonic() - empty_since >= self._linger_seconds:
                    self._watcher = self._beater = self._beating_since = None
                    self._due.set()
                    return
            for each in kept:
                each.lose_if_over()
            self._clock.wait(self._changed, self._see_that_someone_beats(kept))

    def _see_that_someone_beats(self, kept: list[Kept]) -> float:
        """Start a thread that beats when there is none, or when the present one waits for an answer.

        Returns how long until the clock is to be looked at again: nothing runs out before, and no answer is overdue.
        """
        patience = min([_PATIENCE_SECONDS, *(each.interval / 4 for each in kept)])
        with self._lock:
            since = self._beating_since
            hangs = since is not None and self._clock.monotonic() - since >= patience
            self._has_lost_beater = self._has_lost_beater or self._is_beater_dead()
            if kept and (self._beater is None or hangs or self._is_beater_dead()):
                self._start_beating()
            is_beating = self._beating_since is not None
        if not kept:
            return self._linger_seconds
        return min([*(_runs_out(each) for each in kept), *([patience] if is_beating else [])])

    def _is_beater_dead(self) -> bool:
        """Return whether the thread that beats has ended although nobody relieved it."""
        return self._beater is not None and not self._beater.is_alive()

    def _start_beating(self) -> None:
        try:
            self._beater, self._beating_since = _started("beats", self._beat), None
        except RuntimeError as error:  # the system has no more threads: the next look tries again
            _log.error("No thread could be started to extend leases; it is tried again: %s", error)

    # The thread that beats

    def _beat(self) -> None:
        me = threading.current_thread()
        while True:
            self._due.clear()
            with self._lock:
                if self._beater is not me:
                    return
                kept, seconds = self._next()
            if kept is None:
                self._clock.wait(self._due, seconds)
                continue
            self._changed.set()  # so that the other thread looks whether this is answered in time
            together = self._due_with(kept)
            if together:
                _beat_together([kept, *together])
            for each in (kept, *together):  # writes only for those that were not reached
                each.turn()
                self._done(each, me)

    def _next(self) -> tuple[Kept | None, float]:
        """Return what is due, marked as being beaten; else how long until something is."""
        now = self._clock.monotonic()
        waiting = [each for each in self._kept if each.at_rest.is_set() and not each.held.lost.is_set()]
        first = min(waiting, key=lambda each: each.due_at, default=None)
        if first is None or first.due_at > now:
            return None, _LINGER_SECONDS if first is None else first.due_at - now
        first.at_rest.clear()
        self._beating_since = now
        return first, 0.0

    def _due_with(self, first: Kept) -> list[Kept]:
        """Return what the same write can extend and will be due before long, marked as being beaten."""
        common = first.common
        if common is None:
            return []
        with self._lock:
            soon = self._clock.monotonic() + first.interval / 2
            found = [
                each
                for each in self._kept
                if each.at_rest.is_set()
                and each.due_at <= soon
                and not each.held.lost.is_set()
                and each.common is common
            ]
            for each in found:
                each.at_rest.clear()
        return found

    def _done(self, kept: Kept, me: threading.Thread) -> None:
        with self._lock:
            kept.due_at = self._clock.monotonic() + kept.pause()
            if self._beater is me:
                self._beating_since = None
        kept.at_rest.set()
        self._due.set()


def _beat_together(kept: Sequence[Kept]) -> None:
    """Extend everything by one write; who is not reached by it is extended alone afterwards."""
    first: Any = kept[0].held
    try:
        first.heartbeat_together([each.held for each in kept])
    except Exception as error:
        _log.debug("Leases could not be extended together: %s", error)


def _runs_out(kept: Kept) -> float:
    """Return when a held thing is to be looked at by the clock: when it runs out, or soon when it cannot be lost."""
    left = kept.held.seconds_left()
    return max(_LEAST_LOOK_SECONDS, left if left > 0 else kept.interval / 4)


def _started(name: str, target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, name=f"holdfast-{name}", daemon=True)
    thread.start()
    return thread


_of_process = Keeper(SystemClock())

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_of_process.forget_everything)


def keeper_on(clock: Clock) -> Keeper:
    """Return the keeper of this process; time that a test steps has one of its own."""
    return _of_process if type(clock) is SystemClock else Keeper(clock, 0.0)


def are_kept() -> bool:
    """Return whether everything that this process holds is kept alive."""
    return _of_process.is_alive


@contextmanager
def keeping(held: Held, clock: Clock, *, interval_seconds: float | None = None) -> Iterator[None]:
    """Keep something alive while the block runs; ``held.lost`` is set as soon as it no longer is.

    If the process dies, it ends by itself after its time to live.

    Raises:
        ConfigurationError: the interval is too long for its time to live.
    """
    kept, keeper = Kept(held, interval_seconds), keeper_on(clock)
    keeper.take(kept)
    try:
        yield
    finally:
        keeper.let_go(kept)
