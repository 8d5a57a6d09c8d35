"""The queue in PostgreSQL: every change is one statement, bulk comes in by COPY, workers wake by NOTIFY."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import ClassVar

from sqlalchemy.engine import Connection, Engine

from ...core.clock import Clock, SystemClock
from ...database.drivers import driver_of
from ...database.pools import autocommit, rows_of, said
from ...database.psycopg_values import marked_rows_of
from ...records.history import NewEntry, history_row
from ...runtime.lent_connection import LentConnection
from ..listener import CHANNEL, Listener
from ..model import Attempt, Claim, ClaimedJob, Enqueued, JobId, NewJob, Success, Wanted, WorkerId, item_id
from .answers import translated
from .base import Batch, Row, SqlJobStore, accepted_claims, successes
from .readable import CLAIMS, readable_jobs

# The columns of a new job besides its payload, and what the table has for them when they are left out.
_DEFAULTS: dict[str, object] = {
    "topic": ...,
    "operation": ...,
    "status": "ready",
    "priority": 0,
    "limit_key": None,
    "max_attempts": 5,
    "retry_base_seconds": 1.0,
    "retry_max_seconds": 3600.0,
    "lease_seconds": 30.0,
    "run_at": None,
    "correlation_id": None,
    "instance_id": None,
    "tags": None,
}
_HISTORY_COLUMNS = {
    "engines": "engine",
    "instance_ids": "instance_id",
    "operations": "operation",
    "statuses": "status",
    "durations": "duration_ms",
    "inputs": "input",
    "outputs": "output",
    "errors": "error",
    "correlation_ids": "correlation_id",
    "item_ids": "item_id",
    "deliveries": "attempt",
    "applications": "application",
}
_LINES_AT_ONCE = 1000
_GO_ON_SECONDS = 0.2
_WORTH_GOING_ON = 100
_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True, slots=True)
class _End:
    """Where a claim of an operation ended, and when the index was last read from its start."""

    rank: int  # the priority, negated
    ready_at: datetime | None  # None: before all others
    id: int
    looked_at: float


_START = _End(-32_768, None, 0, -math.inf)  # no priority is so high


class PostgresJobStore(SqlJobStore):
    """The queue in PostgreSQL."""

    dialect: ClassVar[str] = "postgresql"
    notifies: ClassVar[bool] = True

    def __init__(
        self, engine: Engine, *, ahead_seconds: Callable[[], float] = lambda: 0.0, application: str | None = None
    ) -> None:
        super().__init__(engine, ahead_seconds=ahead_seconds, application=application)
        self.clock: Clock = SystemClock()
        self._ends: dict[tuple[str, str], _End] = {}

    def wake_ups(
        self, wanted: Wanted, clock: Clock, *, on_jobs: Callable[[], None], on_cancel: Callable[[], None]
    ) -> Listener:
        """Return what brings the news of these topics, on a connection of its own."""
        return Listener(self.listening, frozenset(wanted), on_jobs=on_jobs, on_cancel=on_cancel)

    def _change(self, name: str, batch: Batch, **values: object) -> Sequence[Row]:
        is_claim = name in CLAIMS
        with translated(self.engine), autocommit(self.engine) as connection:
            prepared = self._prepared(name, {**_columns(batch), **values})
            return said(connection, *prepared, read=marked_rows_of if is_claim else rows_of, is_binary=is_claim)

    def _completed(self, name: str, worker: WorkerId, reports: Sequence[Success]) -> set[Claim]:
        """Read the answer only when a claim was refused: there are many."""
        values = {**_columns(successes(reports)), "worker": worker}
        with translated(self.engine), autocommit(self.engine) as connection:
            answer = said(
                connection,
                *self._prepared(name, values),
                read=lambda cursor: None if cursor.rowcount == len(reports) else rows_of(cursor),
            )
        return {report.claim for report in reports} if answer is None else accepted_claims(answer)

    def _change_on(self, connection: Connection, name: str, batch: Batch, **values: object) -> Sequence[Row]:
        return self._run(connection, name, **_columns(batch), **values)

    def _run(self, connection: Connection, name: str, /, **values: object) -> Sequence[Row]:
        if isinstance(connection, LentConnection) and connection.is_ours:
            with translated(self.engine):
                return said(connection, *self._prepared(name, values))
        return super()._run(connection, name, **values)

    def _claim_unlimited(
        self, worker: WorkerId, wanted: Wanted, capacity: int, mosts: Mapping[str, int]
    ) -> list[ClaimedJob]:
        """Claim from the start of the index, or go on where the last claim ended if that was a moment ago.

        Entries of claimed jobs stay in the index until it is vacuumed. To read through them for every claim makes each
        slower than the one before, so for a moment claims start behind them; then one looks from the start again, for
        jobs of higher priority and those that were put back.
        """
        now = self.clock.monotonic()
        ends = {
            pair: end
            for pair in _pairs(wanted)
            if (end := self._ends.pop(pair, None)) is not None and now - end.looked_at <= _GO_ON_SECONDS
        }
        claimed = self._claim_behind(worker, wanted, capacity, mosts, ends)
        if not claimed and ends:
            ends = {}
            claimed = self._claim_behind(worker, wanted, capacity, mosts, ends)
        if len(claimed) == capacity >= _WORTH_GOING_ON:  # more may be left behind; small claims are cheap anyway
            self._note_ends(claimed, ends, now)
        return claimed

    def _claim_behind(
        self,
        worker: WorkerId,
        wanted: Wanted,
        capacity: int,
        mosts: Mapping[str, int],
        ends: Mapping[tuple[str, str], _End],
    ) -> list[ClaimedJob]:
        pairs = _pairs(wanted)
        behind = [ends.get(pair, _START) for pair in pairs]
        places = {topic: place for place, topic in enumerate(wanted)}
        batch: Batch = {
            "topics": [topic for topic, _ in pairs],
            "operations": [operation for _, operation in pairs],
            "places": [places[topic] for topic, _ in pairs],
            "after_ranks": [end.rank for end in behind],
            "after_ready_ats": ["-infinity" if end.ready_at is None else end.ready_at.isoformat() for end in behind],
            "after_ids": [end.id for end in behind],
            "mosts": [min(capacity, mosts.get(topic, capacity)) for topic, _ in pairs],
        }
        name = "claim" if len(pairs) == len(wanted) else "claim_merged"
        rows = self._change(name, batch, worker=worker, capacity=capacity)
        return readable_jobs(rows, self._job, partial(self.fail, worker))

    def _note_ends(self, claimed: Sequence[ClaimedJob], before: Mapping[tuple[str, str], _End], now: float) -> None:
        """Remember the last job of each operation: nothing that comes before it is left."""
        last = {(job.topic, job.operation): job for job in claimed}  # they are in order
        for pair, job in last.items():
            looked_at = before[pair].looked_at if pair in before else now
            self._ends[pair] = _End(-job.priority, job.ready_at, job.id, looked_at)

    def _ready_of_keys(
        self, connection: Connection, topic: str, operations: Sequence[str], depths: Mapping[str, int]
    ) -> Sequence[Row]:
        batch: Batch = {"keys": list(depths), "rooms": list(depths.values()), "operations": operations}
        return self._change_on(connection, "ready_of_keys", batch, topic=topic)

    def _ready_without_key(
        self, connection: Connection, topic: str, operations: Sequence[str], capacity: int
    ) -> Sequence[Row]:
        return self._change_on(
            connection, "ready_without_key", {"operations": operations}, topic=topic, capacity=capacity
        )

    def _keys_after(self, connection: Connection, topic: str, operations: Sequence[str], after: str) -> list[str]:
        batch: Batch = {"operations": operations}
        most = self.most_keys_per_claim
        rows = self._change_on(connection, "ready_keys", batch, topic=topic, after_key=after, most_keys=most)
        return [row[0] for row in rows]

    def drop_recorded_on(
        self, connection: Connection, worker: WorkerId, ends: Mapping[Claim, NewEntry | None]
    ) -> set[Claim]:
        """Do both by one statement."""
        claims = sorted(ends)
        rows = [{} if (entry := ends[claim]) is None else history_row(entry) for claim in claims]
        batch: Batch = {
            "ids": [claim.id for claim in claims],
            "attempts": [claim.attempt for claim in claims],
            **{name: [row.get(column) for row in rows] for name, column in _HISTORY_COLUMNS.items()},
        }
        found = self._change_on(connection, "drop_recorded", batch, worker=worker)
        return {Claim(JobId(row[0]), Attempt(row[1])) for row in found}

    def _enqueue_alone(self, job: NewJob) -> Enqueued:
        [row] = self._change("enqueue", {}, **self._columns(job))
        return Enqueued(JobId(row[0]), job.correlation_id or item_id(JobId(row[0])))

    def _insert_many(self, connection: Connection, jobs: Sequence[NewJob]) -> int:
        lines = (_line_start(self._copied(job).values()) + _field(job.payload) + "\n" for job in jobs)
        return self._copy(connection, _DEFAULTS, lines)

    def _insert_batch(self, connection: Connection, template: NewJob, payloads: Iterable[str]) -> int:
        said = {name: value for name, value in self._copied(template).items() if value != _DEFAULTS[name]}
        start = _line_start(said.values())
        return self._copy(connection, said, (f"{start}{payload.translate(_ESCAPED)}\n" for payload in payloads))

    def _copy(self, connection: Connection, columns: Iterable[str], lines: Iterable[str]) -> int:
        sql = f"COPY holdfast_jobs ({', '.join([*columns, 'payload'])}) FROM STDIN"
        with translated(self.engine), driver_of(connection).cursor() as cursor:
            with cursor.copy(sql) as copy:
                for block in _blocks(lines):
                    copy.write(block)
            return int(cursor.rowcount)

    def _copied(self, job: NewJob) -> dict[str, object]:
        status = "ready" if job.run_at is None else "scheduled"
        found = {name: getattr(job, name, status) for name in _DEFAULTS}
        return {**found, "run_at": self._moment(job.run_at)}

    def _announce(self, connection: Connection, topics: Iterable[str]) -> None:
        for topic in topics:
            with translated(self.engine):
                connection.exec_driver_sql("SELECT pg_notify(%s, %s)", (CHANNEL, topic))


def _pairs(wanted: Wanted) -> list[tuple[str, str]]:
    return [(topic, operation) for topic, operations in wanted.items() for operation in operations]


def _columns(batch: Batch) -> dict[str, object]:
    return {name: _array(items) for name, items in batch.items()}


def _array(items: Sequence[object]) -> object:
    """Return a column of a batch as a parameter: numbers as the text of an array, which the driver need not look at."""
    kinds = set(map(type, items))
    if kinds <= {int, float}:
        return f"{{{','.join(map(str, items))}}}"
    if kinds == {type(None)}:
        return None  # unnest fills up a shorter column with NULL
    return list(items)


def _line_start(values: Iterable[object]) -> str:
    """Return a line of COPY's text format up to the payload, its last column."""
    return "".join(f"{_field(value)}\t" for value in values)


def _field(value: object) -> str:
    return "\\N" if value is None else str(value).translate(_ESCAPED)


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    waiting = iter(lines)
    while block := "".join(itertools.islice(waiting, _LINES_AT_ONCE)):
        yield block
