"""The state document and every way it may change. Pure: no I/O, no clock, no randomness.

One document per poller holds its checkpoint and its lease, so that "am I still the holder?" and "record how far I
got" are one compare-and-set. Each function takes the document as it was read and the present store time, and returns
a new document or raises; nothing is ever changed in place, and fields this version does not know are kept.

Rules, each with the exploration in ``tests/state/test_document_exploration.py`` that shows it:

* [LEASE-1] A live lease is never taken: not before its expiry plus the skew margin has passed.
* [LEASE-2] Every acquisition raises the fencing token by one; the token never goes down.
* [LEASE-3] A released lease is free at once, without the margin.
* [FENCE-1] Heartbeat, commit and release need the owner and the token of the present lease.
* [STOP-1] What its holder stopped is taken by nobody until someone resumes or resets it.
* [CHECKPOINT-1] Only a commit under the lease or a reset changes the checkpoint; a reset needs the lease to be free.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ..core.errors import (
    FingerprintMismatchError,
    LeaseConflictError,
    LostLeaseError,
    StoppedError,
    UnreadableStateError,
)
from ..core.types import FencingToken, JsonObject, JsonValue, OwnerId

VERSION = 1
Document = JsonObject


@dataclass(frozen=True, slots=True)
class LeaseView:
    """The lease part of a document, with its times parsed. ``owner_id`` is None once it was released."""

    owner_id: OwnerId | None
    fencing_token: FencingToken
    expires_at: datetime
    heartbeat_at: datetime | None

    def is_live(self, now: datetime, skew_margin: timedelta) -> bool:
        """Return whether the lease must still be respected: held, and not past expiry plus margin."""
        return self.owner_id is not None and now < self.expires_at + skew_margin


@dataclass(frozen=True, slots=True)
class Holder:
    """Who acts: a session's owner id and the token it was given."""

    owner_id: OwnerId
    fencing_token: FencingToken


def parse(content: bytes, name: str) -> Document:
    """Return the document kept in ``content``.

    Raises:
        UnreadableStateError: it is not a state document, or a newer version wrote it.
    """
    try:
        document = json.loads(content)
    except ValueError as error:
        raise UnreadableStateError(
            f"The state document '{name}' is corrupt: it is not JSON ({error}). Nothing was changed. Restore it from a "
            f"backup or an audit entry, or delete it to start from the beginning."
        ) from error
    version = document.get("version") if isinstance(document, dict) else None
    if type(version) is int and version > VERSION:
        raise UnreadableStateError(
            f"The state document '{name}' has version {version}, but this Holdfast understands up to {VERSION}. "
            "Nothing was changed. Upgrade Holdfast on this machine."
        )
    if version != VERSION or not isinstance(document.get("checkpoint", {}), dict):
        raise UnreadableStateError(
            f"The state document '{name}' is corrupt: it has no usable version or checkpoint. Nothing was changed. "
            "Restore it from a backup or an audit entry, or delete it to start from the beginning."
        )
    lease_of(document, name)
    checkpoint: Document = document
    return checkpoint


