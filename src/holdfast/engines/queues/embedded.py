"""The embedded queue: engine messages as jobs, in the database the application has.

A message is a job without a maximum of attempts: only the engine's flow sends it to the dead letters. The jobs' worker
claims it (``engines/claimed.py``).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy.engine import Connection

from ...jobs.model import Enqueued, NewJob
from ...jobs.settings import ENGINE_TOPICS, MAX_KEY_LENGTH
from ...jobs.stores.base import SqlJobStore
from ...records.database import reading
from ...records.dead_letters import DeadLetter
from ...records.times import database_now
from ..messages import readable_ids

FORMER_OPERATION = "message"
"""Of messages sent by versions that did not say whose they are; any application with that queue takes them."""


def operation_of(app_name: str) -> str:
    """Return what messages of an application's engines are called among jobs."""
    return f"{FORMER_OPERATION}@{app_name}"


class EmbeddedQueue:
    """A queue of one engine in the jobs table.

    Args:
        store: the jobs.
        name: the queue's name; its topic is ``engine.<name>``.
        lease_seconds: how long a message is invisible without being extended. It is kept with each message.
        app_name: whose messages these are; those of another application in the same database are left to it.
    """

    def __init__(
        self, store: SqlJobStore, name: str, lease_seconds: float = 30.0, *, app_name: str = "default"
    ) -> None:
        self._store = store
        self._name = name
        self._app_name = app_name
        self._lease_seconds = lease_seconds

    @property
    def name(self) -> str:
        """Return the queue's name."""
        return self._name

    @property
    def topic(self) -> str:
        """Return the topic its messages are kept under."""
        return f"{ENGINE_TOPICS}{self._name}"

    @property
    def operation(self) -> str:
        """Return what tells the application's messages from those of another with a queue of that name."""
        return operation_of(self._app_name)

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
            operation=self.operation,
            payload=body,
            max_attempts=None,
            lease_seconds=self._lease_seconds,
            unique_key=self._unique_key(message_id),
            correlation_id=readable_ids(body).get("correlationId"),  # twins at work elsewhere are found by it
        )
        if delay_seconds > 0:
            job = replace(job, run_at=self._now(connection) + timedelta(seconds=delay_seconds))
        return self._store.enqueue(job, connection)

    def _unique_key(self, message_id: str) -> str:
        key = f"{self._app_name}/{message_id}"
        return key if len(key) <= MAX_KEY_LENGTH else hashlib.sha256(key.encode()).hexdigest()

    def _now(self, connection: Connection | None) -> datetime:
        """Return the database's time, by the caller's connection when there is one: a second could wait for it."""
        if connection is not None:
            return database_now(connection)
        with reading(self._store.engine) as own_connection:
            return database_now(own_connection)


class JobsTable(Protocol):
    """Whoever knows the jobs, such as ``Jobs``. Nothing connects until they are asked for."""

    @property
    def store(self) -> SqlJobStore:
        """Return the jobs."""
        ...


class DatabaseQueues:
    """Queues of one application in the jobs table."""

    def __init__(self, jobs: JobsTable, app_name: str = "default") -> None:
        self._jobs = jobs
        self._app_name = app_name

    @property
    def store(self) -> SqlJobStore:
        """Return where they are."""
        return self._jobs.store

    @property
    def operations(self) -> tuple[str, str]:
        """Return which messages the application takes: its own, and those that older versions sent."""
        return operation_of(self._app_name), FORMER_OPERATION

    def queue(self, name: str, lease_seconds: float) -> EmbeddedQueue:
        """Return a queue."""
        return EmbeddedQueue(self.store, name, lease_seconds, app_name=self._app_name)

    def queue_of_letter(self, letter: DeadLetter, lease_seconds: float) -> EmbeddedQueue:
        """Return the queue that a dead letter goes back to: its application's."""
        owner = letter.application or self._app_name
        return EmbeddedQueue(self.store, letter.original_queue, lease_seconds, app_name=owner)

    def is_read(self, letter: DeadLetter) -> bool:
        """Return whether a live worker takes what is put into a letter's queue."""
        queue = self.queue_of_letter(letter, 0.0)
        return self.store.can_run(queue.topic, queue.operation)

    def poison(self, name: str) -> None:
        """Return none: no host moves messages of these queues away."""

    def make(self, name: str) -> None:
        """Nothing to do: a queue is a topic."""

    def check(self, name: str) -> None:
        """Nothing to do: the tables are checked by whoever starts."""
