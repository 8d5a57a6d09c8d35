"""The queue where a change takes more than one statement: one short transaction of set-based ones.

A batch travels as one JSON parameter. The first statement of a change finds, and where rows can be locked locks, the
claims that are still good, and says what becomes of them; those that follow get only these. All of it is one
transaction, so a crash or a deadlock in between leaves nothing, and the change may be repeated.
"""

from __future__ import annotations

import abc
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy.engine import Connection, CursorResult

from ...core.errors import JobError
from ...database.fetching import every_row
from ..fair_order import Candidate, first
from ..model import ClaimedJob, JobId, NewJob, Wanted, WorkerId
from ..statements import script
from .answers import translated
from .base import Batch, Row, SqlJobStore, as_moment
from .readable import CLAIMS, in_order

_FIELD_OF = {
    "ids": "id",
    "attempts": "attempt",
    "durations": "duration_ms",
    "outputs": "output",
    "errors": "error",
    "retry_seconds": "retry_seconds",
    "finals": "is_final",
    "seconds": "delay_seconds",
    "reasons": "reason",
    "misfits": "is_misfit",
    "undone": "is_undone",
    "progress": "progress",
    "items": "item_id",
    "keys": "limit_key",
    "tokens": "tokens",
}
# From the first statement of a change to those that follow.
_CARRIED_ON = ("id", "attempt", "next_status", "delay_seconds", "error", "duration_ms", "suspicions")
_UNLOCKED = ("free_key", "note_keys")  # their first statement only looks, so another may come between
_MOMENTS = ("run_at", "created_at", "started_at", "lease_until", "first_failed_at", "last_failed_at", "read_at")
_JOBS_PER_INSERT = 1000
_ENTRIES_PER_READ = 25
Entry = Mapping[str, Any]


