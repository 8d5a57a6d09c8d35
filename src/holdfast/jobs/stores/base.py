"""What the queue does, in terms of named statements. The dialects differ in how a statement gets its batch.

Every change of a running job carries the claim (id, worker, attempt) and tells which claims were still good: a stale
one changes nothing [FENCE-2]. Times are the database's.
"""

from __future__ import annotations

import abc
import functools
import json
import math
import os
import secrets
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ...core.clock import Clock
from ...core.errors import Ambiguous, JobError, LostLeaseError, Unavailable
from ...core.moments_ahead import TOLERATED_SECONDS
from ...core.names import shortened
from ...core.retry import LONGEST_SECONDS
from ...database.fetching import every_row
from ...database.pools import writing
from ...database.repeating import repeated
from ...records.history import History, NewEntry
from ...records.schema import ID_LENGTH
from ...records.storable_text import legible, plain
from ..fair_order import Candidate, FairOrder, first, in_turn, too_shallow
from ..limits import Room
from ..model import (
    MOST_MISFITS,
    Attempt,
    Claim,
    ClaimedJob,
    Due,
    Enqueued,
    Failure,
    JobId,
    JobStatus,
    JobView,
    NewJob,
    Place,
    PutBack,
    Stopped,
    Success,
    Suspect,
    Topic,
    TopicLimits,
    TopicStats,
    WaitingSuspect,
    Wanted,
    WorkerId,
    failure_of,
    item_id,
)
from ..statements import statement
from ..texts import storable
from .answers import translated
from .protocol import WakeUps
from .readable import CLAIMS, readable_jobs, require_readable

CANCELLED = "!cancelled"  # announced instead of a topic: workers should look whether their jobs are to stop
_COLUMNS_OF_JOB = tuple(field.name for field in fields(NewJob))  # asdict would copy every value, which is slow
_LONGEST_APPLICATION = 100
_TRIES_FOR_A_KEY = 10
_LOCKED_SECONDS = 0.05
_DRAWS_PER_SWEEP = 1000  # so often are rate buckets that are full again removed
ANNOUNCE_SECONDS = 30.0
ALIVE_SECONDS = 100.0  # a worker that was not seen for so long is dead: it has missed three announcements
FORGOTTEN_SECONDS = 86_400.0
_Added = TypeVar("_Added")
_Reported = TypeVar("_Reported", Success, Failure, PutBack, Stopped)
Row = Sequence[Any]
Batch = Mapping[str, Sequence[object]]


