"""What was done to a trigger's checkpoint other than by delivering: who, when, how, and what was there before."""

from __future__ import annotations

import getpass
import json
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Protocol

from ..core.clock import Clock, new_id
from ..core.errors import ConfigurationError, UnreadableStateError
from ..core.names import checked_name
from ..core.types import JsonObject
from . import document as doc
from .documents import DocumentStore


class AuditedStore(Protocol):
    """A store of state documents, as far as its audit needs to know it."""

    documents: DocumentStore
    app_name: str
    clock: Clock


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


def audit_entries(store: AuditedStore, poller_name: str) -> list[AuditEntry]:
    """Return every change that was no delivery, the oldest first."""
    names = store.documents.list(_audit_prefix(store, poller_name))
    return [_load(store, name) for name in names]


def new_entry(
    store: AuditedStore,
    poller_name: str,
    before: doc.Document | None,
    checkpoint: JsonObject,
    command: str,
    by: str,
) -> AuditEntry:
    """Return an entry of this moment, with an id of its own."""
    at = store.clock.now()
    audit_id = f"{at:%Y%m%dT%H%M%S%f}-{new_id(8)}"
    return AuditEntry(audit_id, at, by or _present_user(), command, poller_name, before, checkpoint)


def save(store: AuditedStore, entry: AuditEntry) -> None:
    """Keep an entry; it stands for a change that was made once the document names it as its ``last_reset_id``."""
    content = asdict(entry) | {"at": doc.format_time(entry.at)}
    name = f"{_audit_prefix(store, entry.poller_name)}{entry.audit_id}.json"
    store.documents.create(name, json.dumps(content, ensure_ascii=False).encode())


def _audit_prefix(store: AuditedStore, poller_name: str) -> str:
    return f"audit/{store.app_name}/{checked_name('The trigger name', poller_name)}/"


def _load(store: AuditedStore, name: str) -> AuditEntry:
    snapshot = store.documents.read(name)
    if snapshot is None:
        raise ConfigurationError(f"The audit entry '{name}' was deleted while it was read. Try again.")
    try:
        content = json.loads(snapshot.content)
        known = {field.name: content[field.name] for field in fields(AuditEntry)}
        return AuditEntry(**known | {"at": datetime.fromisoformat(content["at"])})
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableStateError(
            f"The audit entry '{name}' is damaged. Nothing was changed. Delete it to go on without it."
        ) from error


def _present_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
