"""The queue in PostgreSQL: every change is one statement, bulk comes in by COPY, workers wake by NOTIFY."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from sqlalchemy.engine import Connection

from ...core.engine import autocommit
from ..model import ClaimedJob, NewJob, WorkerId
from .answers import translated
from .base import Batch, Row, SqlJobStore

CHANNEL = "holdfast_jobs"
_COPIED = (
    "topic",
    "operation",
    "payload",
    "status",
    "priority",
    "limit_key",
    "max_attempts",
    "retry_base_seconds",
    "retry_max_seconds",
    "lease_seconds",
    "run_at",
    "correlation_id",
    "instance_id",
    "tags",
)


class PostgresJobStore(SqlJobStore):
    """The queue in PostgreSQL."""

    dialect: ClassVar[str] = "postgresql"
    notifies: ClassVar[bool] = True

    def _change(self, name: str, batch: Batch, **values: object) -> list[Row]:
        with translated(self.engine), autocommit(self.engine) as connection:
            return self._change_on(connection, name, batch, **values)

    def _change_on(self, connection: Connection, name: str, batch: Batch, **values: object) -> list[Row]:
        with translated(self.engine):
            columns = {column: _array(items) for column, items in batch.items()}
            return list(connection.exec_driver_sql(*self._prepared(name, {**columns, **values})).fetchall())

    def _claim_unlimited(self, worker: WorkerId, topics: Sequence[str], capacity: int) -> list[ClaimedJob]:
        return self._claimed(self._change("claim", {"topics": list(topics)}, worker=worker, capacity=capacity))

    def _insert_many(self, connection: Connection, jobs: Sequence[NewJob]) -> int:
        with translated(self.engine):
            driver = connection.connection.driver_connection
            assert driver is not None
            sql = f"COPY holdfast_jobs ({', '.join(_COPIED)}) FROM STDIN"
            with driver.cursor() as cursor, cursor.copy(sql) as copy:
                for job in jobs:
                    copy.write_row(_copied(job, self._moment(job.run_at)))
        return len(jobs)

    def _announce(self, connection: Connection, topics: Iterable[str]) -> None:
        for topic in topics:
            with translated(self.engine):
                connection.exec_driver_sql("SELECT pg_notify(%s, %s)", (CHANNEL, topic))


def _array(items: Sequence[object]) -> object:
    """Return a column of a batch as a parameter: numbers as the text of an array, which the driver need not look at."""
    kinds = set(map(type, items))
    if kinds <= {int, float}:
        return f"{{{','.join(map(str, items))}}}"
    if kinds == {type(None)}:
        return None  # unnest fills up a shorter column with NULL
    return items


def _copied(job: NewJob, run_at: object) -> tuple[object, ...]:
    return (
        job.topic,
        job.operation,
        job.payload,
        "ready" if job.run_at is None else "scheduled",
        job.priority,
        job.limit_key,
        job.max_attempts,
        job.retry_base_seconds,
        job.retry_max_seconds,
        job.lease_seconds,
        run_at,
        job.correlation_id,
        job.instance_id,
        job.tags,
    )
