"""Samples of who is at work in a database, shared by all triggers that read from it.

What was found out about a database is sound for every read that starts after it was found out [HORIZON-SHARED]: who
might have written below the bound had ended by then, so a later snapshot sees what they committed. So a sample is taken
in a transaction of its own, before the reads; a read takes one that another trigger took a moment ago, if it has not
used that one yet, and else takes a new one for everybody. Inside the read, or after it, it would lose late commits.

A sample is shared among sessions of a primary only: a primary becomes a standby by a restart, which ends its sessions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy.engine import Connection, Engine

from ....core.clock import Clock, SystemClock
from ....database.server_roles import is_standby

_Value = TypeVar("_Value")
_SHARED_SECONDS = 0.5
_IS_PRIMARY = "holdfast_is_primary"


@dataclass(frozen=True, slots=True)
class Sample(Generic[_Value]):
    """What was found out, and when it was begun to be."""

    asked_at: float
    value: _Value


class Samples:
    """The newest sample of each kind from one database. Safe to use from several threads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._newest: dict[str, Sample[Any]] = {}

    def newest(
        self, connection: Connection, kind: str, take: Callable[[Connection], _Value], used: Sample[_Value] | None
    ) -> Sample[_Value]:
        """Return a sample that is newer than the one ``used`` before: another's, or one taken now on this connection.

        It is complete when this returns: whatever is read from now on is read after it.
        """
        if not _is_on_primary(connection):
            return Sample(self._clock.monotonic(), take(connection))
        with self._lock_of(kind):
            known: Sample[_Value] | None = self._newest.get(kind)
            if known is None or not self._is_fresh(known, used):
                known = Sample(self._clock.monotonic(), take(connection))
                self._newest[kind] = known
            return known

    def _is_fresh(self, known: Sample[_Value], used: Sample[_Value] | None) -> bool:
        is_new_here = used is None or known.asked_at > used.asked_at
        return is_new_here and self._clock.monotonic() - known.asked_at <= _SHARED_SECONDS

    def _lock_of(self, kind: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(kind, threading.Lock())


def _is_on_primary(connection: Connection) -> bool:
    """Return whether a session is one of a primary: asked once, for it stays so as long as the session lives."""
    if not connection.info.get(_IS_PRIMARY):
        connection.info[_IS_PRIMARY] = not is_standby(connection)
    return bool(connection.info[_IS_PRIMARY])


_samples: WeakKeyDictionary[Engine, Samples] = WeakKeyDictionary()
_samples_lock = threading.Lock()


def samples_of(engine: Engine) -> Samples:
    """Return the samples that all sources with this pool share."""
    with _samples_lock:
        return _samples.setdefault(engine, Samples())