class PortableJobStore(SqlJobStore):
    """The queue in databases whose statements change one table and return no rows."""

    @abc.abstractmethod
    def _insert_one(self, connection: Connection, job: NewJob) -> JobId | None:
        """Add a job; return its id, None when its key is taken."""

    # Changing

    def _change(self, name: str, batch: Batch, **values: object) -> Sequence[Row]:
        if batch and not any(batch.values()):
            return []
        with self._writing(None) as connection:
            return self._change_on(connection, name, batch, **values)

    def _change_on(self, connection: Connection, name: str, batch: Batch, **values: object) -> Sequence[Row]:
        find, *changes = script(self.dialect, name)
        entries = _entries(batch)
        if batch and not entries:
            return []
        with translated(self.engine):
            found = self._execute(connection, find, entries, values)
            if not found.returns_rows:
                return []
            again = partial(self._execute, connection, find, entries, values)
            rows: Sequence[Any] = every_row(found, again=again) if name in CLAIMS else found.all()
            if rows and changes:
                good = _good(entries, [row._mapping for row in rows])
                for change in changes:
                    done = self._execute(connection, change, good, values)
                    if name not in _UNLOCKED and not change.startswith("INSERT"):
                        _checked(done.rowcount, len(good))
        return rows

    def _execute(
        self, connection: Connection, sql: str, entries: Sequence[Entry], values: Mapping[str, object]
    ) -> CursorResult[Any]:
        given = {"batch": _json([_said(entry) for entry in entries]), **values, "ahead_seconds": self._ahead_seconds()}
        return connection.exec_driver_sql(sql, given)

    # Adding

    def _note_keys(self, connection: Connection, topic: str) -> None:
        self._change_on(connection, "note_keys", {}, topic=topic)

    def _free_key(self, connection: Connection, topic: str, unique_key: str) -> None:
        self._change_on(connection, "free_key", {}, topic=topic, unique_key=unique_key)

    def _insert_many(self, connection: Connection, jobs: Sequence[NewJob]) -> int:
        [sql] = script(self.dialect, "enqueue_many")
        for start in range(0, len(jobs), _JOBS_PER_INSERT):
            rows = [self._bulk_columns(job) for job in jobs[start : start + _JOBS_PER_INSERT]]
            with translated(self.engine):
                connection.exec_driver_sql(sql, rows)
        return len(jobs)

    def _bulk_columns(self, job: NewJob) -> dict[str, object]:
        return {**self._columns(job), "status": "ready" if job.run_at is None else "scheduled"}

    # Claiming

    def _claim_unlimited(
        self, worker: WorkerId, wanted: Wanted, capacity: int, mosts: Mapping[str, int]
    ) -> list[ClaimedJob]:
        pairs = [(topic, operation) for topic, operations in wanted.items() for operation in operations]
        waiting: dict[str, list[str]] = {}
        for topic, operation in self._read("waiting_operations", wanted=_json(pairs)):
            waiting.setdefault(topic, []).append(operation)
        if not waiting:
            return []
        claimed: list[ClaimedJob] = []
        with self._writing(None) as connection:
            for topic, operations in waiting.items():
                free = min(capacity - len(claimed), mosts.get(topic, capacity))
                claimed += self._claim_topic(connection, worker, topic, operations, free)
                if len(claimed) >= capacity:
                    break
        return in_order(claimed)

    def _claim_topic(
        self, connection: Connection, worker: WorkerId, topic: str, operations: Sequence[str], capacity: int
    ) -> list[ClaimedJob]:
        """Claim of each operation what is among the best of all; if others were faster, what there is."""
        shares = {operations[0]: capacity}
        if len(operations) > 1:
            ready = map(Candidate._make, self._ready_without_key(connection, topic, operations, capacity))
            shares = Counter(candidate.operation for candidate in first(ready, capacity))
        claimed: list[ClaimedJob] = []
        for operation, share in shares.items():
            claimed += self._claim_operation(connection, worker, topic, operation, share)
        if len(operations) > 1 and len(claimed) < sum(shares.values()):
            for operation in operations:
                free = capacity - len(claimed)
                claimed += self._claim_operation(connection, worker, topic, operation, free) if free else []
        return claimed

    def _claim_operation(
        self, connection: Connection, worker: WorkerId, topic: str, operation: str, capacity: int
    ) -> list[ClaimedJob]:
        values = {"topic": topic, "operation": operation, "worker": worker, "capacity": capacity}
        return self._claimed_on(connection, worker, self._change_on(connection, "claim", {}, **values))

    def _job(self, row: Row) -> ClaimedJob:
        job = ClaimedJob._make(row)
        return job._replace(
            run_at=None if job.run_at is None else as_moment(job.run_at),
            created_at=as_moment(job.created_at),
            ready_at=as_moment(job.ready_at),
        )

    def _ready_of_keys(
        self, connection: Connection, topic: str, operations: Sequence[str], depths: Mapping[str, int]
    ) -> Sequence[Row]:
        asked: list[Entry] = [
            {"operation": operation, "limit_key": key, "room": room}
            for key, room in depths.items()
            for operation in operations
        ]
        return self._read_each(connection, "ready_of_keys", topic, asked)

    def _ready_without_key(
        self, connection: Connection, topic: str, operations: Sequence[str], capacity: int
    ) -> Sequence[Row]:
        asked: list[Entry] = [{"operation": operation, "room": capacity} for operation in operations]
        return self._read_each(connection, "ready_without_key", topic, asked)

    def _read_each(self, connection: Connection, name: str, topic: str, asked: Sequence[Entry]) -> Sequence[Row]:
        """Return the rows of a statement that is repeated for each entry; a few entries at a time."""
        [of_one] = script(self.dialect, name)
        found: list[Row] = []
        for start in range(0, len(asked), _ENTRIES_PER_READ):
            values: dict[str, object] = {"topic": topic}
            parts = []
            for number, entry in enumerate(asked[start : start + _ENTRIES_PER_READ]):
                parts.append(f"SELECT * FROM ({_numbered(of_one, number)}) AS part_{number}")
                values |= {f"{parameter}_{number}": value for parameter, value in entry.items()}
            with translated(self.engine):
                found += connection.exec_driver_sql(" UNION ALL ".join(parts), values).all()
        return found

    def _keys_after(self, connection: Connection, topic: str, operations: Sequence[str], after: str) -> list[str]:
        """Return the first keys of what each operation has; the databases order them as Python does."""
        keys = {key for operation in operations for key in self._keys_of(connection, topic, operation, after)}
        return sorted(keys)[: self.most_keys_per_claim]

    def _keys_of(self, connection: Connection, topic: str, operation: str, after: str) -> list[str]:
        """Return the next keys, in order, that have ready jobs of one operation."""
        most = self.most_keys_per_claim
        rows = self._run(connection, "ready_keys", topic=topic, operation=operation, after_key=after, most_keys=most)
        return [row[0] for row in rows]

    # Looking

    def _viewed(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        moments = {name: as_moment(columns[name]) for name in _MOMENTS if columns[name] is not None}
        return {**columns, **moments}

    def take_slot(self, connection: Connection, name: str, slot: datetime) -> bool:
        """Return whether the periodic run at ``slot`` is ours to enqueue, in this transaction [PERIODIC-1]."""
        note, move = script(self.dialect, "take_slot")
        values = {"name": name, "slot": self._moment(slot)}
        with translated(self.engine):
            self._execute(connection, note, (), values)
            return self._execute(connection, move, (), values).rowcount == 1


def _entries(batch: Batch) -> list[Entry]:
    """Return a batch of columns as rows in the order of their ids, so that all lock in the same order, each once."""
    names = [_FIELD_OF[column] for column in batch]
    rows: list[Entry] = [dict(zip(names, row, strict=True)) for row in zip(*batch.values(), strict=True)]
    if "id" not in names:
        return rows
    by_claim = {_claim_of(row): row for row in rows}
    return [by_claim[claim] for claim in sorted(by_claim)]


def _good(entries: Sequence[Entry], found: Sequence[Mapping[Any, Any]]) -> list[Entry]:
    """Return what was found, in the order of ids, each with what was reported about it."""
    reports = {_claim_of(entry): entry for entry in entries}
    carried = ({name: row[name] for name in _CARRIED_ON if name in row} for row in found)
    return sorted(({**reports.get(_claim_of(row), {}), **row} for row in carried), key=_claim_of)


def _claim_of(entry: Entry) -> tuple[Any, Any]:
    return entry.get("id", 0), entry.get("attempt", 0)


def _checked(changed: int, expected: int) -> None:
    """See that a change met every row the first statement found: they cannot have changed meanwhile."""
    if changed != expected:
        raise JobError(f"A change of {expected} jobs met {changed}. It was undone; please report this.")


def _json(value: Sequence[object]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _said(entry: Entry) -> Entry:
    """Leave out what is not said: databases differ in what JSON's null becomes in a column."""
    said = ((name, value) for name, value in entry.items() if value is not None)
    return {name: int(value) if isinstance(value, bool) else value for name, value in said}


def _numbered(sql: str, number: int) -> str:
    """Return the statement with parameters of its own, so that it can stand beside others of its kind."""
    return re.sub(r"(?<=[:(])(operation|limit_key|room)\b", rf"\1_{number}", sql)
