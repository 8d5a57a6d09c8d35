"""``context.transaction``: the handler's writes and the job's completion in one database transaction.

The completion is the transaction's last statement, fenced by owner and attempt: when the claim is stale it changes no
row, and everything rolls back. On SQLite the write lock is held from first use on: no heartbeat can be written
meanwhile, but neither can anyone else take the job.
"""

from __future__ import annotations

import logging

from sqlalchemy.engine import Connection, Engine

from ..core.clock import Clock
from ..core.errors import Ambiguous, InvalidTransition, JobError, Unavailable
from ..core.handler_transaction import HandlerTransaction
from ..core.places import Places
from .model import Success, WorkerId
from .running import Running
from .stores.protocol import WorkerStore

_log = logging.getLogger("holdfast.jobs")


class CommitFailed(JobError):  # noqa: N818 - it says what happened, and never leaves this package
    """The database did not take the commit."""


class JobTransaction(HandlerTransaction):
    """The transaction of one attempt."""

    def __init__(self, engine: Engine, running: Running, clock: Clock, places: Places | None) -> None:
        super().__init__(engine, running.job.lease_seconds, self._protect_lease, places)
        self._running = running
        self._clock = clock

    @classmethod
    def of(cls, engine: Engine, running: Running, clock: Clock, places: Places | None) -> JobTransaction:
        """Return the transaction of an attempt, made when it is first asked for."""
        if not isinstance(running.transaction, cls):
            running.transaction = cls(engine, running, clock, places)
        return running.transaction

    def _connect(self) -> Connection:
        """Open it so that the completion sees beats that came meanwhile: newer MariaDB takes them for a conflict."""
        if self._engine.dialect.name not in ("mysql", "mariadb"):
            return super()._connect()
        try:
            return self._reading_committed()
        except self._engine.dialect.loaded_dbapi.Error:  # a pooled connection was dead; nothing was sent on it
            return self._reading_committed()

    def _reading_committed(self) -> Connection:
        connection = super()._connect()
        try:
            return connection.execution_options(isolation_level="READ COMMITTED")
        except BaseException:
            connection.invalidate()
            connection.close()
            raise

    def _protect_lease(self, is_locked: bool) -> None:
        running = self._running
        if is_locked:
            running.locked_since = self._clock.monotonic()
        elif running.locked_since is not None:
            held, running.locked_since = self._clock.monotonic() - running.locked_since, None
            if held > running.job.lease_seconds / 3:
                _log.warning(
                    "Job %d held SQLite's write lock for %.1f s, a third of its lease or more: no other job could "
                    "report or beat meanwhile. Open context.transaction later, or do less in it.",
                    running.job.id,
                    held,
                )

    def complete(self, store: WorkerStore, worker: WorkerId, report: Success) -> None:
        """Commit the handler's writes and the completion.

        Raises:
            InvalidTransition: the claim is stale; everything was rolled back.
            JobError: the handler ended the transaction itself.
            CommitFailed: the commit failed; everything was rolled back.
        """
        if not self.is_active:
            raise JobError(
                "The handler ended context.transaction itself, so its writes and the completion could not commit "
                "together. Leave commit and rollback to Holdfast: return to commit, raise to roll back."
            )
        if not self.last_step(lambda connection: store.complete_on(connection, worker, report)):
            self.rollback()
            raise InvalidTransition(f"Job {self._running.job.id} is no longer this worker's. Its writes were undone.")
        try:
            self.commit()
        except (Ambiguous, Unavailable) as error:
            if not (isinstance(error, Ambiguous) and self._has_landed(store)):
                raise CommitFailed(f"The commit failed, and everything was undone: {error}") from error

    def _has_landed(self, store: WorkerStore) -> bool:
        """Read the row to learn whether a COMMIT that was not answered took place."""
        return store.has_landed(self._running.job)
