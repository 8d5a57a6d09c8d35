"""Looking through the queue: jobs by topic, status, tag, correlation id or error, in pages, for people.

Reading only, and apart from the store's statements: these queries need not be fast, only harmless.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Integer,
    Select,
    String,
    and_,
    column,
    func,
    or_,
    select,
    table,
)
from sqlalchemy.engine import Connection, Dialect, Engine

from ..core.key_text import is_plain
from ..records.database import reading, translated
from ..records.failure_text import words_contain, words_of
from ..records.paging import DEFAULT_LIMIT, Page, position_in, token_of
from ..records.readable import StoredRow, read, readable_page, rows_in
from ..records.times import UtcMoment, database_time
from .model import LARGEST_ID, JobId, JobStatus, item_id

_KIND = "jobs"
_ITEM_PREFIX = "job-"

jobs_table = table(
    "holdfast_jobs",
    column("id", BigInteger),
    column("topic", String),
    column("operation", String),
    column("payload", String),
    column("status", String),
    column("priority", Integer),
    column("limit_key", String),
    column("attempt", Integer),
    column("failures", Integer),
    column("max_attempts", Integer),
    column("retry_base_seconds", Double),
    column("retry_max_seconds", Double),
    column("lease_seconds", Double),
    column("run_at", UtcMoment),
    column("created_at", UtcMoment),
    column("started_at", UtcMoment),
    column("locked_by", String),
    column("lease_until", UtcMoment),
    column("unique_key", String),
    column("unique_seconds", Double),
    column("correlation_id", String),
    column("instance_id", String),
    column("tags", String),
    column("progress", String),
    column("cancel_reason", String),
    column("first_failed_at", UtcMoment),
    column("last_failed_at", UtcMoment),
    column("last_error", String),
    column("suspicions", Integer),
    column("begun_attempt", Integer),
)
_columns = jobs_table.c


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A job in the queue, every column of it, its times aware and in UTC. ``payload`` is JSON.

    ``running_seconds`` is how long a running job has been held by its worker; ``is_tested`` means that it is a suspect
    under test: if its worker is lost now, that counts as its failure.
    """

    id: JobId
    topic: str
    operation: str
    payload: str
    status: JobStatus
    priority: int
    limit_key: str | None
    attempt: int
    failures: int
    max_attempts: int | None
    retry_base_seconds: float
    retry_max_seconds: float
    lease_seconds: float
    run_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    locked_by: str | None
    lease_until: datetime | None
    unique_key: str | None
    unique_seconds: float | None
    correlation_id: str
    instance_id: str | None
    tags: list[str]
    progress: str | None
    cancel_reason: str | None
    first_failed_at: datetime | None
    last_failed_at: datetime | None
    last_error: str | None
    suspicions: int
    is_tested: bool
    running_seconds: float | None

    @property
    def item_id(self) -> str:
        """Return the name of the job in history and dead letters."""
        return item_id(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs are wanted: those that fit everything that is not None.

    ``since`` and ``until`` are about when a job was added; ``error`` is a part of its last error's text, in any case.
    """

    topic: str | None = None
    status: JobStatus | None = None
    tag: str | None = None
    correlation_id: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None


_EVERY_JOB = JobFilter()


def find(
    engine: Engine, wanted: JobFilter = _EVERY_JOB, limit: int = DEFAULT_LIMIT, after: str | None = None
) -> Page[ListedJob]:
    """Return the newest jobs that are wanted, or those behind the page that ended with the token ``after``.

    Jobs that have succeeded are in the history, not here.

    Raises:
        ConfigurationError: the limit or the token is wrong, or the tables are missing.
        DbConnectionError: the database does not answer.
    """
    if not all(map(is_plain, filter(None, (wanted.topic, wanted.tag, wanted.correlation_id, wanted.error)))):
        return Page([], None)  # no row can hold that
    query = _select(engine.dialect).where(*_conditions(engine.dialect, wanted)).order_by(_columns.id.desc())
    if after is not None:
        query = query.where(_columns.id < position_in(_KIND, after, [int])[0])
    return readable_page(engine, query, limit, _listed, lambda row: token_of(_KIND, row["id"]))


def jobs_by_id(engine: Engine, ids: Sequence[JobId]) -> dict[JobId, ListedJob]:
    """Return those of the jobs that are in the queue.

    Raises:
        QueryError: one of them cannot be read; its row and column are named.
    """
    with reading(engine) as connection:
        rows = rows_in(connection, _select(engine.dialect).where(_columns.id.in_(ids)).order_by(_columns.id))
    return {JobId(row["id"]): _listed(row) for row in rows}


def topics_of(engine: Engine, ids: Sequence[JobId], connection: Connection | None = None) -> dict[JobId, str]:
    """Return the topics of those of the jobs that are in the queue; what else their rows hold is not read."""
    query = select(_columns.id, _columns.topic).where(_columns.id.in_(ids)).order_by(_columns.id)
    with reading(engine, connection) as open_connection:
        return {JobId(row.id): row.topic for row in open_connection.execute(query)}


def locked_statuses(engine: Engine, connection: Connection, ids: Sequence[JobId]) -> dict[JobId, JobStatus]:
    """Return where these jobs stand, missing ones left out; the transaction holds them until it ends."""
    query = select(_columns.id, _columns.status).where(_columns.id.in_(ids)).order_by(_columns.id).with_for_update()
    with translated(engine, writes=True):
        return {JobId(row.id): JobStatus(row.status) for row in connection.execute(query)}


def job_id_of(item: str | None) -> JobId | None:
    """Return the id of the job that is named so in history and dead letters; None when it is no job's name."""
    digits = (item or "").removeprefix(_ITEM_PREFIX)
    is_name = digits.isascii() and digits.isdigit() and item == f"{_ITEM_PREFIX}{int(digits)}"
    return JobId(int(digits)) if is_name and int(digits) <= LARGEST_ID else None


def _conditions(dialect: Dialect, wanted: JobFilter) -> Iterator[ColumnElement[bool]]:
    if wanted.topic is not None:
        yield _columns.topic == wanted.topic
    if wanted.status is not None:
        yield _columns.status == wanted.status.value
    if wanted.tag is not None:
        yield _has_tag(dialect, wanted.tag)
    if wanted.correlation_id is not None:
        yield _belongs_to(wanted.correlation_id)
    if wanted.error is not None:
        yield words_contain(_columns.last_error, wanted.error)
    if wanted.since is not None:
        yield _columns.created_at >= wanted.since
    if wanted.until is not None:
        yield _columns.created_at < wanted.until


def _has_tag(dialect: Dialect, tag: str) -> ColumnElement[bool]:
    """Look for the tag as it stands in a JSON list, whichever way its writer escapes; LIKE would not mind its case."""
    position = func.strpos if dialect.name == "postgresql" else func.instr
    forms = {json.dumps(tag), json.dumps(tag, ensure_ascii=False)}
    return or_(*(position(_columns.tags, form) > 0 for form in sorted(forms)))


def _belongs_to(correlation_id: str) -> ColumnElement[bool]:
    """Match jobs of that correlation id; a job that was given none goes by its own name."""
    named = _columns.correlation_id == correlation_id
    own = job_id_of(correlation_id)
    return named if own is None else or_(named, and_(_columns.id == own, _columns.correlation_id.is_(None)))


def _select(dialect: Dialect) -> Select[Any]:
    return select(jobs_table, database_time(dialect).label("read_at"))


def _listed(row: StoredRow) -> ListedJob:
    return read(row, _job, jobs_table.name, ["id"])


def _job(row: StoredRow) -> ListedJob:
    values = dict(row)
    begun_attempt, read_at = values.pop("begun_attempt"), values.pop("read_at")
    is_running = values["status"] == JobStatus.RUNNING.value
    values["is_tested"] = is_running and values["suspicions"] > 0 and begun_attempt == values["attempt"]
    held = max(0.0, (read_at - values["started_at"]).total_seconds()) if is_running and values["started_at"] else None
    values["running_seconds"] = held
    values["status"] = JobStatus(values["status"])
    values["last_error"] = None if values["last_error"] is None else words_of(values["last_error"])
    values["tags"] = json.loads(values["tags"]) if values["tags"] else []
    values["correlation_id"] = values["correlation_id"] or item_id(values["id"])
    return ListedJob(**values)