def render(document: Document) -> bytes:
    """Return the bytes to store."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def lease_of(document: Document, name: str = "?") -> LeaseView | None:
    """Return the lease, or None when the document never had one.

    Raises:
        UnreadableStateError: the lease part is malformed.
    """
    lease = document.get("lease")
    if lease is None:
        return None
    try:
        owner, token = lease["owner_id"], lease["fencing_token"]
        if not isinstance(token, int) or isinstance(token, bool) or not isinstance(owner, (str, type(None))):
            raise TypeError
        beat = lease.get("heartbeat_at")
        return LeaseView(
            None if owner is None else OwnerId(owner),
            FencingToken(token),
            _parse_time(lease["expires_at"]),
            None if beat is None else _parse_time(beat),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableStateError(
            f"The state document '{name}' is corrupt: its lease cannot be read. Nothing was changed. Restore it from a "
            "backup or an audit entry, or delete it to start from the beginning."
        ) from error


def check_fingerprint(document: Document, accepted: Collection[str]) -> None:
    """Refuse a checkpoint that belongs to another source definition.

    Raises:
        FingerprintMismatchError: the stored fingerprint is none of ``accepted``.
    """
    stored = document.get("source_fingerprint")
    if stored is not None and stored not in accepted:
        raise FingerprintMismatchError(
            f"The source of trigger '{document.get('poller_name')}' has changed since its checkpoint was written "
            f"(stored fingerprint {stored}). Its checkpoint may point at other rows, so nothing runs. Give the changed "
            "trigger a new name, undo the change, or reset it ('holdfast trigger reset-to-beginning')."
        )


def acquire(
    document: Document | None,
    *,
    poller_name: str,
    fingerprint: str | None,
    owner_id: OwnerId,
    ttl: timedelta,
    skew_margin: timedelta,
    now: datetime,
) -> Document:
    """Return the document with the lease held by ``owner_id`` [LEASE-1] [LEASE-2].

    Raises:
        LeaseConflictError: someone holds a live lease.
        StoppedError: its holder stopped it, and nobody has resumed it [STOP-1].
    """
    lease = None if document is None else lease_of(document, poller_name)
    stopped = None if document is None else stopped_because(document)
    if stopped is not None:
        raise StoppedError(
            f"Trigger '{poller_name}' is stopped: {stopped.rstrip('.')}. Run 'holdfast trigger resume {poller_name}' "
            "when that is dealt with."
        )
    _refuse_live_lease(lease, poller_name, now, skew_margin)
    base = document if document is not None else empty(poller_name)
    token = 1 if lease is None else lease.fencing_token + 1
    stamped = base if fingerprint is None else {**base, "source_fingerprint": fingerprint}
    return _revised(
        stamped,
        lease={
            **_unknown_lease_fields(base),
            "owner_id": owner_id,
            "fencing_token": token,
            "acquired_at": format_time(now),
            "heartbeat_at": format_time(now),
            "expires_at": format_time(now + ttl),
        },
    )


def heartbeat(
    document: Document, holder: Holder, *, ttl: timedelta, now: datetime, progress: JsonValue = None
) -> Document:
    """Return the document with the lease extended, and with what the handler says of its progress [FENCE-1].

    Raises:
        LostLeaseError: the lease belongs to someone else by now.
    """
    lease = _extended(document, holder, ttl, now)
    return _revised(document, lease=lease if progress is None else {**lease, "progress": progress})


def commit(document: Document, holder: Holder, checkpoint: JsonObject, *, ttl: timedelta, now: datetime) -> Document:
    """Return the document with a new checkpoint and the lease extended, in one write [FENCE-1] [CHECKPOINT-1].

    Raises:
        LostLeaseError: the lease belongs to someone else by now.
    """
    lease = {key: value for key, value in _extended(document, holder, ttl, now).items() if key != "progress"}
    return _revised(document, lease=lease, checkpoint={**checkpoint, "updated_at": format_time(now)})


def release(document: Document, holder: Holder, *, now: datetime) -> Document:
    """Return the document with the lease free at once; the token stays [FENCE-1] [LEASE-3].

    Raises:
        LostLeaseError: the lease belongs to someone else by now.
    """
    _check_holder(document, holder)
    return _revised(document, lease={**document["lease"], "owner_id": None, "expires_at": format_time(now)})


def stop(document: Document, holder: Holder, reason: str, *, now: datetime) -> Document:
    """Return the document with the lease free, and nobody to take it until someone resumes it [FENCE-1] [STOP-1].

    Raises:
        LostLeaseError: the lease belongs to someone else by now.
    """
    return {**release(document, holder, now=now), "stopped": {"reason": reason, "at": format_time(now)}}


def resumed(document: Document) -> Document:
    """Return the document as one that may be run again, from the checkpoint it has."""
    return _revised({key: value for key, value in document.items() if key != "stopped"})


def stopped_because(document: Document) -> str | None:
    """Return why it was stopped, None when it may run."""
    stopped = document.get("stopped")
    if stopped is None:
        return None
    return str(stopped.get("reason")) if isinstance(stopped, dict) else str(stopped)


def reset(
    document: Document | None,
    checkpoint: JsonObject,
    *,
    poller_name: str,
    fingerprint: str | None,
    reset_id: str,
    skew_margin: timedelta,
    now: datetime,
) -> Document:
    """Return the document at another checkpoint, the lease taken and given back in the same write [CHECKPOINT-1].

    The token rises, so a holder that was only asleep can no longer commit [LEASE-2]. ``reset_id`` stays in the document
    as ``last_reset_id``, which tells that this reset was really made.

    Raises:
        LeaseConflictError: someone holds a live lease.
    """
    held = acquire(
        None if document is None else resumed(document),
        poller_name=poller_name,
        fingerprint=fingerprint,
        owner_id=OwnerId("reset"),
        ttl=timedelta(0),
        skew_margin=skew_margin,
        now=now,
    )
    return {
        **held,
        "lease": {**held["lease"], "owner_id": None},
        "checkpoint": {**checkpoint, "updated_at": format_time(now)},
        "last_reset_id": reset_id,
    }


def clone(document: Document, new_poller_name: str) -> Document:
    """Return a document for another poller that starts at the same checkpoint, its lease free and its token new."""
    own = ("lease", "revision", "last_reset_id", "stopped")
    kept = {key: value for key, value in document.items() if key not in own}
    return {**kept, "poller_name": new_poller_name, "revision": 1}


def format_time(moment: datetime) -> str:
    """Return a time as the document keeps it: UTC with microseconds and ``Z``."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def _parse_time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def empty(poller_name: str) -> Document:
    """Return the document of a poller that has never run: at the beginning, and no lease yet."""
    return {"version": VERSION, "poller_name": poller_name, "checkpoint": {}, "revision": 0}


def _unknown_lease_fields(document: Document) -> JsonObject:
    return {key: value for key, value in (document.get("lease") or {}).items() if key != "progress"}


def _revised(document: Document, **changes: Any) -> Document:
    """Return the document with changes and a higher revision, so that equal bytes are never written twice."""
    return {**document, **changes, "revision": int(document.get("revision", 0)) + 1}


def _refuse_live_lease(lease: LeaseView | None, poller_name: str, now: datetime, skew_margin: timedelta) -> None:
    if lease is not None and lease.is_live(now, skew_margin):
        raise LeaseConflictError(
            f"The lease of '{poller_name}' is held by '{lease.owner_id}' until "
            f"{format_time(lease.expires_at)} (token {lease.fencing_token}). It is free again when that holder stops "
            "or its lease runs out."
        )


def _check_holder(document: Document, holder: Holder) -> None:
    lease = lease_of(document)
    if lease is None or lease.owner_id != holder.owner_id or lease.fencing_token != holder.fencing_token:
        found = "nobody" if lease is None else f"'{lease.owner_id}' with token {lease.fencing_token}"
        raise LostLeaseError(
            f"The lease of '{document.get('poller_name')}' is no longer held by '{holder.owner_id}' with token "
            f"{holder.fencing_token} but by {found}. Nothing was written; the present holder delivers what is open."
        )


def _extended(document: Document, holder: Holder, ttl: timedelta, now: datetime) -> JsonObject:
    _check_holder(document, holder)
    return {**document["lease"], "heartbeat_at": format_time(now), "expires_at": format_time(now + ttl)}