class SqlJobStore(abc.ABC):
    """The queue in a SQL database.

    Args:
        engine: where the tables are.
        ahead_seconds: how far ahead of the database's clock the statements take it to be; for tests that step time.
        application: whose limits, periodic jobs and workers are written down through it.
    """

    dialect: ClassVar[str]
    notifies: ClassVar[bool] = False
    transaction_setup: ClassVar[str | None] = None  # said at the start of each transaction of our own
    most_keys_per_claim: ClassVar[int] = 200  # at a time: priorities are compared among that many
    most_pages_per_claim: ClassVar[int] = 20

    def __init__(
        self, engine: Engine, *, ahead_seconds: Callable[[], float] = lambda: 0.0, application: str | None = None
    ) -> None:
        self.engine = engine
        self.listening = engine
        self.application = None if application is None else shortened(application, _LONGEST_APPLICATION)
        self._ahead_seconds = ahead_seconds
        self._fair_orders: defaultdict[str, FairOrder] = defaultdict(FairOrder)
        self._draws: Counter[str] = Counter()
        self._rate_waits: dict[str, float | None] = {}

    # How the dialects differ

    @abc.abstractmethod
    def _change(self, name: str, batch: Batch, **values: object) -> Sequence[Row]:
        """Run a set-based change as one transaction of its own, and return its rows."""

    @abc.abstractmethod
    def _change_on(self, connection: Connection, name: str, batch: Batch, **values: object) -> Sequence[Row]:
        """Run a set-based change inside the caller's transaction, and return its rows."""

    @abc.abstractmethod
    def _insert_many(self, connection: Connection, jobs: Sequence[NewJob]) -> int:
        """Add jobs that have no unique keys, as fast as the database can; return how many."""

    @abc.abstractmethod
    def _claim_unlimited(
        self, worker: WorkerId, wanted: Wanted, capacity: int, mosts: Mapping[str, int]
    ) -> list[ClaimedJob]:
        """Claim from topics that are neither paused nor limited."""

    @abc.abstractmethod
    def _ready_of_keys(
        self, connection: Connection, topic: str, operations: Sequence[str], depths: Mapping[str, int]
    ) -> Sequence[Row]:
        """Return the first ready jobs of each key and operation, as many as are asked for, as rows of ``Candidate``."""

    @abc.abstractmethod
    def _ready_without_key(
        self, connection: Connection, topic: str, operations: Sequence[str], capacity: int
    ) -> Sequence[Row]:
        """Return the first ready jobs of each operation that have no key, as rows of ``Candidate``."""

    @abc.abstractmethod
    def _keys_after(self, connection: Connection, topic: str, operations: Sequence[str], after: str) -> list[str]:
        """Return the next keys, in order, that have ready jobs of the operations."""

    def _announce(self, connection: Connection, topics: Iterable[str]) -> None:  # noqa: B027 - polling needs nothing
        """Wake the workers of these topics when the transaction commits; elsewhere they poll."""

    def wake_ups(
        self, wanted: Wanted, clock: Clock, *, on_jobs: Callable[[], None], on_cancel: Callable[[], None]
    ) -> WakeUps | None:
        """Return what brings the news of these topics, None where the worker must poll."""
        return None

    # Adding

    def enqueue(self, job: NewJob, connection: Connection | None = None) -> Enqueued:
        """Add one job, in the caller's transaction when there is one. A taken unique key adds nothing."""
        if connection is None and job.unique_key is None and job.limit_key is None:
            return repeated(functools.partial(self._enqueue_alone, job))
        return self._adding(connection, lambda open_connection: self._enqueue_on(open_connection, job))

    def _adding(
        self, connection: Connection | None, add: Callable[[Connection], _Added], *, is_repeatable: bool = True
    ) -> _Added:
        """Add in the caller's transaction, or in one of our own, which is begun anew when another was in its way."""
        if connection is not None:
            return add(connection)

        def in_our_own() -> _Added:
            with self._writing(None) as open_connection:
                return add(open_connection)

        return repeated(in_our_own) if is_repeatable else in_our_own()

    def _enqueue_alone(self, job: NewJob) -> Enqueued:
        """Add one job that has no keys, in a transaction of its own."""
        with self._writing(None) as connection:
            return self._enqueue_on(connection, job)

    def _enqueue_on(self, connection: Connection, job: NewJob) -> Enqueued:
        if job.limit_key is not None:
            self._note_keys(connection, job.topic)
        for _ in range(_TRIES_FOR_A_KEY):
            if job.unique_key is not None:
                self._free_key(connection, job.topic, job.unique_key)
            added = self._insert_one(connection, job)
            holder = self._holder(connection, job) if added is None else added
            if holder is not None:  # None: it ended after it had kept us out
                return Enqueued(holder, job.correlation_id or item_id(holder), is_new=added is not None)
        raise Unavailable(f"The unique key {job.unique_key!r} changed hands again and again. Try again.")

    def _note_keys(self, connection: Connection, topic: str) -> None:
        self._run(connection, "note_keys", topic=topic)

    def _free_key(self, connection: Connection, topic: str, unique_key: str) -> None:
        self._run(connection, "free_key", topic=topic, unique_key=unique_key)

    def _insert_one(self, connection: Connection, job: NewJob) -> JobId | None:
        rows = self._run(connection, "enqueue", **self._columns(job))
        return JobId(rows[0][0]) if rows else None

    def _holder(self, connection: Connection, job: NewJob) -> JobId | None:
        holder = self._run(connection, "holder", topic=job.topic, unique_key=job.unique_key)
        return JobId(holder[0][0]) if holder else None

    def enqueue_many(self, jobs: Sequence[NewJob], connection: Connection | None = None) -> int:
        """Add many jobs in one transaction; return how many were new."""
        return self._adding(connection, lambda open_connection: self._enqueue_many_on(open_connection, jobs))

    def _enqueue_many_on(self, connection: Connection, jobs: Sequence[NewJob]) -> int:
        plain = [job for job in jobs if job.unique_key is None]
        unique = [job for job in jobs if job.unique_key is not None]
        for topic in sorted({job.topic for job in plain if job.limit_key is not None}):
            self._note_keys(connection, topic)
        added = self._insert_many(connection, plain) if plain else 0
        added += sum(self._enqueue_on(connection, job).is_new for job in unique)
        self._announce(connection, sorted({job.topic for job in plain}))
        return added

    def enqueue_batch(self, template: NewJob, payloads: Iterable[str], connection: Connection | None = None) -> int:
        """Add jobs that differ in their payloads only, as fast as the database can; return how many.

        The template's own payload is not used, and it has no unique key: only one job could hold it. An error from
        ``payloads`` comes through; then nothing is added, and the caller's transaction is of no use any more. What an
        iterator has yielded is gone: with one, nothing is tried again.
        """

        def add(open_connection: Connection) -> int:
            if template.limit_key is not None:
                self._note_keys(open_connection, template.topic)
            added = self._insert_batch(open_connection, template, payloads)
            self._announce(open_connection, [template.topic])
            return added

        return self._adding(connection, add, is_repeatable=not isinstance(payloads, Iterator))

    def _insert_batch(self, connection: Connection, template: NewJob, payloads: Iterable[str]) -> int:
        return self._insert_many(connection, [replace(template, payload=payload) for payload in payloads])

    def _columns(self, job: NewJob) -> dict[str, object]:
        columns = {name: getattr(job, name) for name in _COLUMNS_OF_JOB}
        columns["run_at"] = self._moment(job.run_at)
        return columns

    # Claiming

    def claim(
        self, worker: WorkerId, wanted: Wanted, capacity: int, mosts: Mapping[str, int] | None = None
    ) -> list[ClaimedJob]:
        """Claim up to ``capacity`` jobs of the operations, those of earlier topics first, of each so many at most.

        Within a topic, higher priority first, whatever the operation; then in the order in which they became ready.
        """
        wanted = {topic: operations for topic, operations in wanted.items() if operations}
        if capacity < 1 or not wanted:
            return []
        return self._claim_unlimited(worker, wanted, capacity, mosts or {})

    def ready_operations(self, topic: str) -> list[str]:
        """Return the operations of a topic that have ready jobs: what someone can claim who takes any."""
        found: list[str] = []
        with translated(self.engine), self.engine.connect() as connection:
            while rows := self._run(connection, "next_operation", topic=topic, after=found[-1] if found else ""):
                if rows[0][0] is None:
                    break
                found.append(rows[0][0])
        return found

    def claim_limited(self, worker: WorkerId, topic: str, operations: Sequence[str], capacity: int) -> list[ClaimedJob]:
        """Claim from a limited topic, one worker at a time, so that its limits are exact [LIMIT-1]."""
        with self._writing(None) as connection:
            found = self._run(connection, "lock_topic", topic=topic)
            if not found:
                if self._rate_waits.get(topic) is not None:  # another worker is at it: what comes next may be ours
                    self._rate_waits[topic] = _LOCKED_SECONDS
                return []
            room = self._room(connection, topic, TopicLimits(**_named_limits(found[0])))
            picked = self._pick(connection, topic, operations, room, room.free(capacity))
            if not picked:
                self._rate_waits[topic] = room.opens_in_seconds
                return []
            ids = sorted(candidate.id for candidate in picked)
            rows = self._change_on(connection, "claim_ids", {"ids": ids}, worker=worker)
            jobs = self._claimed_on(connection, worker, rows)
            for job in jobs:
                room.draw(job.limit_key)
            self._save_buckets(connection, topic, room)
        self._rate_waits[topic] = room.opens_in_seconds
        return jobs

    def rate_opens_in(self, topic: str) -> float | None:
        """Return for how long a rate keeps jobs of a limited topic waiting, as the last claim of it found.

        None when no rate does.
        """
        return self._rate_waits.get(topic)

    def _room(self, connection: Connection, topic: str, limits: TopicLimits) -> Room:
        taken = self._run(connection, "places_by_key", topic=topic)
        running, reserved = ({row[0]: row[2] for row in taken if row[1] == kind} for kind in ("running", "suspect"))
        room = Room(limits, running, reserved)
        if limits.rate_count is not None:
            self._read_buckets(connection, topic, room, [""])
        return room

    def _read_buckets(self, connection: Connection, topic: str, room: Room, keys: Sequence[str]) -> None:
        rows = self._change_on(connection, "rate_buckets", {"keys": keys}, topic=topic)
        for row in rows:
            room.add_bucket(*row)
        if any(age_seconds < 0 for _, _, age_seconds in rows):
            self._run(connection, "fill_from_now", topic=topic)

    def _pick(
        self, connection: Connection, topic: str, operations: Sequence[str], room: Room, capacity: int
    ) -> list[Candidate]:
        """Return what to claim: higher priority first, and of equals the jobs with and without keys in turn."""
        if capacity < 1 or not operations:
            return []
        order = self._fair_orders[topic]
        looked_at, ready = self._look_at_keys(connection, topic, operations, room, capacity)
        rows = self._ready_without_key(connection, topic, operations, capacity)
        keyless = first(map(Candidate._make, rows), capacity)
        picked = order.share(in_turn(ready), keyless, capacity)
        order.note(looked_at, ready, picked)
        return picked

    def _look_at_keys(
        self, connection: Connection, topic: str, operations: Sequence[str], room: Room, capacity: int
    ) -> tuple[list[str], dict[str, list[Candidate]]]:
        """Go round the keys, from where the last claim stopped; return those seen, and the ready jobs with room."""
        looked_at: list[str] = []
        ready: dict[str, list[Candidate]] = {}
        for keys in self._pages_of_keys(connection, topic, operations, self._fair_orders[topic].last_key):
            looked_at += keys
            if room.limits.rate_count_per_key is not None:
                self._read_buckets(connection, topic, room, keys)
            rooms = {key: free for key in keys if (free := room.free_of_key(key, capacity)) > 0}
            ready |= self._ready_by_key(connection, topic, operations, rooms, capacity)
            if len(looked_at) >= self.most_keys_per_claim and sum(map(len, ready.values())) >= capacity:
                break
        return looked_at, ready

    def _pages_of_keys(
        self, connection: Connection, topic: str, operations: Sequence[str], after: str
    ) -> Iterator[list[str]]:
        """Yield the keys with ready jobs, each once: those after ``after``, then from the first key on."""
        seen: set[str] = set()
        is_second_lap = not after
        for _ in range(self.most_pages_per_claim):
            page = self._keys_after(connection, topic, operations, after)
            new = [key for key in page if key not in seen]
            seen.update(new)
            if new:
                yield new
            if len(new) == self.most_keys_per_claim:
                after = new[-1]
            elif is_second_lap:
                return
            else:
                after, is_second_lap = "", True

    def _ready_by_key(
        self, connection: Connection, topic: str, operations: Sequence[str], rooms: Mapping[str, int], capacity: int
    ) -> dict[str, list[Candidate]]:
        """Return the next ready jobs of each key, read no further than needed to know the first ``capacity``."""
        ready: dict[str, list[Candidate]] = {key: [] for key in rooms}
        depth = math.ceil(capacity / max(1, len(rooms)))
        hungry = list(rooms)
        while hungry:
            depths = {key: min(depth, rooms[key]) for key in hungry}
            found: defaultdict[str | None, list[Candidate]] = defaultdict(list)
            for candidate in map(Candidate._make, self._ready_of_keys(connection, topic, operations, depths)):
                found[candidate.key].append(candidate)
            ready |= {key: first(found[key], depths[key]) for key in hungry}
            hungry = [key for key in too_shallow(ready, rooms, capacity) if len(ready[key]) >= depth]
            depth *= 4
        return {key: jobs for key, jobs in ready.items() if jobs}

    def _save_buckets(self, connection: Connection, topic: str, room: Room) -> None:
        """Write down the buckets that were drawn from; now and then remove those that are full again."""
        if not room.drawn:
            return
        keys = sorted(room.drawn)
        tokens = [room.buckets[key].tokens for key in keys]
        self._change_on(connection, "save_buckets", {"keys": keys, "tokens": tokens}, topic=topic)
        self._draws[topic] += len(keys)
        if self._draws[topic] >= _DRAWS_PER_SWEEP and room.limits.rate_seconds_per_key is not None:
            self._draws[topic] = 0
            self._run(connection, "drop_full_buckets", topic=topic, seconds=room.limits.rate_seconds_per_key)

    def _claimed_on(self, connection: Connection, worker: WorkerId, rows: Sequence[Row]) -> list[ClaimedJob]:
        """Return claimed rows as jobs, in order; what cannot be read becomes a dead letter in the same transaction."""
        return readable_jobs(rows, self._job, functools.partial(self.fail_on, connection, worker))

    def _job(self, row: Row) -> ClaimedJob:
        return ClaimedJob._make(row)

    def promote(self, limit: int = 1000) -> int:
        """Let scheduled jobs whose time has come be claimed; return how many."""
        return len(self._change("promote", {}, limit=limit))

    def next_due(self) -> Due:
        """Return how long it is until the next scheduled job or suspect is due, and whether suspects wait."""
        [(seconds, has_suspects)] = self._read("next_due")
        return Due(seconds, bool(has_suspects))

    def suspects(self, can_run: Callable[[str, str], bool]) -> list[WaitingSuspect]:
        """Return the suspects to test whose topic and operation ``can_run``, who has waited longest first [SUSPECT-1].

        Of each operation and key the first; none of a paused topic.
        """
        rows = self._read("suspects")
        waiting = (WaitingSuspect(JobId(row[0]), row[1], row[2], row[3], bool(row[4])) for row in rows)
        return [suspect for suspect in waiting if can_run(suspect.topic, suspect.operation)]

    def claim_suspect(self, worker: WorkerId, waiting: WaitingSuspect) -> Suspect | None:
        """Claim a suspect, within the limits of its topic and key; None when another worker was first, or has the turn.

        None also when there is no room: then the next place is kept for it for a moment, from all but suspects, and
        this is to be called again before that is over.
        """
        with self._writing(None) as connection:
            room = None
            if waiting.is_limited:
                room = self._room_for_one(connection, waiting.topic, waiting.limit_key)
                if room is None:
                    self._run(connection, "reserve_place", id=waiting.id)
                    return None
            released = self._change_on(connection, "release_suspect", {"ids": [waiting.id]})
            rows = self._change_on(connection, "claim_ids", {"ids": [waiting.id]}, worker=worker)
            jobs = self._claimed_on(connection, worker, rows)
            if not released or not jobs:
                return None
            if room is not None:
                room.draw(waiting.limit_key)
                self._save_buckets(connection, waiting.topic, room)
        return Suspect(jobs[0], released[0][1])

    def _room_for_one(self, connection: Connection, topic: str, limit_key: str | None) -> Room | None:
        """Return the room of a limited topic if one more suspect of the key may start; it is locked then."""
        found = self._run(connection, "lock_topic", topic=topic)
        if not found:
            return None
        room = self._room(connection, topic, TopicLimits(**_named_limits(found[0])))
        room.reserved = {}  # for suspects, such as this one
        if limit_key is not None and room.limits.rate_count_per_key is not None:
            self._read_buckets(connection, topic, room, [limit_key])
        has_room = room.free(1) > 0 and (limit_key is None or room.free_of_key(limit_key, 1) > 0)
        return room if has_room else None

    def begin(self, worker: WorkerId, claim: Claim) -> bool:
        """Record that an attempt begins: from now on the loss of its worker is charged to it [SUSPECT-1] [ONCE-1].

        False means that the claim is stale, and nothing may begin.
        """
        return bool(self._change("record_begin", _claims([claim]), worker=worker, sign=1))

    def may_have_begun(self, worker: WorkerId, claims: Sequence[Claim]) -> None:
        """Record that attempts are given to someone who does not say when they begin [ONCE-1]."""
        self._change("record_begin", _claims(sorted(claims)), worker=worker, sign=0)

    def clear(self, worker: WorkerId, claim: Claim) -> bool:
        """Record that an attempt is not to be charged any more if its worker is lost; False when the claim is stale."""
        return bool(self._change("record_begin", _claims([claim]), worker=worker, sign=-1))

    # Holding

    def heartbeat(self, worker: WorkerId, claims: Sequence[Claim]) -> dict[Claim, str | None]:
        """Extend leases. Claims missing from the answer are lost; a value is why that job is to be cancelled."""
        rows = self._change("heartbeat", _claims(sorted(claims)), worker=worker)
        return {Claim(JobId(row[0]), Attempt(row[1])): row[2] for row in rows}

    def progress(self, worker: WorkerId, claim: Claim, progress: str | None) -> bool:
        """Extend one lease and say how far the work is; return whether it is still ours."""
        text = None if progress is None else legible(progress)
        return bool(self._change("progress", {**_claims([claim]), "progress": [text]}, worker=worker))

    # Reporting

    def complete(self, worker: WorkerId, reports: Sequence[Success]) -> set[Claim]:
        """End jobs that succeeded; return the claims that were still good."""
        accepted: set[Claim] = set()
        for name, keeps_key in (("complete", False), ("complete_kept", True)):
            batch = _by_id(report for report in reports if report.keeps_key is keeps_key)
            if batch:
                accepted |= self._completed(name, worker, batch)
        return accepted

    def _completed(self, name: str, worker: WorkerId, reports: Sequence[Success]) -> set[Claim]:
        return accepted_claims(self._change(name, successes(reports), worker=worker))

    def hold_on(self, connection: Connection, worker: WorkerId, claim: Claim) -> str | None:
        """Look inside the handler's transaction whether an attempt is still ours, and hold it where that can be.

        On PostgreSQL nobody can take the job until the transaction, whose id is returned, ends.

        Raises:
            LostLeaseError: it is not.
        """
        found = self._run(connection, "hold", id=claim.id, attempt=claim.attempt, worker=worker)
        if not found:
            raise LostLeaseError(f"Job {claim.id} is no longer this worker's: its lease was lost.")
        return None if found[0][0] is None else str(found[0][0])

    def complete_on(self, connection: Connection, worker: WorkerId, report: Success) -> bool:
        """End one job inside the handler's transaction; False means that the transaction must be rolled back."""
        name = "complete_kept" if report.keeps_key else "complete"
        return bool(self._change_on(connection, name, successes([report]), worker=worker))

    def drop_on(self, connection: Connection, worker: WorkerId, claims: Sequence[Claim]) -> set[Claim]:
        """Remove jobs inside a transaction that records their end; return the claims that were still good."""
        return accepted_claims(self._change_on(connection, "drop", _claims(sorted(claims)), worker=worker))

    def drop_recorded_on(
        self, connection: Connection, worker: WorkerId, ends: Mapping[Claim, NewEntry | None]
    ) -> set[Claim]:
        """Remove jobs and add what the history is to tell of them.

        Only of claims that were still good, which are returned, something is added.
        """
        ours = self.drop_on(connection, worker, list(ends))
        entries = [entry for claim, entry in ends.items() if claim in ours and entry is not None]
        History(self.engine).add_many(connection, entries)
        return ours

    def keep_on(self, connection: Connection, worker: WorkerId, claim: Claim) -> bool:
        """Extend one lease inside a transaction, which holds the job then; False means that it must be rolled back."""
        return bool(self._change_on(connection, "heartbeat", _claims([claim]), worker=worker))

    def fail(self, worker: WorkerId, reports: Sequence[Failure]) -> dict[Claim, JobStatus]:
        """End attempts that failed: retry, or dead letter. Return what became of the claims that were still good."""
        return _decided(self._change("fail", _failures(reports), worker=worker))

    def fail_on(self, connection: Connection, worker: WorkerId, reports: Sequence[Failure]) -> dict[Claim, JobStatus]:
        """Do as ``fail`` inside a transaction that records more."""
        return _decided(self._change_on(connection, "fail", _failures(reports), worker=worker))

    def put_back(self, worker: WorkerId, reports: Sequence[PutBack]) -> dict[Claim, JobStatus | None]:
        """Give jobs back without counting a failure; return the claims that were still good.

        Those that were cancelled meanwhile end. What may run once and has begun fails instead [ONCE-1], with the status
        that is returned; only a pause, which its handler asked for, lets it begin again. So does what has waited too
        often for a worker of another version.
        """
        reports = _by_id(reports)
        unbegun = [report.claim for report in reports if report.is_unbegun]
        if unbegun:
            self._change("record_begin", _claims(unbegun), worker=worker, sign=-1)
        batch: Batch = {
            **_claims([report.claim for report in reports]),
            "seconds": [_bounded(report.seconds) for report in reports],
            "reasons": [None if report.reason is None else legible(report.reason) for report in reports],
            "misfits": [int(report.is_misfit) for report in reports],
            "undone": [int(report.is_undone) for report in reports],
        }
        accepted = accepted_claims(self._change("put_back", batch, worker=worker, most_misfits=MOST_MISFITS))
        refused = [report for report in reports if report.claim not in accepted]
        accepted |= self.end_cancelled(worker, [Stopped(report.claim, 0) for report in refused])
        over = [failure_of(report) for report in refused if report.claim not in accepted]
        return {**dict.fromkeys(accepted), **(self.fail(worker, over) if over else {})}

    def end_cancelled(self, worker: WorkerId, reports: Sequence[Stopped]) -> set[Claim]:
        """End running jobs that were asked to stop and did; return the claims that were still good."""
        if not reports:
            return set()
        reports = _by_id(reports)
        batch: Batch = {
            **_claims([report.claim for report in reports]),
            "durations": [item.duration_ms for item in reports],
        }
        return accepted_claims(self._change("end_cancelled", batch, worker=worker))

    def has_landed(self, job: ClaimedJob) -> bool:
        """Return whether the history holds the success of this attempt: for a COMMIT that was not answered."""
        return self.has_recorded(job.claim, job.correlation_id)

    def has_recorded(self, claim: Claim, correlation_id: str) -> bool:
        """Return whether the history holds the success of a claim."""
        rows = self._read("outcome", correlation_id=correlation_id, item_id=item_id(claim.id), attempt=claim.attempt)
        return any(row[0] == "Succeeded" for row in rows)

    # Remote workers

    def receipt_key(self) -> bytes:
        """Return the key that the servers of this database sign receipts with; the first who asks chooses it."""
        self._write("choose_receipt_key", secret=secrets.token_hex(32))
        [(secret,)] = self._read("receipt_key")
        return bytes.fromhex(secret)

    def server_seen(self, name: WorkerId) -> None:
        """Note that a server of remote workers is alive: what ran out after that is not the fault of its death."""
        self._write("server_seen", name=name)

    def remote_worker(self, owner: WorkerId, server: WorkerId) -> None:
        """Note which server a remote worker is connected to."""
        self._write("remote_worker", owner=owner, server=server)

    def forget_servers(self) -> None:
        """Forget servers that are long gone, and who was connected to them."""
        with self._writing(None) as connection:
            self._run(connection, "forget_servers")
            self._run(connection, "forget_remote_workers")

    def held_by(self, worker: WorkerId) -> int:
        """Return how many jobs a worker holds."""
        return int(self._read("held_by", worker=worker)[0][0])

    # Watching over

    def give_back_waiting(self) -> None:  # noqa: B027 - a store that claims has nothing that waits
        """Do nothing: nothing is claimed that is not taken."""

    def reap(self, limit: int = 1000) -> dict[Claim, JobStatus]:
        """Take back what lost workers held, and return what becomes of it [REAP-1].

        Attempts that are known to have begun end as if their worker had reported a failure; the others are nobody's
        fault, and come back marked as suspects [SUSPECT-1].
        """
        return _decided([*self._change("reap", {}, limit=limit), *self._change("mark_suspects", {}, limit=limit)])

    def furthest_ahead(self) -> tuple[datetime | None, datetime]:
        """Return the furthest moment that was written by a clock which was ahead, None when there is none; and now."""
        [(furthest, now)] = self._read("furthest_ahead", tolerated=TOLERATED_SECONDS)
        return None if furthest is None else as_moment(furthest), as_moment(now)

    def take_moments_back(self) -> None:
        """Let what the queue wrote by a clock that was ahead count from now, in one transaction."""
        with self._writing(None) as connection:
            for name in ("end_leases_soon", "ready_from_now", "put_off_from_now", "ended_now"):
                self._run(connection, name, tolerated=TOLERATED_SECONDS)

    def prune(self, older_than_seconds: float, limit: int = 1000) -> int:
        """Forget jobs that ended long ago; return how many.

        Dead ones stay as long as their dead letter is open, done ones as long as they hold their unique key.
        """
        return len(self._change("prune", {}, seconds=older_than_seconds, limit=limit))

    # By hand

    def cancel(self, ids: Sequence[JobId], reason: str, connection: Connection | None = None) -> dict[JobId, JobStatus]:
        """Cancel waiting jobs, ask running ones to stop; return what was changed and its status now."""
        with self._writing(connection) as open_connection:
            rows = self._change_on(open_connection, "cancel", {"ids": sorted(ids)}, reason=storable(reason))
            changed = {JobId(row[0]): JobStatus(row[1]) for row in rows}
            if JobStatus.RUNNING in changed.values():
                self._announce(open_connection, [CANCELLED])
        return changed

    def retry(self, ids: Sequence[JobId], actor: str, connection: Connection | None = None) -> set[JobId]:
        """Let dead, cancelled or waiting jobs run now, and resolve their dead letters, in one transaction."""
        with self._writing(connection) as open_connection:
            rows = self._change_on(open_connection, "retry", {"ids": sorted(ids)})
            if rows:
                items = [item_id(row[0]) for row in rows]
                self._change_on(open_connection, "resolve_retried", {"items": items}, actor=storable(actor)[:ID_LENGTH])
                self._announce(open_connection, sorted({row[1] for row in rows}))
        return {JobId(row[0]) for row in rows}

    def pause(self, topic: str, is_paused: bool, connection: Connection | None = None) -> None:
        """Pause or resume a topic: nothing of a paused one is claimed."""
        with self._writing(connection) as open_connection:
            self._run(open_connection, "pause_topic", topic=topic, is_paused=is_paused)
            self._announce(open_connection, [topic])

    def set_limits(self, topic: str, limits: TopicLimits) -> None:
        """Declare a topic's limits, as those of this application."""
        owner = self.application if limits.is_limited else None
        values = {"topic": topic, "is_limited": limits.is_limited, "limited_by": owner, **asdict(limits)}
        repeated(functools.partial(self._write, "set_topic", **values))

    def topics(self) -> list[Topic]:
        """Return every topic that was declared, limited or paused."""
        return [
            Topic(row[0], bool(row[1]), TopicLimits(**_named_limits(row[3:-1])), row[-1])
            for row in self._read("topics")
        ]

    def limited_topics(self) -> list[str]:
        """Return the topics that must be claimed under their lock."""
        return [row[0] for row in self._read("topics") if row[2] and not row[1]]

    def stats(self) -> list[TopicStats]:
        """Return how many jobs of each topic are in each status, and how many nobody can run."""
        found: dict[str, TopicStats] = {}
        can_run = self._what_workers_run()
        for topic, operation, status, jobs, oldest, misfits in self._read("stats"):
            stats = found.setdefault(topic, TopicStats(topic))
            stats.jobs[JobStatus(status)] = stats.jobs.get(JobStatus(status), 0) + jobs
            without_worker = int(misfits)
            if status == JobStatus.READY:
                before = stats.oldest_ready_seconds
                longest = max((seconds for seconds in (before, oldest) if seconds is not None), default=None)
                found[topic] = stats = replace(stats, oldest_ready_seconds=longest)
                without_worker = without_worker if can_run(topic, operation) else jobs
            if without_worker:
                stats.without_worker[operation] = stats.without_worker.get(operation, 0) + without_worker
        return list(found.values())

    # Workers

    def announce(self, worker: WorkerId, operations: Mapping[str, Sequence[str] | None]) -> None:
        """Write down that a worker is there and what it can run; None stands for any operation of a topic.

        To be repeated every ``ANNOUNCE_SECONDS``: a worker that died is forgotten after a while.
        """
        said = json.dumps(operations, ensure_ascii=False)
        with self._writing(None) as connection:
            self._run(connection, "forget_workers", seconds=FORGOTTEN_SECONDS)
            self._run(
                connection,
                "announce",
                worker=worker,
                host=socket.gethostname(),
                pid=os.getpid(),
                operations=said,
                application=self.application,
            )

    def live_applications(self) -> set[str]:
        """Return the applications that have workers which were seen lately."""
        return {row[0] for row in self._read("applications", seconds=ALIVE_SECONDS)}

    def withdraw(self, worker: WorkerId) -> None:
        """Forget a worker that stops."""
        self._write("withdraw", worker=worker)

    def _what_workers_run(self) -> Callable[[str, str], bool]:
        """Return what returns whether a live worker can run an operation of a topic."""
        workers = [json.loads(row[0]) for row in self._read("workers", seconds=ALIVE_SECONDS)]

        def can_run(topic: str, operation: str) -> bool:
            known = [worker[topic] for worker in workers if topic in worker]
            return any(names is None or operation in names for names in known)

        return can_run

    def can_run(self, topic: str, operation: str) -> bool:
        """Return whether a worker that was seen lately can run an operation of a topic."""
        return self._what_workers_run()(topic, operation)

    def get(self, job_id: JobId) -> JobView | None:
        """Return a job that is still in the queue.

        Raises:
            JobError: its row cannot be read.
        """
        with translated(self.engine), self.engine.connect() as connection:
            execute = functools.partial(connection.exec_driver_sql, *self._prepared("get", {"id": job_id}))
            result = execute()
            names, rows = list(result.keys()), every_row(result, again=execute)
        if not rows:
            return None
        require_readable(job_id, names, rows[0])
        columns = self._viewed(dict(zip(names, rows[0], strict=True)))
        return JobView(id=job_id, status=JobStatus(columns["status"]), columns=columns)

    def _viewed(self, columns: Mapping[Any, Any]) -> dict[str, Any]:
        return dict(columns)

    def take_slot(self, connection: Connection, name: str, slot: datetime) -> bool:
        """Return whether the periodic run at ``slot`` is ours to enqueue, in this transaction [PERIODIC-1]."""
        return bool(self._run(connection, "take_slot", name=name, slot=self._moment(slot)))

    def start_periodic(self, connection: Connection, name: str, since: datetime) -> None:
        """Note that a periodic job is this application's, and that its slots count from ``since``.

        What is noted already stays: the slot, and whose it is.
        """
        self._run(connection, "start_periodic", name=name, slot=self._moment(since), application=self.application)

    def places(self) -> dict[str, Place]:
        """Return the newest slot that was taken of each periodic job, or when it was first seen, and whose it is."""
        return {row[0]: Place(as_moment(row[1]), row[2]) for row in self._read("last_slots")}

    def take_slot_back(self, connection: Connection, name: str, ahead: datetime, slot: datetime, job: NewJob) -> None:
        """Move a periodic job back from a slot that lies ahead, and let the job that waits for that slot run now."""
        taken = self._moment(ahead)
        self._run(connection, "take_slot_back", name=name, ahead=taken, slot=self._moment(slot))
        self._run(connection, "run_slot_now", ahead=taken, topic=job.topic, operation=job.operation)

    def now(self, connection: Connection | None = None) -> datetime:
        """Return the database's time, aware."""
        rows = self._read("time") if connection is None else self._run(connection, "time")
        return as_moment(rows[0][0])

    def transaction(self) -> AbstractContextManager[Connection]:
        """Return a writing transaction of its own, for changes that must come together."""
        return self._writing(None)

    # Plumbing

    def _writing(self, connection: Connection | None) -> AbstractContextManager[Connection]:
        if connection is not None:
            return nullcontext(connection)
        return _OwnTransaction(self.engine, self.transaction_setup)

    def _run(self, connection: Connection, name: str, /, **values: object) -> Sequence[Row]:
        with translated(self.engine):
            result = connection.exec_driver_sql(*self._prepared(name, values))
            if not result.returns_rows:
                return []
            return every_row(result) if name in CLAIMS else result.all()

    def _write(self, name: str, /, **values: object) -> None:
        with self._writing(None) as connection:
            self._run(connection, name, **values)

    def _read(self, name: str, /, **values: object) -> Sequence[Row]:
        with translated(self.engine), self.engine.connect() as connection:
            return list(connection.exec_driver_sql(*self._prepared(name, values)).fetchall())

    def _prepared(self, name: str, values: Mapping[str, object]) -> tuple[str, dict[str, object]]:
        return statement(self.dialect, name), {**values, "ahead_seconds": self._ahead_seconds()}

    def _moment(self, moment: datetime | None) -> object:
        """Return a time as the driver wants it."""
        return None if moment is None else in_utc(moment)


