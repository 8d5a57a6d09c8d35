"""Periodic jobs: a cron expression in a time zone, and one job per slot across a whole fleet.

A slot is a moment the expression names. Who takes a slot enqueues its job in the same transaction, so that a slot is
enqueued once whoever tries, and a crash in between gives it back [PERIODIC-1].

- A periodic job that nobody has seen before starts from now: its first run is the first slot after that. When it was
  first seen is stored, so that a fleet that is down at that first slot runs it on its return.
- Slots missed while no worker was there collapse into one run, for the newest of them. A periodic job keeps its place
  by its name: after a change of its expression, and after a long absence, what was missed under that name runs once. A
  new name starts afresh.
- The time is the database's, so that workers whose clocks differ agree on what is due. A slot that lies far ahead of
  it was taken by a clock that was wrong; it is taken back, and what was due meanwhile runs.
- Names belong to an application: another one that has a periodic job of the same name has slots of its own. Where
  workers of a release that knew no applications have been, the first application that declares the name goes on there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from ..core.clock import Clock, SystemClock
from ..core.errors import ConfigurationError, Unavailable
from ..core.moments_ahead import MomentsAhead
from ..core.names import shortened
from ..core.schedule import Schedule
from .definition import BoundJob, JobDefinition
from .model import NewJob, Place
from .settings import checked_topic
from .stores.base import SqlJobStore

_LONGEST_WAIT_SECONDS = 60.0
_LONGEST_PLACE = 200
_TRIES_FOR_A_PLACE = 3


@dataclass(frozen=True)
class Periodic:
    """A job and when it is to run. Its ``run_at`` is the slot it stands for.

    Args:
        name: what its place is remembered by; one of a kind in the application.
        cron: the expression.
        timezone: the zone its hours and days are of.
        job: what to enqueue; with ``options``, when it needs some. A unique key there skips slots while a run goes on.
        arguments: the handler's, the same each time.

    Raises:
        ConfigurationError: the expression, the zone, the name or an option cannot be used.
        PayloadError: the arguments do not fit the handler.
    """

    name: str
    cron: str
    timezone: str
    job: JobDefinition | BoundJob
    arguments: Mapping[str, object] = field(default_factory=dict)
    _schedule: Schedule = field(init=False, repr=False)
    _new_job: NewJob = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checked_topic("The name of a periodic job", self.name)
        schedule = Schedule(f"periodic job '{self.name}'", self.cron, self.timezone)
        object.__setattr__(self, "_schedule", schedule)
        object.__setattr__(self, "_new_job", self._checked_job())

    def next_after(self, moment: datetime) -> datetime:
        """Return the first slot later than ``moment``, in UTC."""
        return self._schedule.next_after(moment)

    def latest_slot(self, after: datetime, now: datetime) -> datetime | None:
        """Return the newest slot later than ``after`` that is not later than ``now``, None when there is none."""
        return self._schedule.latest_slot(after, now)

    def job_at(self, slot: datetime) -> NewJob:
        """Return the job that stands for a slot."""
        return replace(self._new_job, run_at=slot)

    def _checked_job(self) -> NewJob:
        bound = self.job if isinstance(self.job, BoundJob) else BoundJob(self.job)
        if bound.run_at is not None or bound.delay_seconds is not None:
            raise ConfigurationError(
                f"Periodic job '{self.name}' runs at its slots. Leave out run_at and delay_seconds."
            )
        return replace(bound.new_job(self.arguments), correlation_id=bound.columns.get("correlation_id"))


class PeriodicEnqueuer:
    """Enqueues what is due. Every worker of a fleet may have one.

    Args:
        store: the queue.
        periodics: what to watch.
        clock: tells how long ago the database was asked; the time itself is the database's.

    Raises:
        ConfigurationError: two of them have the same name.
    """

    def __init__(self, store: SqlJobStore, periodics: Sequence[Periodic], clock: Clock | None = None) -> None:
        self._store = store
        self._periodics = {periodic.name: periodic for periodic in periodics}
        self._clock = clock or SystemClock()
        self._rows: dict[str, str] = {}
        self._last_slots: dict[str, datetime] = {}
        self._ahead = MomentsAhead(self._clock)
        self._ask_at = self._clock.monotonic()
        if len(self._periodics) < len(periodics):
            names = [periodic.name for periodic in periodics]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"Two periodic jobs are called '{twice}'. Give each a name of its own.")

    def tick(self) -> float | None:
        """Enqueue what is due; return in how many seconds to call again, None when there is nothing to watch.

        That is when the next slot comes, or a minute, whichever is sooner. A call before then does not ask the
        database. Database errors come through; nothing is lost by them, and the next call tries again.
        """
        if not self._periodics:
            return None
        asked_at = self._clock.monotonic()
        if asked_at < self._ask_at:
            return self._ask_at - asked_at
        now = self._store.now()
        if not self._rows:
            self._begin(now)
        for periodic in self._periodics.values():
            self._look_back(periodic, now)
            self._enqueue_due(periodic, now)
        next_slot = min(periodic.next_after(now) for periodic in self._periodics.values())
        seconds = min((next_slot - now).total_seconds(), _LONGEST_WAIT_SECONDS)
        self._ask_at = asked_at + seconds
        return seconds

    def _begin(self, now: datetime) -> None:
        """Find the place of each, after noting those that nobody has seen before.

        Another application may be faster to take a name, so it is looked again.
        """
        for _ in range(_TRIES_FOR_A_PLACE):
            places, owner = self._store.places(), self._store.application
            rows = {name: row_of(name, owner, places) for name in self._periodics}
            unseen = {row for row in rows.values() if row not in places or _is_nobodys(places[row], owner)}
            if not unseen:
                self._last_slots = {name: places[row].last_slot for name, row in rows.items()}
                self._rows = rows
                return
            with self._store.transaction() as connection:
                for row in sorted(unseen):
                    self._store.start_periodic(connection, row, now)
        raise Unavailable("The places of periodic jobs changed hands again and again. It is tried again.")

    def _enqueue_due(self, periodic: Periodic, now: datetime) -> None:
        slot = periodic.latest_slot(self._last_slots[periodic.name], now)
        if slot is None:
            return
        row = self._rows[periodic.name]
        with self._store.transaction() as connection:
            is_ours = self._store.take_slot(connection, row, slot)  # [PERIODIC-1]
            if is_ours:
                self._store.enqueue(periodic.job_at(slot), connection)
        self._last_slots[periodic.name] = slot if is_ours else self._store.places()[row].last_slot

    def _look_back(self, periodic: Periodic, now: datetime) -> None:
        """Take back a slot that a clock took which was wrong. What was due meanwhile is due again, as one run."""
        name, last = periodic.name, self._last_slots[periodic.name]
        title = f"periodic job '{name}'"
        if not self._ahead.is_wrong(title, last, now, what="its last slot", remedy="the slot is taken back"):
            return
        back = self._ahead.newest_sound(title, now)
        with self._store.transaction() as connection:
            self._store.take_slot_back(connection, self._rows[name], last, back, periodic.job_at(last))
        self._last_slots[name] = self._store.places()[self._rows[name]].last_slot


def _is_nobodys(place: Place, application: str | None) -> bool:
    """Return whether a place is there to be taken by an application."""
    return application is not None and place.application is None


def row_of(name: str, application: str | None, places: Mapping[str, Place]) -> str:
    """Return under what name the place of an application's periodic job is kept.

    That is its own name, for whoever is first to have it, also where a release was that knew no applications.
    """
    plain = places.get(name)
    if application is None or plain is None or plain.application in (None, application):
        return name
    return shortened(f"!{application}!{name}", _LONGEST_PLACE)  # no name of a periodic job begins so
