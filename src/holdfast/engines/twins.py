"""Messages about the same that other workers have in hand: a claim is the lease by which twins are kept apart.

Every worker looks after its claim was committed, and goes on only if no other worker has a claim on a message with the
same engine, operation and correlation id. So of two that look, the later sees the other, and never both go on
[ENGINE-7]. A claim ends with the record of its message or, if its worker is lost, when its lease has run out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

from sqlalchemy import select
from sqlalchemy.engine import Connection

from ..jobs.listing import jobs_table
from ..jobs.model import JobId, JobStatus, WorkerId
from ..jobs.stores.base import SqlJobStore
from ..records.database import reading
from ..records.history import SuccessKey

_columns = jobs_table.c
ReadKey: TypeAlias = Callable[[JobId, str], SuccessKey | None]
"""Takes a message's id and body; returns what it is about, None when nobody can read it."""
Succeeded: TypeAlias = Callable[[Collection[SuccessKey], Connection], set[SuccessKey]]


class Look(NamedTuple):
    """What is known of keys: those with a success, and of those at work elsewhere the oldest message."""

    succeeded: Collection[SuccessKey] = ()
    elsewhere: Mapping[SuccessKey, JobId] = {}


class Twins:
    """Looks for messages about the same, and for their successes.

    Args:
        store: where the messages are.
        operations: which of the messages of a topic are the application's.
        readers: how the messages of each topic are read.
        succeeded: returns those of the keys that the history has a success of.
    """

    def __init__(
        self, store: SqlJobStore, operations: Collection[str], readers: Mapping[str, ReadKey], succeeded: Succeeded
    ) -> None:
        self._store = store
        self._operations = operations
        self._readers = readers
        self._succeeded = succeeded

    def look(self, worker: WorkerId, keys: Collection[SuccessKey]) -> Look:
        """Return what is known of the keys of a worker's claimed messages.

        The claims come first: what has ended when they are read has its success in the history already.
        """
        with reading(self._store.engine) as connection:
            elsewhere = self._elsewhere(connection, worker, keys)
            return Look(self._succeeded(keys, connection), elsewhere)

    def _elsewhere(
        self, connection: Connection, worker: WorkerId, keys: Collection[SuccessKey]
    ) -> dict[SuccessKey, JobId]:
        """Return the oldest message of each key that another worker has claimed; one scan of what is running."""
        named = {key.correlation_id for key in keys}
        query = select(_columns.topic, _columns.id, _columns.payload).where(
            _columns.status == JobStatus.RUNNING.value,
            _columns.topic.in_(self._readers),
            _columns.operation.in_(self._operations),
            _columns.correlation_id.in_(named),
            _columns.locked_by != worker,
        )
        found: dict[SuccessKey, JobId] = {}
        for topic, job_id, body in sorted(connection.execute(query), key=lambda row: row.id):
            key = self._readers[topic](job_id, body)
            if key is not None and key in keys:
                found.setdefault(key, job_id)
        return found
