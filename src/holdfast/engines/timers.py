"""Timer engines: at every slot of a schedule, a message in the engine's queue.

A tick is a message like any other, so it is counted, retried, recorded and buried like any other. Its ids are made from
the slot: a worker that dies between sending it and writing the slot down has it sent again, and the history ends the
second. Slots that nobody was there for collapse into one, for the newest of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from ..core.clock import Clock
from ..core.schedule import Schedule
from ..runtime.keeper import keeping
from ..state.lease import HeldLease
from ..state.store import StateStore
from .messages import utc_text
from .singletons import lease_name

_LEASE_SECONDS = 30.0
_LAST_SLOT = "last_slot"
_LONGEST_NAME = 180  # of an id with the slot behind it


@dataclass(frozen=True, slots=True)
class TimerOutcome:
    """How many messages were sent, and that there is nothing more to do now."""

    delivered: int
    caught_up: bool = True


class TimerRunner:
    """Sends the messages of one timer engine, under a lease: one worker of a fleet at a time.

    Args:
        engine: the engine; its place is kept under engine and operation.
        operation: the operation.
        schedule: when.
        send: adds the message of a slot, given its id, to the queue.
        leases: where lease and place are kept.
    """

    def __init__(
        self,
        engine: str,
        operation: str,
        schedule: Schedule,
        send: Callable[[str, datetime], object],
        leases: StateStore,
        clock: Clock,
    ) -> None:
        self._name = f"{engine}/{operation}"
        self._id = _short(self._name)
        self._schedule = schedule
        self._send = send
        self._leases = leases
        self._clock = clock

    @property
    def title(self) -> str:
        """Return what people call it."""
        return f"Timer of engine '{self._name}'"

    @contextmanager
    def leased(self) -> Iterator[HeldLease]:
        """Hold the timer's lease.

        Raises:
            LeaseConflictError: another worker holds it.
        """
        lease = self._leases.acquire(lease_name(self._name, "timer"), ttl_seconds=_LEASE_SECONDS)
        try:
            with keeping(lease, self._clock):
                yield lease
        finally:
            lease.release(wait_seconds=1.0)

    def process_batch(self, lease: HeldLease) -> TimerOutcome:
        """Send the message of the newest slot since the last one, if there is one. The first call only begins."""
        now = lease.now()
        last = lease.checkpoint.get(_LAST_SLOT)
        if not isinstance(last, str):
            lease.commit({_LAST_SLOT: utc_text(now)})
            return TimerOutcome(0)
        slot = self._schedule.latest_slot(datetime.fromisoformat(last), now)
        if slot is None:
            return TimerOutcome(0)
        self._send(f"{self._id}-{slot.astimezone(UTC):%Y%m%dT%H%M%SZ}", slot)
        lease.commit({_LAST_SLOT: utc_text(slot)})
        return TimerOutcome(1)


def _short(name: str) -> str:
    """Return a name that is short enough for an id with a slot behind it, and never another's."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 17]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"
