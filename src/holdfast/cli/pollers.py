"""A trigger as an operator sees it: what the application declares under a name, and the state kept under it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from ..app import Holdfast
from ..core.cursor import KeysetCursor
from ..core.errors import ConfigurationError, DbError, UnreadableStateError
from ..core.types import JsonObject
from ..state.document import LeaseView, format_time, stopped_because
from ..state.reset import AuditEntry, audit_entries
from ..state.store import StateStore, StateView
from ..trigger.sources.protocol import SourceAdapter
from .output import shown_time


@runtime_checkable
class CountingSource(SourceAdapter, Protocol):
    """A source that can tell what a change of the checkpoint would deliver."""

    def count_after(self, checkpoint: JsonObject) -> int:
        """Return how many rows lie after ``checkpoint``."""
        ...


@runtime_checkable
class TypableSource(SourceAdapter, Protocol):
    """A source whose cursor a person can type."""

    def cursor_from_text(self, value: str, keys: list[str]) -> KeysetCursor:
        """Return the typed cursor."""
        ...


@dataclass(frozen=True, slots=True)
class Poller:
    """A trigger by its name. ``view`` is None while it has no state; it may have state without being declared."""

    name: str
    hf: Holdfast
    view: StateView | None

    @property
    def store(self) -> StateStore:
        """Return where its state is kept."""
        return self.hf.state

    @property
    def is_declared(self) -> bool:
        """Return whether the application declares it now."""
        return self.name in self.hf.triggers

    def source(self) -> SourceAdapter | None:
        """Return where its changes come from; None when it is not declared.

        Raises:
            DbError: the declaration does not fit the database.
        """
        return self.hf.runner(self.name).source if self.is_declared else None

    @property
    def checkpoint(self) -> JsonObject:
        """Return its checkpoint; empty at the beginning."""
        return {} if self.view is None else self.view.checkpoint

    def last_change(self) -> AuditEntry | None:
        """Return the last change by hand that was really made."""
        made = None if self.view is None else self.view.document.get("last_reset_id")
        return next((entry for entry in audit_entries(self.store, self.name) if entry.audit_id == made), None)


def require_tables(hf: Holdfast) -> None:
    """Check that there is state to look at.

    Raises:
        ConfigurationError: the tables were not created yet.
    """
    missing = hf.pending_migrations()
    if missing:
        raise ConfigurationError(
            f"The tables of Holdfast are missing or out of date ({', '.join(missing)}). Run 'holdfast migrate' first."
        )


def find_poller(hf: Holdfast, name: str) -> Poller:
    """Return the trigger called ``name``.

    Raises:
        ConfigurationError: the application declares none of that name, and none has state.
        UnreadableStateError: its state is corrupt or from a newer version.
    """
    view = hf.state.read(name)
    if view is None and name not in hf.triggers:
        known = ", ".join(all_names(hf)) or "none"
        raise ConfigurationError(f"There is no trigger named '{name}'. Known here: {known}.")
    return Poller(name, hf, view)


def all_names(hf: Holdfast) -> list[str]:
    """Return the names of all triggers that are declared or have state."""
    return sorted({*hf.triggers, *hf.state.pollers()})


def summary(hf: Holdfast, name: str) -> JsonObject:
    """Return what ``trigger list`` tells of one trigger; an unreadable document is told, not raised."""
    try:
        return described_state(Poller(name, hf, hf.state.read(name)))
    except UnreadableStateError as error:
        return {**described_state(Poller(name, hf, None)), "error": str(error)}


def described_state(poller: Poller) -> JsonObject:
    """Return the state as JSON."""
    view = poller.view
    lease = None if view is None else view.lease
    return {
        "name": poller.name,
        "declared": poller.is_declared,
        "lease": described_lease(view, lease),
        "fencing_token": None if lease is None else lease.fencing_token,
        "cursor": poller.checkpoint.get("cursor"),
        "updated_at": poller.checkpoint.get("updated_at"),
        "stopped": None if view is None else stopped_because(view.document),
        "error": None,
    }


def described_lease(view: StateView | None, lease: LeaseView | None) -> JsonObject:
    """Return who holds the lease: ``held``, ``free``, or ``expired`` when a holder ended without releasing it."""
    if view is None or lease is None or lease.owner_id is None:
        return {"state": "free", "owner_id": None, "expires_at": None, "heartbeat_at": None}
    return {
        "state": "held" if view.read_at < lease.expires_at else "expired",
        "owner_id": lease.owner_id,
        "expires_at": format_time(lease.expires_at),
        "heartbeat_at": None if lease.heartbeat_at is None else format_time(lease.heartbeat_at),
    }


def shown_lease(lease: JsonObject) -> str:
    """Return the lease for people."""
    match lease["state"]:
        case "held":
            return f"{lease['owner_id']} until {shown_time(lease['expires_at'])}"
        case "expired":
            return f"ran out at {shown_time(lease['expires_at'])} ({lease['owner_id']})"
    return "free"


def described_source(source: SourceAdapter, view: StateView | None) -> JsonObject:
    """Return what the source is and promises, as JSON."""
    descriptor = source.source_descriptor
    stored = None if view is None else view.document.get("source_fingerprint")
    return {
        "name": descriptor.name,
        "kind": descriptor.kind,
        "fingerprint": descriptor.fingerprint,
        "matches_state": stored in (None, descriptor.fingerprint, *descriptor.legacy_fingerprints),
        "capability": asdict(source.capability()),
    }


def described_audit(entry: AuditEntry) -> dict[str, Any]:
    """Return an audit entry as JSON."""
    return {**asdict(entry), "at": format_time(entry.at)}


def lag_seconds(poller: Poller, source: SourceAdapter) -> float | None:
    """Return the age of the oldest row that waits, 0 when none does, None when it cannot be told."""
    if "lookback" in poller.checkpoint or poller.view is None:
        return None
    try:
        found = source.fetch_changes(poller.checkpoint, 1)
    except DbError:
        return None
    if not found.records:
        return 0.0 if found.caught_up and not found.held_back_by else None
    if found.newest_at is None:
        return None
    return max(0.0, round((poller.view.read_at - found.newest_at).total_seconds(), 3))
