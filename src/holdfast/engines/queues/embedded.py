"""The embedded queue: engine messages as jobs, in the database the application has.

A message is a job without a maximum of attempts: only the engine's flow sends it to the dead letters. The jobs' worker
claims it (``engines/claimed.py``).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy.engine import Connection

from ...jobs.model import Enqueued, NewJob
from ...jobs.settings import ENGINE_TOPICS
from ...jobs.stores.base import SqlJobStore
from ...records.database import reading
from ...records.times import database_now

OPERATION = "message"


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

    @property
    def name(self) -> str:
        """Return the queue's name."""
        return self._name

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