class _OwnTransaction(AbstractContextManager[Connection]):
    """A writing transaction of our own, its errors in our words."""

    def __init__(self, engine: Engine, setup: str | None) -> None:
        self._engine = engine
        self._setup = setup

    def __enter__(self) -> Connection:
        try:
            with translated(self._engine):
                self._begin()
        except Ambiguous as error:
            raise _never_committed(error) from error
        return self._connection

    def _begin(self) -> None:
        self._connection = writing(self._engine)
        try:
            self._transaction = self._connection.begin()
            if self._setup is not None:
                self._connection.exec_driver_sql(self._setup)
        except BaseException:
            self._connection.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        with translated(self._engine, is_commit=kind is None), self._connection:
            if kind is None:
                self._transaction.commit()
                return
            is_broken = self._connection.invalidated
            with suppress(DBAPIError):  # what went wrong before is what counts; an unanswered session is undone
                self._transaction.rollback()
        if isinstance(error, Ambiguous) and is_broken:
            raise _never_committed(error) from error


def _never_committed(error: Ambiguous) -> Unavailable:
    """Return what a connection means that broke before the COMMIT was sent."""
    return Unavailable(f"{error}. Nothing was changed; try again.")


def in_utc(moment: datetime) -> datetime:
    """Return a moment in UTC.

    Raises:
        JobError: it has no time zone.
    """
    if moment.tzinfo is None:
        raise JobError(f"The time {moment.isoformat()} has no time zone. Pass an aware datetime.")
    return moment.astimezone(UTC)


