"""Changes that people make to a trigger's checkpoint: each has a row in the audit, and so is under its seals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Engine

from ..core.types import JsonObject
from ..lease.audit import AuditEntry
from ..lease.document import stopped_because
from ..lease.reset import resume
from ..lease.store import StateStore
from ..lease.stores.sql_transaction import TransactionDocuments, are_in
from ..records import audit
from ..records.audited_change import audited_change
from ..records.database import changing


@contextmanager
def audited_state(
    store: StateStore, database: Engine | None, action: str, trigger: str, details: JsonObject
) -> Iterator[StateStore]:
    """Yield the state to change, written down as what the user of this process did.

    Where there is no database with an audit, it is not written down here, only beside the state.

    The row is in the transaction of the change where the state is in the application's database. Elsewhere it is
    written before: a change without a row cannot be, and one that was refused after all has a second row.
    """
    if database is None:
        yield store
        return
    is_in_database = are_in(store.documents, database)
    actor, action = audit.present_user(), f"trigger {action}"
    with audited_change(database, actor, action, trigger, details, is_in_database=is_in_database) as connection:
        yield store if connection is None else store.over(TransactionDocuments.of(store.documents, connection))


def resume_audited(store: StateStore, database: Engine | None, trigger: str) -> AuditEntry | None:
    """Let a trigger that was stopped run again, audited; None when it was not stopped.

    Raises:
        LeaseConflictError: its document changed at the same moment; nothing was resumed.
    """
    view = store.read(trigger)
    if view is None or stopped_because(view.document) is None:
        return None
    with audited_state(store, database, "resume", trigger, {}) as state:
        return resume(state, trigger)


def source_change_audit(database: Callable[[], Engine | None]) -> Callable[[AuditEntry], None]:
    """Return what writes down that a worker began anew because the source has changed, before it does.

    The entry's id is that of the state's own audit; the document names the last one that was really made.
    """

    def record(entry: AuditEntry) -> None:
        engine = database()
        if engine is not None:
            with changing(engine) as connection:
                audit.record(connection, entry.by, f"trigger {entry.command}", entry.poller_name, described(entry))

    return record


def described(entry: AuditEntry) -> JsonObject:
    """Return what the audit says of a change: from where to where, and under which id the whole document is kept."""
    before = (entry.before or {}).get("checkpoint") or {}
    return {"audit_id": entry.audit_id, **moved(before, entry.checkpoint_after)}


def moved(before: JsonObject, after: JsonObject) -> JsonObject:
    """Return from where to where a checkpoint is moved; None stands for the beginning."""
    return {"from": before.get("cursor"), "to": after.get("cursor")}
