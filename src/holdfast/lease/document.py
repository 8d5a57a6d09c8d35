"""The state document and every way it may change. Pure: no I/O, no clock, no randomness.

One document per poller holds its checkpoint and its lease, so that "am I still the holder?" and "record how far I
got" are one compare-and-set. Each function takes the document as it was read and the present store time, and returns
a new document or raises; nothing is ever changed in place, and fields this version does not know are kept.

Rules, each with the exploration in ``tests/lease/test_document_exploration.py`` that shows it:

* [LEASE-1] A live lease is never taken: not before its expiry plus the skew margin has passed; or, where its expiry is
  a wrong clock's, not before its whole length and the margin have passed by the clock of whoever watched it.
* [LEASE-2] Every acquisition raises the fencing token by one; the token never goes down, and leaps ahead once rows of
  the source were taken back.
* [LEASE-3] A released lease is free at once, without the margin.
* [LEASE-4] A live lease tells whose it is: another application is refused as such, and takes over once it is free.
* [FENCE-1] Heartbeat, commit, release and the way back to a former place need owner and token of the present lease.
* [STOP-1] What its holder stopped is taken by nobody until someone resumes or resets it.
* [CHECKPOINT-1] Only a commit under the lease, its holder's way back to a former place, or a reset changes the
  checkpoint; a reset needs the lease to be free.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ..core.errors import (
    FingerprintMismatchError,
    LeaseConflictError,
    LostLeaseError,
    OtherApplicationError,
    StoppedError,
    UnreadableStateError,
)
from ..core.types import FencingToken, JsonObject, JsonValue, OwnerId, SourceDescriptor

VERSION = 1
TOKENS_LEFT_OUT = 1_000_000
"""How far the next token is ahead once state has gone back: more than were given out in what was taken back."""
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

    @property
    def extended_at(self) -> datetime:
        """Return when it was taken or extended last, as far as it says."""
        return self.heartbeat_at or self.expires_at


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
        raise _corrupt(name, f"it is not JSON ({error})") from error
    version = document.get("version") if isinstance(document, dict) else None
    if type(version) is int and version > VERSION:
        raise UnreadableStateError(
            f"The state document '{name}' has version {version}, but this Holdfast understands up to {VERSION}. "
            "Nothing was changed. Upgrade Holdfast on this machine."
        )
    if version != VERSION or not isinstance(document.get("checkpoint", {}), dict):
        raise _corrupt(name, "it has no usable version or checkpoint")
    lease_of(document, name)
    checkpoint: Document = document
    return checkpoint


def render(document: Document) -> bytes:
    """Return the bytes to store."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def revision_of(document: Document) -> int:
    """Return what every write of Holdfast's raises."""
    return int(document.get("revision", 0))


def has_landed(found: Document, changed: Document, base: Document | None = None) -> bool:
    """Return whether ``changed`` is what is stored, whatever it was made from: while held, only its holder writes."""
    del base
    return all(found.get(part) == changed.get(part) for part in ("revision", "checkpoint", "lease"))


def deleted(name: str) -> LostLeaseError:
    """Return the error of a holder whose document is not there any more."""
    return LostLeaseError(f"The state document '{name}' was deleted; the lease went with it.")


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
            parse_time(lease["expires_at"]),
            None if beat is None else parse_time(beat),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _corrupt(name, "its lease cannot be read") from error


def check_source(document: Document, source: SourceDescriptor) -> None:
    """Refuse a checkpoint that belongs to another source definition.

    Raises:
        FingerprintMismatchError: the stored fingerprint is none that the source has or had.
    """
    if not is_of_source(document, source):
        name = document.get("poller_name")
        adopt = f"keep its place, as it reads the same rows elsewhere ('holdfast trigger adopt {name}'), "
        raise FingerprintMismatchError(
            f"The source of trigger '{name}' has changed since its checkpoint was written "
            f"(stored fingerprint {fingerprint_of(document)}). Its checkpoint may point at other rows, so nothing runs."
            f" Give the changed trigger a new name, undo the change, {adopt * reads_same_rows(document, source)}or "
            "reset it ('holdfast trigger reset-to-beginning')."
        )


