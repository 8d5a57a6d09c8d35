"""The embedded queue: engine messages as jobs, in the database the application has.

A message is a job without a maximum of attempts: only the engine's flow sends it to the dead letters. Its dequeue count
is its failures plus one: what is put back is not counted, what a dead worker held is.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import and_, delete, update
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from ...core.clock import Clock, new_id
from ...core.errors import LostLeaseError
from ...jobs.listing import jobs_table
from ...jobs.model import Claim, ClaimedJob, Enqueued, JobStatus, NewJob, PutBack, WorkerId
from ...jobs.settings import ENGINE_TOPICS
from ...jobs.stores.base import SqlJobStore
from ...jobs.stores.protocol import WakeUps
from ...jobs.texts import storable
from ...records.database import changing, reading
from ...records.times import database_now, database_time
from .copies import first_inserted
from .protocol import Received

OPERATION = "message"
_columns = jobs_table.c


class EmbeddedQueue:
    """A queue of one engine in the jobs table.

    Args:
        store: the jobs.
        name: the queue's name; its topic is ``engine.<name>``.
        visibility_seconds: how long a message is invisible without being extended. It is kept with each message.
    """

    def __init__(self, store: SqlJobStore, name: str, visibility_seconds: float = 30.0) -> None:
        self._store = store
        self._name = name
        self._visibility_seconds = visibility_seconds
        self._due_in_seconds: float | None = None
        self._worker = WorkerId(f"{socket.gethostname()}-{os.getpid()}-{new_id(8)}")

    @property
    def name(self) -> str:
        """Return the queue's name."""
        return self._name

    @property
    def notifies(self) -> bool:
        """Return whether new messages are told of."""
        return self._store.notifies

    @property
    def topic(self) -> str:
        """Return the topic its messages are kept under."""
        return f"{ENGINE_TOPICS}{self._name}"

    def send(
        self, body: str, *, message_id: str, delay_seconds: float = 0.0, connection: Connection | None = None
    ) -> str:
        """Add a message, in the caller's transaction when there is one; an id that waits already adds nothing."""
        added = self.add(body, message_id=message_id, delay_seconds=delay_seconds, connection=connection)
        return str(added.id)

    def add(
        self, body: str, *, message_id: str, delay_seconds: float = 0.0, connection: Connection | None = None
    ) -> Enqueued:
        """Do what ``send`` does, and tell whether the message is new."""
        job = NewJob(
            topic=self.topic,
            operation=OPERATION,
            payload=body,
            max_attempts=None,
            lease_seconds=self._visibility_seconds,
            unique_key=message_id,
        )
        if delay_seconds > 0:
            job = replace(job, run_at=self._now(connection) + timedelta(seconds=delay_seconds))
        return self._store.enqueue(job, connection)

    def _now(self, connection: Connection | None) -> datetime:
        """Return the database's time, by the caller's connection when there is one: a second could wait for it."""
        if connection is not None:
            return database_now(connection)
        with reading(self._store.engine) as own_connection:
            return database_now(own_connection)

    def receive(self, most: int, visibility_seconds: float) -> Sequence[Received]:
        """Claim messages whose time has come. The claim is the lease."""
        self._due_in_seconds = self._store.next_due().seconds
        if self._due_in_seconds is not None and self._due_in_seconds <= 0:
            self._store.promote()
        wanted = {self.topic: [OPERATION]}
        return [_received(job) for job in self._store.claim(self._worker, wanted, most)]

    def wake_ups(self, clock: Clock, on_messages: Callable[[], None]) -> WakeUps | None:
        """Return what tells of new messages; None where they must be polled for."""
        return self._store.wake_ups({self.topic: [OPERATION]}, clock, on_jobs=on_messages, on_cancel=on_messages)

    def seconds_to_next(self) -> float | None:
        """Return how long it was, when last received, until a message or a job is due; None when none waits."""
        return self._due_in_seconds

    def extend(self, message: Received, visibility_seconds: float) -> Received:
        """Extend the lease by its own time.

        Raises:
            LostLeaseError: it is no longer ours.
        """
        if _claim(message) not in self._store.heartbeat(self._worker, [_claim(message)]):
            raise LostLeaseError(f"Message {message.id} of queue '{self._name}' is no longer this worker's.")
        return message

    def delete(self, message: Received, connection: Connection | None = None) -> bool:
        """Remove a message, fenced; in the caller's transaction when there is one."""
        statement = delete(jobs_table).where(self._is_ours(message))
        return self._changed(lambda open_connection: open_connection.execute(statement).rowcount, connection)

    def retry_later(self, message: Received, delay_seconds: float, error: str) -> bool:
        """Let a message come again, its failure counted."""
        with changing(self._store.engine) as connection:
            now = database_now(connection)
            values = {
                "status": JobStatus.SCHEDULED.value,
                "run_at": now + timedelta(seconds=max(0.0, delay_seconds)),
                "failures": _columns.failures + 1,
                "locked_by": None,
                "lease_until": None,
                "last_error": storable(error),
                "last_failed_at": database_time(connection.dialect),
            }
            changed = connection.execute(update(jobs_table).where(self._is_ours(message)).values(values))
            return changed.rowcount == 1

    def put_back(self, message: Received, delay_seconds: float, reason: str) -> bool:
        """Let a message come again, uncounted."""
        return bool(self._store.put_back(self._worker, [PutBack(_claim(message), delay_seconds, storable(reason))]))

    def _is_ours(self, message: Received) -> ColumnElement[bool]:
        claim = _claim(message)
        return and_(_columns.id == claim.id, _columns.attempt == claim.attempt, _columns.locked_by == self._worker)

    def _changed(self, change: Callable[[Connection], int], connection: Connection | None) -> bool:
        if connection is not None:
            return change(connection) == 1
        with changing(self._store.engine) as own_connection:
            return change(own_connection) == 1


def _received(job: ClaimedJob) -> Received:
    inserted_at = job.created_at if job.created_at.tzinfo else job.created_at.replace(tzinfo=UTC)
    first = first_inserted(job.payload) or inserted_at
    return Received(str(job.id), job.payload, job.failures + 1, first, job.claim, job.lease_seconds)


def _claim(message: Received) -> Claim:
    claim: Claim = message.receipt
    return claim
