"""A queue under test: its store, its tables, and a database clock that can be stepped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast.core.config import DbConfig
from holdfast.database.migrations import migrate
from holdfast.database.pools import EngineProvider
from holdfast.jobs.model import ClaimedJob, Enqueued, JobId, NewJob, Suspect, WorkerId
from holdfast.jobs.schema import MIGRATIONS as JOB_MIGRATIONS
from holdfast.jobs.store import job_store
from holdfast.jobs.stores.base import SqlJobStore
from holdfast.records.failure_text import words_of
from holdfast.records.schema import MIGRATIONS as RECORD_MIGRATIONS

ANNE = WorkerId("anne")
BERT = WorkerId("bert")
_WIDEN = {
    "postgresql": "ALTER TABLE holdfast_topics ALTER max_running TYPE text",
    "mysql": "ALTER TABLE holdfast_topics MODIFY max_running VARCHAR(20)",
}


@dataclass
class Queue:
    """A store, and what a test wants to know about it."""

    engine: Engine
    ahead_seconds: float = 0.0
    store: SqlJobStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = job_store(self.engine, ahead_seconds=lambda: self.ahead_seconds)

    def add(self, topic: str = "email", operation: str = "send", payload: str = "{}", **options: Any) -> Enqueued:
        return self.store.enqueue(NewJob(topic=topic, operation=operation, payload=payload, **options))

    def claim(
        self,
        capacity: int = 100,
        worker: WorkerId = ANNE,
        topics: tuple[str, ...] = ("email",),
        operations: tuple[str, ...] | None = None,
    ) -> list[ClaimedJob]:
        """Claim jobs of the operations, or of any that is ready."""
        return self.store.claim(worker, {topic: self._chosen(topic, operations) for topic in topics}, capacity)

    def claim_limited(
        self,
        capacity: int = 100,
        worker: WorkerId = ANNE,
        topic: str = "email",
        operations: tuple[str, ...] | None = None,
    ) -> list[ClaimedJob]:
        """Claim from a limited topic jobs of the operations, or of any that is ready."""
        return self.store.claim_limited(worker, topic, self._chosen(topic, operations), capacity)

    def _chosen(self, topic: str, operations: tuple[str, ...] | None) -> Sequence[str]:
        return self.store.ready_operations(topic) if operations is None else operations

    def claim_one(self, worker: WorkerId = ANNE) -> ClaimedJob:
        [job] = self.claim(1, worker)
        return job

    def claim_suspect(self, worker: WorkerId = ANNE) -> ClaimedJob:
        """Claim the suspect that has waited longest."""
        found = next_suspect(self.store, worker)
        assert found is not None
        return found.job

    def step(self, seconds: float) -> None:
        """Let the database's time, as the statements are told it, go on."""
        self.ahead_seconds += seconds

    def expire(self, job_id: JobId, attempt: int) -> None:
        """Let the lease of this attempt have run out, as often as a beat has extended it meanwhile."""
        ends = text(
            "UPDATE holdfast_jobs SET lease_until = started_at "
            "WHERE id = :id AND attempt = :attempt AND status = 'running'"
        )
        with self.engine.begin() as connection:
            connection.execute(ends, {"id": job_id, "attempt": attempt})

    def spoil_limit(self, topic: str) -> None:
        """Make the limit of a topic what no worker can read."""
        dialect = self.engine.dialect.name
        with self.engine.begin() as connection:
            if dialect in _WIDEN:  # SQLite takes any text
                connection.exec_driver_sql(_WIDEN[dialect])
            connection.execute(text("UPDATE holdfast_topics SET max_running = 'spoilt' WHERE topic = :t"), {"t": topic})

    def status(self, job_id: JobId) -> str | None:
        found = self.store.get(job_id)
        return None if found is None else str(found.status)

    def column(self, job_id: JobId, name: str) -> Any:
        found = self.store.get(job_id)
        assert found is not None
        return found.columns[name]

    def history(self) -> list[dict[str, Any]]:
        return self.rows("SELECT * FROM holdfast_history ORDER BY id")

    def dead_letters(self) -> list[dict[str, Any]]:
        return self.rows("SELECT * FROM holdfast_dead_letters ORDER BY row_key")

    def rows(self, sql: str, **values: object) -> list[dict[str, Any]]:
        """Return rows as they are stored, but errors without the tracebacks behind them."""
        with self.engine.connect() as connection:
            found = [dict(row) for row in connection.execute(text(sql), values).mappings()]
        texts = ("error", "error_message", "last_error")
        return [row | {name: words_of(row[name]) for name in texts if row.get(name)} for row in found]


def any_operation(topic: str, operation: str) -> bool:
    return True


def next_suspect(
    store: SqlJobStore, worker: WorkerId, can_run: Callable[[str, str], bool] = any_operation
) -> Suspect | None:
    """Claim the suspect that has waited longest of those that can begin, as a worker does."""
    claimed = (store.claim_suspect(worker, waiting) for waiting in store.suspects(can_run))
    return next((suspect for suspect in claimed if suspect is not None), None)


@contextmanager
def open_queue(url: str) -> Iterator[Queue]:
    """Yield an empty queue in a database."""
    provider = EngineProvider()
    engine = provider.get_engine(DbConfig(connection_url=url))
    try:
        migrate(engine, (*RECORD_MIGRATIONS, *JOB_MIGRATIONS))
        yield Queue(engine)
    finally:
        provider.dispose_all()