def is_of_source(document: Document, source: SourceDescriptor) -> bool:
    """Return whether a document is one of the source, or of none yet."""
    stored = fingerprint_of(document)
    return stored is None or stored in {source.fingerprint, *source.legacy_fingerprints}


def reads_same_rows(document: Document, source: SourceDescriptor) -> bool:
    """Return whether a document was written for the same table or query, cursor, key and filter, wherever they are."""
    newest = document.get("source")
    if not isinstance(newest, dict) or newest.get("written_with") != document.get("source_fingerprint"):
        return False
    return source.rows_fingerprint is not None and newest.get("rows") == source.rows_fingerprint


def fingerprint_of(document: Document) -> str | None:
    """Return the fingerprint of a document: the newest form it has, where no older release has written it since."""
    former, newest = document.get("source_fingerprint"), document.get("source")
    if isinstance(newest, dict) and newest.get("written_with") == former:
        return str(newest.get("fingerprint"))
    return None if former is None else str(former)


def _of_source(document: Document, source: SourceDescriptor | None) -> Document:
    """Return the document under the source's fingerprint, beside the form that the release before looks for."""
    if source is None:
        return document
    kept = {key: value for key, value in document.items() if key != "source"}
    if source.former_fingerprint is None:
        return {**kept, "source_fingerprint": source.fingerprint}
    both = {"fingerprint": source.fingerprint, "written_with": source.former_fingerprint}
    if source.rows_fingerprint is not None:
        both["rows"] = source.rows_fingerprint
    return {**kept, "source_fingerprint": source.former_fingerprint, "source": both}