def as_moment(value: Any) -> datetime:
    """Return a time that a driver gave as text, or without its time zone, which is UTC."""
    moment: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _failures(reports: Sequence[Failure]) -> Batch:
    reports = _by_id(reports)
    return {
        **_claims([report.claim for report in reports]),
        "errors": [legible(report.error) for report in reports],
        "retry_seconds": [_bounded(report.retry_seconds) for report in reports],
        "finals": [report.is_final for report in reports],
        "durations": [report.duration_ms for report in reports],
    }


def _by_id(reports: Iterable[_Reported]) -> list[_Reported]:
    """Return reports in the order of ids: all who change many jobs lock them in that order, so none waits in a ring."""
    return sorted(reports, key=attrgetter("claim"))


def _claims(claims: Sequence[Claim]) -> dict[str, Sequence[object]]:
    return {"ids": [claim.id for claim in claims], "attempts": [claim.attempt for claim in claims]}


def _bounded(seconds: float | None) -> float | None:
    """Return a handler's wish as a pause that ends before the calendars of databases do."""
    return None if seconds is None else min(seconds, LONGEST_SECONDS)


def successes(reports: Sequence[Success]) -> Batch:
    """Return reports as the columns of a batch."""
    return {
        **_claims([report.claim for report in reports]),
        "durations": [report.duration_ms for report in reports],
        "outputs": [None if report.output is None else plain(report.output) for report in reports],
    }


def accepted_claims(rows: Iterable[Row]) -> set[Claim]:
    """Return the claims that a change answered with: they were still good."""
    return {Claim(JobId(row[0]), Attempt(row[1])) for row in rows}


def _decided(rows: Iterable[Row]) -> dict[Claim, JobStatus]:
    return {Claim(JobId(row[0]), Attempt(row[1])): JobStatus(row[2]) for row in rows}


def _named_limits(row: Row) -> dict[str, Any]:
    names = ("max_running", "max_running_per_key", "rate_count", "rate_seconds")
    return dict(zip((*names, "rate_count_per_key", "rate_seconds_per_key"), row, strict=True))
