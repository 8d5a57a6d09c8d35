"""What an operator does to a trigger: resets, clone, undo, resume. Each is one guarded, audited write.

A reset re-delivers or skips rows, so it refuses while a live lease is held, raises the fencing token (a worker that was
only asleep cannot commit any more), and first keeps the old document in ``audit/…``. If the process dies between the
two writes, the audit entry stands alone and nothing was changed; the document names the last reset really made.
"""

from __future__ import annotations

import getpass
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ..core.clock import new_id
from ..core.cursor import KeysetCursor, parse_cursor
from ..core.errors import (
    Ambiguous,
    ConfigurationError,
    Conflict,
    CursorSerializationError,
    LeaseConflictError,
    UnreadableStateError,
)
from ..core.names import checked_name
from ..core.types import JsonObject, SourceDescriptor
from . import document as doc
from .documents import Snapshot
from .store import StateStore

_SKEW_FOR_TTL_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who moved a checkpoint, when, how, and what was there before."""

    audit_id: str
    at: datetime
    by: str
    command: str
    poller_name: str
    before: doc.Document | None
    checkpoint_after: JsonObject


def reset_to_beginning(
    store: StateStore, poller_name: str, source: SourceDescriptor | None, *, by: str = ""
) -> AuditEntry:
    """Deliver every row again.

    Raises:
        LeaseConflictError: a worker holds the lease; stop it first.
    """
    return _reset(store, poller_name, {}, source, "reset-to-beginning", by)


def reset_to_cursor(
    store: StateStore,
    poller_name: str,
    cursor: KeysetCursor,
    source: SourceDescriptor | None,
    *,
    by: str = "",
) -> AuditEntry:
    """Continue behind a given cursor value and key.

    Raises:
        LeaseConflictError: a worker holds the lease; stop it first.
    """
    return _reset(store, poller_name, {"cursor": cursor.to_json()}, source, "reset-to-cursor", by)


def reset_to_checkpoint(
    store: StateStore, poller_name: str, file: Path, source: SourceDescriptor | None, *, by: str = ""
) -> AuditEntry:
    """Continue at the checkpoint kept in a file: a whole state document or its checkpoint part.

    Raises:
        ConfigurationError: the file cannot be read as a checkpoint.
        LeaseConflictError: a worker holds the lease; stop it first.
    """
    return _reset(store, poller_name, checkpoint_from_file(file), source, "reset-to-checkpoint", by)


def clone_checkpoint(store: StateStore, poller_name: str, new_poller_name: str, *, by: str = "") -> AuditEntry:
    """Let another poller start at this one's checkpoint.

    Raises:
        ConfigurationError: there is nothing to clone, or the new name has state already.
    """
    checked_name("The trigger name", new_poller_name)
    view = store.read(poller_name)
    if view is None:
        raise ConfigurationError(
            f"Trigger '{poller_name}' has no state to clone. 'holdfast trigger list' shows those that have."
        )
    cloned = doc.clone(view.document, new_poller_name)
    entry = _new_entry(store, new_poller_name, None, cloned.get("checkpoint", {}), f"clone of {poller_name}", by)
    _save(store, entry)
    name = store.document_name(new_poller_name)
    try:
        store.documents.create(name, doc.render(cloned))
    except Conflict as error:
        raise ConfigurationError(
            f"Trigger '{new_poller_name}' has state already; nothing was changed. Choose another name."
        ) from error
    except Ambiguous:
        found = store.documents.read(name)
        if found is None or found.content != doc.render(cloned):
            raise
    return entry


def undo(store: StateStore, poller_name: str, *, by: str = "") -> AuditEntry:
    """Put back the checkpoint that was there before the last change by hand.

    Rows that were delivered since may be delivered again; none is skipped that was not delivered before the change. An
    undo is itself a change, so undoing twice gives the changed checkpoint back.

    Raises:
        ConfigurationError: nothing was changed by hand.
        LeaseConflictError: a worker holds the lease; stop it first.
    """
    view = store.read(poller_name)
    made = None if view is None else view.document.get("last_reset_id")
    last = next((entry for entry in audit_entries(store, poller_name) if entry.audit_id == made), None)
    if last is None:
        raise ConfigurationError(f"There is nothing to undo for trigger '{poller_name}': it was never reset.")
    before = (last.before or {}).get("checkpoint") or {}
    fingerprint = (last.before or {}).get("source_fingerprint")
    source = None if fingerprint is None else SourceDescriptor(name=poller_name, kind="undo", fingerprint=fingerprint)
    return _reset(store, poller_name, _without_time(before), source, f"undo of {last.audit_id}", by)


def resume(store: StateStore, poller_name: str, *, by: str = "") -> AuditEntry | None:
    """Let a trigger that was stopped run again from its checkpoint; None when it was not stopped.

    Raises:
        LeaseConflictError: its document changed at the same moment; nothing was resumed.
    """
    name = store.document_name(poller_name)
    snapshot = store.documents.read(name)
    before = None if snapshot is None else doc.parse(snapshot.content, name)
    if before is None or doc.stopped_because(before) is None:
        return None
    entry = _new_entry(store, poller_name, before, before.get("checkpoint", {}), "resume", by)
    _save(store, entry)
    _write(store, name, snapshot, doc.resumed(before))
    return entry


def audit_entries(store: StateStore, poller_name: str) -> list[AuditEntry]:
    """Return every change by hand, the oldest first."""
    names = store.documents.list(_audit_prefix(store, poller_name))
    return [_load(store, name) for name in names]


def checkpoint_from_file(file: Path) -> JsonObject:
    """Return the checkpoint kept in a file.

    Raises:
        ConfigurationError: the file cannot be read as a checkpoint; the message says why.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        document = content.get("document", content)  # the whole answer of 'holdfast trigger show --json' will do
        checkpoint = document.get("checkpoint", document)
        parse_cursor(checkpoint.get("cursor"))
    except OSError as error:
        raise ConfigurationError(f"The checkpoint file '{file}' cannot be read: {error.strerror}.") from error
    except (ValueError, AttributeError, CursorSerializationError) as error:
        raise ConfigurationError(
            f"'{file}' is not a checkpoint: {error}. It must hold a state document, as 'holdfast trigger show --json' "
            "prints it, or its checkpoint part."
        ) from error
    if "cursor" not in checkpoint:
        raise ConfigurationError(
            f"'{file}' holds no cursor, so it is not a checkpoint. Use reset-to-beginning to start over."
        )
    return _without_time(checkpoint)