def acquire(
    document: Document | None,
    *,
    poller_name: str,
    source: SourceDescriptor | None,
    owner_id: OwnerId,
    ttl: timedelta,
    skew_margin: timedelta,
    now: datetime,
    application: str | None = None,
    outlived: LeaseView | None = None,
) -> Document:
    """Return the document with the lease held by ``owner_id`` for ``application`` [LEASE-1] [LEASE-2].

    ``outlived`` is the lease that was watched for its whole length and a margin, and not extended: its end is that of a
    wrong clock, which would come in years.

    Raises:
        OtherApplicationError: a live lease is another application's [LEASE-4].
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
    base = document if document is not None else empty(poller_name)
    if lease is not None and lease != outlived and lease.is_live(now, skew_margin):
        raise _is_held(lease, poller_name, application_of(base), application)
    token = 1 if lease is None else lease.fencing_token + 1
    stamped = _of_source(base, source)
    if application is not None:
        stamped = {**stamped, "application": application}
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


def commit(
    document: Document,
    holder: Holder,
    checkpoint: JsonObject,
    *,
    ttl: timedelta,
    now: datetime,
    history: JsonObject | None = None,
) -> Document:
    """Return the document with a new checkpoint and the lease extended, in one write [FENCE-1] [CHECKPOINT-1].

    ``history`` is the source's that the checkpoint was made in, where it is known.

    Raises:
        LostLeaseError: the lease belongs to someone else by now.
    """
    lease = {key: value for key, value in _extended(document, holder, ttl, now).items() if key != "progress"}
    fresh = {**_without_failure(document), **({} if history is None else {"history": history})}
    return _revised(fresh, lease=lease, checkpoint={**checkpoint, "updated_at": format_time(now)})


def gone_back(
    document: Document,
    holder: Holder,
    history: JsonObject,
    checkpoint: JsonObject | None,
    *,
    ttl: timedelta,
    now: datetime,
) -> Document:
    """Return the document after rows were taken back: at a former checkpoint unless None, under a token far ahead.

    Those that are left out may have been given out before: tokens go back with the rows where they are kept beside them
    [FENCE-1] [LEASE-2] [CHECKPOINT-1].

    Raises:
        LostLeaseError: the lease belongs to someone else by now.
    """
    lease = _extended(document, holder, ttl, now)
    lease["fencing_token"] += TOKENS_LEFT_OUT
    changes = {} if checkpoint is None else {"checkpoint": {**checkpoint, "updated_at": format_time(now)}}
    return _revised(document, lease=lease, history=history, **changes)


def failed(document: Document, holder: Holder, error: str, *, next_try_at: datetime | None, now: datetime) -> Document:
    """Return the document with why the last delivery failed, and how many have failed in a row [FENCE-1].

    Raises:
        LostLeaseError: the lease belongs to someone else by now.
    """
    require_holder(document, holder)
    return _revised(document, failure=_one_more_failure(document, error, next_try_at, now))


def failed_unheld(
    document: Document,
    error: str,
    *,
    poller_name: str,
    next_try_at: datetime,
    skew_margin: timedelta,
    now: datetime,
) -> Document:
    """Return the document with why nobody could begin a delivery; the lease is taken and given back in the same write.

    Raises:
        LeaseConflictError: someone holds a live lease, or it is stopped.
    """
    freed = _taken_and_freed(document, poller_name, OwnerId("fault"), skew_margin, now)
    return {**freed, "failure": _one_more_failure(document, error, next_try_at, now)}


def _one_more_failure(document: Document, error: str, next_try_at: datetime | None, now: datetime) -> JsonObject:
    count = (failure_of(document) or {}).get("count", 0) + 1
    due = None if next_try_at is None else format_time(next_try_at)
    return {"error": error, "at": format_time(now), "count": count, "next_try_at": due}


def succeeded(document: Document, holder: Holder) -> Document:
    """Return the document without a failure: there was nothing to deliver, and that went well [FENCE-1].

    Raises:
        LostLeaseError: the lease belongs to someone else by now.
    """
    require_holder(document, holder)
    return _revised(_without_failure(document))


def application_of(document: Document) -> str | None:
    """Return the application that held the lease last; None where no version that knows of applications has held it."""
    application = document.get("application")
    return application if isinstance(application, str) else None


def failure_of(document: Document) -> JsonObject | None:
    """Return why the last delivery failed: ``error``, ``at``, ``count`` in a row, ``next_try_at``; None if none did."""
    failure = document.get("failure")
    return failure if isinstance(failure, dict) and isinstance(failure.get("count"), int) else None


def _without_failure(document: Document) -> Document:
    return {key: value for key, value in document.items() if key != "failure"}


def release(document: Document, holder: Holder, *, now: datetime) -> Document:
    """Return the document with the lease free at once; the token stays [FENCE-1] [LEASE-3].

    Raises:
        LostLeaseError: the lease belongs to someone else by now.
    """
    require_holder(document, holder)
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


def stopped_at(document: Document) -> datetime | None:
    """Return when it was stopped, None when it may run or that is not known."""
    stopped = document.get("stopped")
    return parse_time(stopped["at"]) if isinstance(stopped, dict) and "at" in stopped else None


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
    source: SourceDescriptor | None,
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
    base = None if document is None else resumed(document)
    return {
        **_taken_and_freed(base, poller_name, OwnerId("reset"), skew_margin, now, source),
        "checkpoint": {**checkpoint, "updated_at": format_time(now)},
        "last_reset_id": reset_id,
    }


def _taken_and_freed(
    document: Document | None,
    poller_name: str,
    owner_id: OwnerId,
    skew_margin: timedelta,
    now: datetime,
    source: SourceDescriptor | None = None,
) -> Document:
    """Return the document under a higher token, the lease free again: whoever slept since can write no more [LEASE-2].

    Raises:
        LeaseConflictError: someone holds a live lease, or it is stopped.
    """
    held = acquire(
        document,
        poller_name=poller_name,
        source=source,
        owner_id=owner_id,
        ttl=timedelta(0),
        skew_margin=skew_margin,
        now=now,
    )
    return {**held, "lease": {**held["lease"], "owner_id": None}}


def adopted(
    document: Document,
    history: JsonObject | None,
    *,
    poller_name: str,
    source: SourceDescriptor | None,
    reset_id: str,
    skew_margin: timedelta,
    now: datetime,
) -> Document:
    """Return the document at the same checkpoint, for the source and in the history that are there now [CHECKPOINT-1].

    The token is far ahead of any that was given out before a restore [LEASE-2].

    Raises:
        FingerprintMismatchError: the source reads other rows.
        LeaseConflictError: someone holds a live lease, or it is stopped.
    """
    if source is not None and not reads_same_rows(document, source):
        check_source(document, source)
    freed = _taken_and_freed(document, poller_name, OwnerId("adopt"), skew_margin, now, source)
    freed["lease"]["fencing_token"] += TOKENS_LEFT_OUT
    return {**freed, "history": history, "last_reset_id": reset_id}


def begun_anew(document: Document, reset_id: str) -> Document:
    """Return the document at the beginning, for a source that is not the one it was written for [CHECKPOINT-1]."""
    return {**_without_failure(document), "checkpoint": {}, "last_reset_id": reset_id}


def clone(document: Document, new_poller_name: str) -> Document:
    """Return a document for another poller that starts at the same checkpoint, its lease free and its token new."""
    own = ("lease", "revision", "last_reset_id", "stopped", "failure", "history")
    kept = {key: value for key, value in document.items() if key not in own}
    return {**kept, "poller_name": new_poller_name, "revision": 1}


def format_time(moment: datetime) -> str:
    """Return a time as the document keeps it: UTC with microseconds and ``Z``."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def parse_time(text: str) -> datetime:
    """Return a time that a document keeps, in UTC; one without a zone is UTC already."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def empty(poller_name: str) -> Document:
    """Return the document of a poller that has never run: at the beginning, and no lease yet."""
    return {"version": VERSION, "poller_name": poller_name, "checkpoint": {}, "revision": 0}


def _corrupt(name: str, fact: str) -> UnreadableStateError:
    return UnreadableStateError(
        f"The state document '{name}' is corrupt: {fact}. Nothing was changed. Restore it from a backup or an audit "
        "entry, or delete it to start from the beginning."
    )


def _unknown_lease_fields(document: Document) -> JsonObject:
    return {key: value for key, value in (document.get("lease") or {}).items() if key != "progress"}


def _revised(document: Document, **changes: Any) -> Document:
    """Return the document with changes and a higher revision, so that equal bytes are never written twice."""
    return {**document, **changes, "revision": revision_of(document) + 1}


def _is_held(lease: LeaseView, poller_name: str, holding: str | None, asking: str | None) -> LeaseConflictError:
    held = f"held by '{lease.owner_id}' until {format_time(lease.expires_at)} (token {lease.fencing_token})"
    if holding is None or asking is None or holding == asking:
        return LeaseConflictError(
            f"The lease of '{poller_name}' is {held}. It is free again when that holder stops or its lease runs out."
        )
    return OtherApplicationError(
        f"Trigger '{poller_name}' is run by the application '{holding}' ({held}), and this is '{asking}': both would "
        "share one checkpoint, each missing what the other got. Give each of them app_name=…, or stop the other one "
        "to go on where it ends."
    )


def require_holder(document: Document, holder: Holder) -> None:
    """Refuse when the lease is not the holder's [FENCE-1].

    Raises:
        LostLeaseError: it belongs to someone else by now.
    """
    lease = lease_of(document)
    if lease is None or lease.owner_id != holder.owner_id or lease.fencing_token != holder.fencing_token:
        found = "nobody" if lease is None else f"'{lease.owner_id}' with token {lease.fencing_token}"
        raise LostLeaseError(
            f"The lease of '{document.get('poller_name')}' is no longer held by '{holder.owner_id}' with token "
            f"{holder.fencing_token} but by {found}. Nothing was written; the present holder delivers what is open."
        )


def _extended(document: Document, holder: Holder, ttl: timedelta, now: datetime) -> JsonObject:
    require_holder(document, holder)
    return {**document["lease"], "heartbeat_at": format_time(now), "expires_at": format_time(now + ttl)}
