"""Changes of the queue that people make: cancel, retry, pause. Each is one transaction with its audit rows.

Jobs named together are changed together or not at all. Locks are taken in one order, jobs before letters, as in the
store's own retry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import insert
from sqlalchemy.engine import Connection

from ..core.errors import ConfigurationError, Conflict, JobError
from ..records import audit
from ..records.database import changing, translated
from ..records.dead_letters import DeadLetter, DeadLetters
from ..records.history import History
from ..records.redrive import Refusal, no_longer_pending
from ..records.schema import PUBLISHER
from ..records.times import database_time
from .listing import job_id_of, jobs_table, locked_statuses, topics_of
from .model import JobId, JobStatus, NewJob, item_id
from .settings import ENGINE_TOPICS
from .stores.base import SqlJobStore

ENGINE_PREFIX = "jobs:"
_RETRIABLE = (JobStatus.DEAD, JobStatus.CANCELLED, JobStatus.SCHEDULED, JobStatus.SUSPECT)
_WITH_RETRIES = ("max_attempts", "retry_base_seconds", "retry_max_seconds")
_AS_USUAL = ("topic", "operation", "payload", "priority", "lease_seconds", *_WITH_RETRIES)
_CANCELLABLE = (JobStatus.READY, JobStatus.SCHEDULED, JobStatus.SUSPECT, JobStatus.RUNNING)


def cancel_jobs(store: SqlJobStore, ids: Sequence[JobId], reason: str, actor: str) -> dict[JobId, JobStatus]:
    """Cancel waiting jobs and ask running ones to stop; return the status of each now.

    Raises:
        ConfigurationError: one is not in the queue; nothing was changed.
        Conflict: one has ended, or is a message of an engine; nothing was changed.
    """
    with changing(store.engine) as connection:
        statuses = locked_statuses(store.engine, connection, ids)
        refuse_messages(topics_of(store.engine, ids, connection))
        _require(statuses, ids, _CANCELLABLE, "cancelled")
        changed = store.cancel(ids, reason, connection)
        for job_id, status in changed.items():
            audit.record(connection, actor, "jobs cancel", item_id(job_id), {"reason": reason, "status": status.value})
    return changed


def retry_jobs(store: SqlJobStore, ids: Sequence[JobId], actor: str) -> None:
    """Let dead, cancelled or waiting jobs run now. Dead letters of theirs become Resolved, 'Retried'.

    A job that is no longer in the queue, but has a Pending dead letter, is put back from that.

    Raises:
        ConfigurationError: one is not in the queue and has no such letter; nothing was changed.
        Conflict: one is ready, running or done, or is a message of an engine; nothing was changed.
        JobError: another job has taken the unique key of one; nothing was changed.
    """
    letters = DeadLetters(store.engine)
    with changing(store.engine) as connection:
        statuses = locked_statuses(store.engine, connection, ids)
        refuse_messages(topics_of(store.engine, ids, connection))
        for job_id in ids:
            if job_id not in statuses:
                found = letters.lock_pending(connection, letters.of_item(item_id(job_id), connection))
                if found:
                    _revive(store, connection, found[0])
                    statuses[job_id] = JobStatus.DEAD
        _require(statuses, ids, _RETRIABLE, "retried")
        _retry_on(store, connection, ids, actor)
        for job_id in ids:
            audit.record(connection, actor, "jobs retry", item_id(job_id), {"status_before": statuses[job_id].value})


def refuse_messages(topics: Mapping[JobId, str]) -> None:
    """Let only jobs pass: an engine's message that is changed behind its back ends in no record of the engine.

    Raises:
        Conflict: one of them is a message of an engine; nothing was changed.
    """
    for job_id, topic in topics.items():
        if topic.startswith(ENGINE_TOPICS):
            raise Conflict(
                f"Job {job_id} is a message of engine queue '{topic.removeprefix(ENGINE_TOPICS)}', which only its "
                "engine ends, with a record: it is not a job; nothing was changed. Pause the engine with 'holdfast "
                f"jobs pause {topic}'; once it has given the message up, use 'holdfast dlq'."
            )


class JobRedrive:
    """Where the dead letters of jobs go back to: the same job, its attempts counted on."""

    def __init__(self, store: SqlJobStore) -> None:
        self._store = store

    def put_back(self, connection: Connection, letters: Sequence[DeadLetter], actor: str) -> list[Refusal]:
        """Put back what can be, and return why the others cannot.

        Raises:
            JobError: another job has taken the unique key of one; nothing was changed.
        """
        refusals: list[Refusal] = []
        ids: dict[JobId, None] = {}
        for letter, job_id, status in _locked(self._store, connection, letters, refusals):
            try:
                if status is None and job_id not in ids:
                    _revive(self._store, connection, letter)
                elif status not in (None, JobStatus.DEAD):
                    raise Conflict(f"Job {job_id} is {status} already; nothing was changed.")
            except (ConfigurationError, Conflict) as refusal:
                refusals.append(refusal)
                continue
            ids[job_id] = None
            target = f"{letter.engine}/{letter.row_key}"
            audit.record(connection, actor, "dlq retry", target, {"retried_as": item_id(job_id)})
        _retry_on(self._store, connection, list(ids), actor)
        return refusals


def pause_topic(store: SqlJobStore, topic: str, is_paused: bool, actor: str, declared: Collection[str] = ()) -> bool:
    """Pause or resume a topic; return whether that changed anything. ``declared`` are topics of the application's.

    Raises:
        ConfigurationError: nobody knows that topic.
    """
    paused = {known.name: known.is_paused for known in store.topics()}
    names = sorted({*paused, *declared, *(item.topic for item in store.stats())})
    if topic not in names:
        raise ConfigurationError(
            f"There is no topic named '{topic}': it has no jobs and was never declared. Known here: "
            f"{', '.join(names) or 'none'}."
        )
    if paused.get(topic, False) == is_paused:
        return False
    with changing(store.engine) as connection:
        store.pause(topic, is_paused, connection)
        audit.record(connection, actor, "jobs pause" if is_paused else "jobs resume", topic)
    return True


def _locked(
    store: SqlJobStore,
    connection: Connection,
    letters: Sequence[DeadLetter],
    refusals: list[Refusal],
) -> list[tuple[DeadLetter, JobId, JobStatus | None]]:
    """Return the letters that are still Pending, with their jobs and where these stand; None when they are gone."""
    kept = DeadLetters(store.engine)
    ids = {(letter.engine, letter.row_key): _job_of(letter) for letter in letters}
    statuses = locked_statuses(store.engine, connection, sorted({job_id for job_id in ids.values() if job_id}))
    pending = {(letter.engine, letter.row_key): letter for letter in kept.lock_pending(connection, letters)}
    found: list[tuple[DeadLetter, JobId, JobStatus | None]] = []
    for key, job_id in ids.items():
        if job_id is None:
            refusals.append(_not_a_job(*key))
        elif key in pending:
            found.append((pending[key], job_id, statuses.get(job_id)))
        else:
            refusals.append(no_longer_pending(kept.get(*key, connection), *key))
    return found


def _retry_on(store: SqlJobStore, connection: Connection, ids: Sequence[JobId], actor: str) -> None:
    """Retry jobs that this transaction holds."""
    if ids and store.retry(ids, actor, connection) != set(ids):
        raise JobError("The jobs changed while they were being retried; nothing was changed. Try again.")


def _revive(store: SqlJobStore, connection: Connection, letter: DeadLetter) -> None:
    """Put a job that is gone from the queue back as the dead one it was: same id, attempts counted on.

    What the letter does not tell (priority, limits, unique key) is as for a new job.

    Raises:
        ConfigurationError: nothing tells any more which operation it was.
    """
    job_id = _job_of(letter)
    attempts = History(store.engine).of_item(letter.item_id or "", connection)
    if job_id is None or not attempts:
        raise ConfigurationError(
            f"The job of the dead letter '{letter.row_key}' is gone from the queue and from the history, so what it "
            "ran is not known. Enqueue it anew with the letter's message, then resolve the letter."
        )
    usual = NewJob(topic=letter.original_queue, operation=attempts[-1].operation, payload=letter.original_message)
    values = {
        **{name: getattr(usual, name) for name in _AS_USUAL},
        "id": job_id,
        "status": JobStatus.DEAD.value,
        "attempt": max(letter.dequeue_count, *(entry.attempt or 0 for entry in attempts)),
        "failures": 0,
        "created_at": database_time(connection.dialect),
        "correlation_id": None if letter.correlation_id == letter.item_id else letter.correlation_id,
        "instance_id": None if letter.instance_id == PUBLISHER else letter.instance_id,
        "first_failed_at": letter.first_failure_at,
        "last_failed_at": letter.last_failure_at,
        "last_error": letter.error_message,
    }
    with translated(store.engine, writes=True):
        connection.execute(insert(jobs_table).values(values))


def _require(statuses: dict[JobId, JobStatus], ids: Sequence[JobId], allowed: Sequence[JobStatus], done: str) -> None:
    for job_id in ids:
        if job_id not in statuses:
            raise ConfigurationError(
                f"Job {job_id} is not in the queue; nothing was changed. See what became of it with 'holdfast "
                f"jobs show {job_id}'."
            )
        if statuses[job_id] not in allowed:
            names = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
            raise Conflict(
                f"Job {job_id} is {statuses[job_id]}; nothing was changed. Only jobs that are {names} can be {done}."
            )


def _job_of(letter: DeadLetter) -> JobId | None:
    return job_id_of(letter.item_id) if letter.engine.startswith(ENGINE_PREFIX) else None


def _not_a_job(engine_name: str, row_key: str) -> ConfigurationError:
    return ConfigurationError(
        f"The dead letter '{row_key}' of engine '{engine_name}' names no job, so nothing can be put back. Deal with "
        "it, then use 'holdfast dlq resolve'."
    )
