"""Every way the registry document may change. Pure: no I/O, no clock, no randomness.

One document holds what an application's engines share and the lock under which it may be changed, so that "do I still
hold the lock?" and "write this" are one compare-and-set. Each function takes the document as it was read and the
present store time, and returns a new document or raises; nothing is changed in place, and fields this version does not
know are kept. A command that has nothing to do returns the very document it was given.

Rules, each with the exploration in ``tests/engines/test_registry_document.py`` that shows it:

* [REGISTRY-1] A valid lock is never taken by another job: not before its end plus the skew margin has passed; or, where
  its end is a wrong clock's, not before its whole duration has passed by the clock of whoever watched it.
* [REGISTRY-2] Only the holder of a valid lock changes or extends: the job that has it, by the token of its acquisition.
* [REGISTRY-3] Every write raises ``registryVersion``, so that no two writes are made on the same version.
* [REGISTRY-4] A lock is released by its holder only, or by an operator who named it, and is then free at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..core.errors import RegistryLocked
from ..core.types import FencingToken, JsonObject
from ..lease.document import format_time
from .registry_shape import (
    DEFAULT_LOCK_SECONDS,
    Document,
    EngineTablesConfig,
    LockView,
    checked_duration,
    checked_fields,
    checked_job_id,
    lock_of,
    refuse_reserved,
    version_of,
)

REMEMBERED_WRITES = 8


@dataclass(frozen=True, slots=True)
class Holder:
    """Who acts: a job, and the token of its acquisition.

    Without a token the job's name alone decides, as the standard has it: that is for operations whose steps run in
    several processes, and cannot tell an earlier acquisition of the same job from the present one.
    """

    job_id: str
    fencing_token: FencingToken | None = None


def initial(
    tables: EngineTablesConfig | None = None, state: Mapping[str, object] | None = None, *, has_tables: bool = True
) -> Document:
    """Return a new registry: version 1, the lock free; that of an instance has no ``engineTablesConfig``.

    Raises:
        ConfigurationError: ``state`` is not JSON, or names a field that the registry keeps itself.
    """
    return {
        "registryVersion": 1,
        "instanceLock": _free_lock({"lockDurationSeconds": checked_duration(DEFAULT_LOCK_SECONDS)}),
        **({"engineTablesConfig": (tables or EngineTablesConfig()).as_json()} if has_tables else {}),
        **checked_fields(state or {}),
    }


def require_free(
    document: Document,
    *,
    now: datetime,
    skew_margin: timedelta = timedelta(),
    job_id: str | None = None,
    outlived: LockView | None = None,
) -> None:
    """Refuse when a valid lock is another job's than ``job_id`` [REGISTRY-1].

    ``outlived`` is the lock that was watched for its whole duration and not extended: its end is a wrong clock's.

    Raises:
        RegistryLocked: it is; the message names the job and until when.
    """
    lock = lock_of(document)
    if lock.job_id not in ("", job_id) and lock != outlived and lock.is_valid(now, skew_margin):
        raise _locked_by(lock)


def acquire_lock(
    document: Document,
    job_id: str,
    *,
    now: datetime,
    duration_seconds: float = DEFAULT_LOCK_SECONDS,
    skew_margin: timedelta = timedelta(),
    outlived: LockView | None = None,
) -> Document:
    """Return the registry locked by ``job_id`` [REGISTRY-1].

    A job that has the lock already keeps it with its token, and never for a shorter time than before, but for an end
    that a wrong clock gave it. Every other acquisition has a new token: the version it was made at.

    Raises:
        RegistryLocked: another job has a valid lock.
        ConfigurationError: the job's name or the duration cannot be used.
    """
    checked_job_id(job_id)
    require_free(document, now=now, skew_margin=skew_margin, job_id=job_id, outlived=outlived)
    lock, seconds = lock_of(document), checked_duration(duration_seconds)
    until, token = now + timedelta(seconds=seconds), FencingToken(version_of(document) + 1)
    if lock.job_id == job_id and lock.is_valid(now):
        until, token = _later(until, lock, now), lock.fencing_token or token
    return _revised(
        document,
        instanceLock={
            **_lock_part(document),
            "lockJobId": job_id,
            "lockDurationSeconds": seconds,
            "lockUntilUtc": format_time(until),
            "lockFencingToken": token,
        },
    )


def extend_lock(
    document: Document, holder: Holder, *, now: datetime, duration_seconds: float | None = None
) -> Document:
    """Return the registry with the lock's end a whole duration from now [REGISTRY-2].

    It is never moved back, but from where only a wrong clock can have put it.

    Raises:
        RegistryLocked: the lock is not the holder's, or has run out.
    """
    lock = _require_valid(document, holder, now)
    seconds = checked_duration(lock.duration_seconds if duration_seconds is None else duration_seconds)
    until = _later(now + timedelta(seconds=seconds), lock, now)
    extended = {"lockDurationSeconds": seconds, "lockUntilUtc": format_time(until)}
    return _revised(document, instanceLock={**_lock_part(document), **extended})


def change(
    document: Document,
    holder: Holder,
    changes: Mapping[str, object],
    *,
    now: datetime,
    remove: Collection[str] = (),
) -> Document:
    """Return the registry with each named field set to its new value, and those in ``remove`` gone [REGISTRY-2].

    Raises:
        RegistryLocked: the lock is not the holder's, or has run out.
        ConfigurationError: a value is not JSON, or a field is one that the registry keeps itself.
    """
    _require_valid(document, holder, now)
    refuse_reserved(remove)
    kept = {name: value for name, value in document.items() if name not in remove}
    return _revised({**kept, **checked_fields(changes)})


def configure_tables(document: Document, holder: Holder, tables: EngineTablesConfig, *, now: datetime) -> Document:
    """Return the registry with other ``engineTablesConfig``; fields there that are not known are kept [REGISTRY-2].

    Raises:
        RegistryLocked: the lock is not the holder's, or has run out.
    """
    _require_valid(document, holder, now)
    return _revised(document, engineTablesConfig={**(document.get("engineTablesConfig") or {}), **tables.as_json()})


def release_lock(document: Document, holder: Holder) -> Document:
    """Return the registry with the lock free at once; the same document when nobody has it [REGISTRY-4].

    A lock that has run out can still be released by its job, as long as no other has taken it.

    Raises:
        RegistryLocked: the lock is another job's, or a later acquisition of the same job.
    """
    lock = lock_of(document)
    if not lock.job_id:
        return document
    _require_holder(lock, holder)
    return _revised(document, instanceLock=_free_lock(_lock_part(document)))


def force_unlock(document: Document, seen: LockView) -> Document:
    """Return the registry with the lock taken from its job by an operator, who has ``seen`` whose it is [REGISTRY-4].

    The job can change nothing from then on. The same document when nobody has the lock.

    Raises:
        RegistryLocked: the lock is no longer the one that was seen.
    """
    lock = lock_of(document)
    if not lock.job_id:
        return document
    if (lock.job_id, lock.fencing_token) != (seen.job_id, seen.fencing_token):
        raise _locked_by(lock)
    return _revised(document, instanceLock=_free_lock(_lock_part(document)))


def require_lock(document: Document, holder: Holder) -> None:
    """Refuse when the lock is not the holder's, run out or not.

    Raises:
        RegistryLocked: it is another job's or nobody's.
    """
    _require_holder(lock_of(document), holder)


def stamped(document: Document, write_id: str) -> Document:
    """Return the registry with ``write_id`` as its latest write, by which its writer can find it again."""
    return {**document, "recentWriteIds": [*_recent_writes(document), write_id][-REMEMBERED_WRITES:]}


def has_landed(found: Document, changed: Document, base: Document) -> bool | None:
    """Return whether the write that made ``changed`` of ``base`` is in the registry that was found.

    None when it is not known any more: so many writes were made since that it may have been forgotten.
    """
    recent, made_since = _recent_writes(found), version_of(found) - version_of(base)
    if _recent_writes(changed)[-1] in recent:
        return True
    return False if made_since <= max(1, len(recent)) else None


def no_registry(name: str) -> RegistryLocked:
    """Return the error of a writer where there is no registry."""
    return RegistryLocked(f"There is no registry '{name}', so nobody has its lock. 'holdfast registry init' makes one.")


def _require_valid(document: Document, holder: Holder, now: datetime) -> LockView:
    lock = lock_of(document)
    _require_holder(lock, holder)
    if not lock.is_valid(now):
        raise RegistryLocked(
            f"The registry's lock of '{holder.job_id}' ran out at {_end_of(lock)}. Nothing was written. Lock it again.",
            holder_job_id=lock.job_id,
            locked_until=lock.until,
        )
    return lock


def _require_holder(lock: LockView, holder: Holder) -> None:
    if not lock.job_id:
        raise RegistryLocked(
            f"The registry is not locked by '{holder.job_id}', nor by anybody else: its lock was released or taken "
            "away. Nothing was written. Lock it again."
        )
    if lock.job_id != holder.job_id:
        raise _locked_by(lock)
    if holder.fencing_token not in (None, lock.fencing_token):
        raise RegistryLocked(
            f"The registry is locked by '{lock.job_id}' until {_end_of(lock)}, but by a later run of it (token "
            f"{lock.fencing_token}, not {holder.fencing_token}). Nothing was written.",
            holder_job_id=lock.job_id,
            locked_until=lock.until,
        )


def _locked_by(lock: LockView) -> RegistryLocked:
    return RegistryLocked(
        f"The registry is locked by '{lock.job_id}' until {_end_of(lock)}. Nothing was written. It is free again when "
        "that job ends or its lock runs out.",
        holder_job_id=lock.job_id,
        locked_until=lock.until,
    )


def _end_of(lock: LockView) -> str:
    return "?" if lock.until is None else format_time(lock.until)


def _later(until: datetime, lock: LockView, now: datetime) -> datetime:
    return until if lock.until is None or lock.ends_ahead(now) else max(until, lock.until)


def _free_lock(lock: JsonObject) -> JsonObject:
    """Return the lock part with nobody in it, nor a token: a writer who does not know tokens would keep an old one."""
    kept = {name: value for name, value in lock.items() if name != "lockFencingToken"}
    return {**kept, "lockJobId": "", "lockUntilUtc": ""}


def _lock_part(document: Document) -> JsonObject:
    lock: JsonObject = document.get("instanceLock") or {}
    return lock


def _recent_writes(document: Document) -> list[str]:
    recent = document.get("recentWriteIds")
    return recent if isinstance(recent, list) else []


def _revised(document: Document, **changes: Any) -> Document:
    """Return the document with changes and a higher version [REGISTRY-3]."""
    return {**document, **changes, "registryVersion": version_of(document) + 1}