def _reset(
    store: StateStore,
    poller_name: str,
    checkpoint: JsonObject,
    source: SourceDescriptor | None,
    command: str,
    by: str,
) -> AuditEntry:
    name = store.document_name(poller_name)
    snapshot = store.documents.read(name)
    before = None if snapshot is None else doc.parse(snapshot.content, name)
    now = (snapshot.store_time if snapshot else None) or store.clock.now()
    entry = _new_entry(store, poller_name, before, checkpoint, command, by)
    changed = doc.reset(
        before,
        checkpoint,
        poller_name=poller_name,
        fingerprint=None if source is None else source.fingerprint,
        reset_id=entry.audit_id,
        skew_margin=_margin(store),
        now=now,
    )
    _save(store, entry)
    _write(store, name, snapshot, changed)
    return entry


def _margin(store: StateStore) -> timedelta:
    return store.skew_margin(_SKEW_FOR_TTL_SECONDS)


def _write(store: StateStore, name: str, snapshot: Snapshot | None, changed: doc.Document) -> None:
    try:
        if snapshot is None:
            store.documents.create(name, doc.render(changed))
        else:
            store.documents.replace(name, doc.render(changed), snapshot.etag)
    except Conflict as error:
        raise LeaseConflictError(
            f"A worker changed '{name}' at the same moment; nothing was changed. Stop the workers and try again."
        ) from error
    except Ambiguous:
        found = store.documents.read(name)
        stored = {} if found is None else doc.parse(found.content, name)
        if any(stored.get(part) != changed.get(part) for part in ("checkpoint", "last_reset_id", "stopped")):
            raise


def _audit_prefix(store: StateStore, poller_name: str) -> str:
    return f"audit/{store.app_name}/{checked_name('The trigger name', poller_name)}/"


def _new_entry(
    store: StateStore,
    poller_name: str,
    before: doc.Document | None,
    checkpoint: JsonObject,
    command: str,
    by: str,
) -> AuditEntry:
    at = store.clock.now()
    audit_id = f"{at:%Y%m%dT%H%M%S%f}-{new_id(8)}"
    return AuditEntry(audit_id, at, by or _present_user(), command, poller_name, before, checkpoint)


def _save(store: StateStore, entry: AuditEntry) -> None:
    content: dict[str, Any] = {
        "audit_id": entry.audit_id,
        "at": doc.format_time(entry.at),
        "by": entry.by,
        "command": entry.command,
        "poller_name": entry.poller_name,
        "before": entry.before,
        "checkpoint_after": entry.checkpoint_after,
    }
    name = f"{_audit_prefix(store, entry.poller_name)}{entry.audit_id}.json"
    store.documents.create(name, json.dumps(content, ensure_ascii=False).encode())


def _load(store: StateStore, name: str) -> AuditEntry:
    snapshot = store.documents.read(name)
    if snapshot is None:
        raise ConfigurationError(f"The audit entry '{name}' was deleted while it was read. Try again.")
    try:
        content = json.loads(snapshot.content)
        return AuditEntry(
            content["audit_id"],
            datetime.fromisoformat(content["at"]),
            content["by"],
            content["command"],
            content["poller_name"],
            content["before"],
            content["checkpoint_after"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableStateError(
            f"The audit entry '{name}' is damaged. Nothing was changed. Delete it to go on without it."
        ) from error


def _without_time(checkpoint: JsonObject) -> JsonObject:
    return {key: value for key, value in checkpoint.items() if key != "updated_at"}


def _present_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
