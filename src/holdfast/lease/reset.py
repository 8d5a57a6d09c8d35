"""What an operator does to a trigger: resets, clone, undo, resume. Each is one guarded, audited write.

A reset re-delivers or skips rows, so it refuses while a live lease is held, raises the fencing token (a worker that was
only asleep cannot commit any more), and first keeps the old document in ``audit/…``. If the process dies between the
two writes, the audit entry stands alone and nothing was changed; the document names the last reset really made.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path

from ..core.cursor import KeysetCursor, parse_cursor
from ..core.errors import ConfigurationError, Conflict, CursorSerializationError, LeaseConflictError
from ..core.names import checked_name
from ..core.types import JsonObject, SourceDescriptor
from . import audit
from . import document as doc
from .audit import AuditEntry as AuditEntry
from .audit import audit_entries as audit_entries
from .conditional_write import ConditionalDocument
from .history import KeptHistory
from .store import SKEW_FOR_TTL_SECONDS, StateStore


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
        ConfigurationError: the file cannot be read as a checkpoint, or is the document of another source.
        LeaseConflictError: a worker holds the lease; stop it first.
    """
    checkpoint = checkpoint_from_file(file, accepted_sources(store, poller_name, source))
    return _reset(store, poller_name, checkpoint, source, "reset-to-checkpoint", by)


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
    entry = audit.new_entry(store, new_poller_name, None, cloned.get("checkpoint", {}), f"clone of {poller_name}", by)
    audit.save(store, entry)
    try:
        store.document(new_poller_name).create(cloned, landed=lambda found, changed, _: found == changed or None)
    except Conflict as error:
        raise ConfigurationError(
            f"Trigger '{new_poller_name}' has state already; nothing was changed. Choose another name."
        ) from error
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
    former = last.before or {}
    before = former.get("checkpoint") or {}
    source = None if doc.fingerprint_of(former) is None else _source_of(former, poller_name)
    return _reset(store, poller_name, _without_time(before), source, f"undo of {last.audit_id}", by)


def adopt(
    store: StateStore,
    poller_name: str,
    source: SourceDescriptor | None,
    history: KeptHistory | None,
    *,
    by: str = "",
) -> AuditEntry:
    """Keep the place although the source was restored or moved: ``history`` is the one that it has now.

    Raises:
        ConfigurationError: there is no place to keep.
        FingerprintMismatchError: the source reads other rows.
        LeaseConflictError: a worker holds the lease, or the trigger is stopped.
    """
    document = store.document(poller_name)
    before = document.read()
    if before is None:
        raise ConfigurationError(f"Trigger '{poller_name}' has no state, so there is no place to keep.")
    checkpoint = before.get("checkpoint") or {}
    entry = audit.new_entry(store, poller_name, before, checkpoint, "adopt", by)
    changed = doc.adopted(
        before,
        None if history is None else history.to_json(checkpoint),
        poller_name=poller_name,
        source=source,
        reset_id=entry.audit_id,
        skew_margin=_margin(store),
        now=document.time.now(),
    )
    audit.save(store, entry)
    _write(document, before, changed)
    return entry


def resume(store: StateStore, poller_name: str, *, by: str = "") -> AuditEntry | None:
    """Let a trigger that was stopped run again from its checkpoint; None when it was not stopped.

    Raises:
        LeaseConflictError: its document changed at the same moment; nothing was resumed.
    """
    document = store.document(poller_name)
    before = document.read()
    if before is None or doc.stopped_because(before) is None:
        return None
    entry = audit.new_entry(store, poller_name, before, before.get("checkpoint", {}), "resume", by)
    audit.save(store, entry)
    _write(document, before, doc.resumed(before))
    return entry


def accepted_sources(store: StateStore, poller_name: str, source: SourceDescriptor | None) -> set[str]:
    """Return the fingerprints of documents that fit a poller: its source's, else that of its state; empty: any."""
    if source is not None:
        return {source.fingerprint, *source.legacy_fingerprints}
    view = store.read(poller_name)
    stored = None if view is None else doc.fingerprint_of(view.document)
    return set() if stored is None else {stored}


def checkpoint_from_file(file: Path, accepted: Collection[str] = ()) -> JsonObject:
    """Return the checkpoint kept in a file; ``accepted`` are the fingerprints a whole document may have.

    Raises:
        ConfigurationError: the file cannot be read as a checkpoint, or is of another source; the message says why.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        document = content.get("document", content)  # the whole answer of 'holdfast trigger show --json' will do
        checkpoint = document.get("checkpoint", document)
        parse_cursor(checkpoint.get("cursor"))
    except OSError as error:
        raise ConfigurationError(
            f"The checkpoint file '{file}' cannot be read: {error.strerror}. Name a file that 'holdfast trigger show "
            "--json' has written, or use reset-to-cursor."
        ) from error
    except (ValueError, AttributeError, CursorSerializationError) as error:
        raise ConfigurationError(
            f"'{file}' is not a checkpoint: {error}. It must hold a state document, as 'holdfast trigger show --json' "
            "prints it, or its checkpoint part."
        ) from error
    if "cursor" not in checkpoint:
        raise ConfigurationError(
            f"'{file}' holds no cursor, so it is not a checkpoint. Use reset-to-beginning to start over."
        )
    written_by = doc.fingerprint_of(document)
    if accepted and written_by is not None and written_by not in accepted:
        raise ConfigurationError(
            f"'{file}' is the document of another source ({document.get('poller_name')}, fingerprint {written_by}), so "
            "its checkpoint may point at other rows. Use a document of this trigger, or reset-to-cursor."
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
    document = store.document(poller_name)
    before = document.read()
    entry = audit.new_entry(store, poller_name, before, checkpoint, command, by)
    changed = doc.reset(
        before,
        checkpoint,
        poller_name=poller_name,
        source=source,
        reset_id=entry.audit_id,
        skew_margin=_margin(store),
        now=document.time.now(),
    )
    audit.save(store, entry)
    _write(document, before, changed)
    return entry


def _margin(store: StateStore) -> timedelta:
    return store.skew_margin(SKEW_FOR_TTL_SECONDS)


def _write(document: ConditionalDocument, before: doc.Document | None, changed: doc.Document) -> None:
    try:
        if before is None:
            document.create(changed, landed=_has_landed)
        else:
            document.apply(lambda found, now: changed, landed=_has_landed)
    except Conflict as error:
        raise LeaseConflictError(
            f"A worker changed '{document.name}' at the same moment; nothing was changed. Stop the workers and try "
            "again."
        ) from error


def _has_landed(found: doc.Document, changed: doc.Document, base: doc.Document) -> bool | None:
    """Return True when the change is there; workers may have gone on since, so whatever else is found tells nothing."""
    del base
    parts = ("checkpoint", "last_reset_id", "stopped")
    return all(found.get(part) == changed.get(part) for part in parts) or None


def _source_of(document: doc.Document, poller_name: str) -> SourceDescriptor:
    """Return the source that a document was written for, as far as the document tells."""
    newest, stored = str(doc.fingerprint_of(document)), str(document.get("source_fingerprint"))
    former = None if stored == newest else stored
    return SourceDescriptor(name=poller_name, kind="undo", fingerprint=newest, former_fingerprint=former)


def _without_time(checkpoint: JsonObject) -> JsonObject:
    return {key: value for key, value in checkpoint.items() if key != "updated_at"}
