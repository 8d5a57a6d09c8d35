"""Timer engines: at every slot of a schedule, a message in the engine's queue.

A tick is a message like any other, so it is counted, retried, recorded and buried like any other. Its ids are made from
the slot: a worker that dies between sending it and writing the slot down has it sent again, and the history ends the
second. Slots that nobody was there for collapse into one, for the newest of them; what was sent and could not begin
while it was the newest is skipped when it is delivered. ``missed`` says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from ..core.clock import Clock
from ..core.moments_ahead import MomentsAhead, lies_ahead
from ..core.names import shortened
from ..core.schedule import Schedule
from ..lease.held_lease import HeldLease
from ..lease.store import StateStore
from ..records.schema import PUBLISHER
from ..runtime.keeper import keeping
from ..runtime.leased_part import logged_step
from .messages import EngineMessage, utc_text
from .registry_shape import path_segment
from .singletons import lease_name

Missed: TypeAlias = Literal["newest", "skip", "run-all"]
"""What becomes of slots that could not begin in their time: only the newest is executed, none is, or all are."""

LATEST_SECONDS = 60.0
"""How long after its slot a message still begins where missed slots are skipped."""

_LEASE_SECONDS = 30.0
_LAST_SLOT = "last_slot"
_IS_SENT = "is_sent"
_LONGEST_NAME = 180  # of an id with the slot behind it
_SLOT = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class TimerOutcome:
    """How many messages were sent, and whether there is nothing more to do now."""

    delivered: int
    caught_up: bool = True


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer: what its messages ask for, of which application, and the instance that they are about."""

    app_name: str
    engine: str
    operation: str
    instance_id: str = PUBLISHER

    @property
    def name(self) -> str:
        """Return what people call it, and never another of the application."""
        own = "" if self.instance_id == PUBLISHER else f"@{path_segment(self.instance_id)}"
        return f"{self.engine}{own}/{self.operation}"

    @property
    def lease(self) -> str:
        """Return where its lease and its place are kept."""
        return lease_name(self.name, "timer")

    def id_of(self, slot: datetime) -> str:
        """Return the id of a slot's message, which no other application's timer has: they may share a history."""
        return f"{shortened(f'{self.app_name}/{self.name}', _LONGEST_NAME)}-{slot.astimezone(UTC):{_SLOT}}"

    def slot_of(self, message_id: str) -> datetime | None:
        """Return the slot of a message that the timer has sent; None for any other, a dead letter put back too."""
        try:
            slot = datetime.strptime(message_id[-16:], _SLOT).replace(tzinfo=UTC)
        except ValueError:
            return None
        return slot if message_id == self.id_of(slot) else None


class TimerRunner:
    """Sends the messages of one timer, under a lease: one worker of a fleet at a time.

    Args:
        schedule: when.
        send: adds the message of a slot, given its id, to the queue.
        leases: where lease and place are kept.
        ahead: what this process has seen of slots that lie ahead.
        missed: ``run-all`` to send also those slots that nobody was there for, and not only the newest of them.
    """

    def __init__(
        self,
        timer: Timer,
        schedule: Schedule,
        send: Callable[[str, datetime], object],
        leases: StateStore,
        clock: Clock,
        ahead: MomentsAhead,
        missed: Missed = "newest",
    ) -> None:
        self._timer = timer
        self._schedule = schedule
        self._send = send
        self._leases = leases
        self._clock = clock
        self._sends_all = missed == "run-all"
        self._ahead = ahead

    @property
    def title(self) -> str:
        """Return what people call it."""
        return f"Timer of engine '{self._timer.name}'"

    @contextmanager
    def leased(self) -> Iterator[HeldLease]:
        """Hold the timer's lease.

        Raises:
            LeaseConflictError: another worker holds it.
        """
        with logged_step(self.title):
            lease = self._leases.acquire(self._timer.lease, ttl_seconds=_LEASE_SECONDS)
        try:
            with keeping(lease, self._clock):
                yield lease
        finally:
            lease.release(wait_seconds=1.0)

    def process_batch(self, lease: HeldLease) -> TimerOutcome:
        """Send the message of the next slot that is due, if there is one. The first call only begins."""
        with logged_step(self.title):
            return self._send_next(lease)

    def _send_next(self, lease: HeldLease) -> TimerOutcome:
        now = lease.now()
        stored = lease.checkpoint.get(_LAST_SLOT)
        if not isinstance(stored, str):
            lease.commit({_LAST_SLOT: utc_text(now)})
            return TimerOutcome(0)
        last = datetime.fromisoformat(stored)
        slot = self._due(last, now)
        if self._is_taken_back(lease, last, now) or slot is None:
            return TimerOutcome(0)
        self._send(self._timer.id_of(slot), slot)
        lease.commit({_LAST_SLOT: utc_text(slot), _IS_SENT: True})
        return TimerOutcome(1, caught_up=not self._sends_all)

    def _is_taken_back(self, lease: HeldLease, last: datetime, now: datetime) -> bool:
        """Go back to the newest sound slot, else to now, when the last was taken by a clock that was wrong."""
        is_wrong = self._ahead.is_wrong(self.title, last, now, what="its last slot", remedy="the slot is taken back")
        if is_wrong:
            lease.commit({_LAST_SLOT: utc_text(self._ahead.newest_sound(self.title, now))})
        return is_wrong

    def _due(self, last: datetime, now: datetime) -> datetime | None:
        if not self._sends_all:
            return self._schedule.latest_slot(last, now)
        slot = self._schedule.next_after(last)
        return slot if slot <= now else None


class MissedSlots:
    """Tells which messages of timers are not executed any more. The place of the timer says which slot was sent last.

    Args:
        leases: where the places of the application's timers are kept.
        app_name: whose they are.
        has_succeeded: returns whether the history knows a success of a message's operation and correlation id.
    """

    def __init__(self, leases: StateStore, app_name: str, has_succeeded: Callable[[EngineMessage], bool]) -> None:
        self._leases = leases
        self._app_name = app_name
        self._has_succeeded = has_succeeded

    def why_missed(self, message: EngineMessage, missed: Missed, *, is_tried: bool) -> str | None:
        """Return why a message is not to be executed; None when it is, or is none of a timer.

        One that was tried before keeps its tries, so that what always fails becomes a dead letter, unless a newer slot
        has succeeded.
        """
        timer = Timer(self._app_name, message.engine, message.operation, message.instance_id)
        slot = None if missed == "run-all" else timer.slot_of(message.message_id)
        view = None if slot is None else self._leases.read(timer.lease)
        if slot is None or view is None:
            return None
        newest = _last_sent(view.checkpoint, view.read_at) or slot
        later = replace(message, correlation_id=timer.id_of(newest))
        if newest > slot and (not is_tried or self._has_succeeded(later)):
            return f"the slot of {newest:%Y-%m-%d %H:%M:%S} UTC was due before it could begin"
        late_seconds = (view.read_at - slot).total_seconds()
        if missed == "skip" and not is_tried and late_seconds > LATEST_SECONDS:
            return f"it could not begin within {LATEST_SECONDS:.0f} s"
        return None


def _last_sent(checkpoint: Mapping[str, object], now: datetime) -> datetime | None:
    """Return the slot whose message was sent last; None when the timer has only begun, or a wrong clock took it."""
    last = checkpoint.get(_LAST_SLOT)
    slot = datetime.fromisoformat(last) if isinstance(last, str) and checkpoint.get(_IS_SENT) else None
    return None if slot is None or lies_ahead(slot, now) else slot
