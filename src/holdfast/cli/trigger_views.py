"""A trigger as an operator sees it: what the application declares under a name, and the state kept under it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, runtime_checkable

from ..app import Holdfast
from ..core.cursor import KeysetCursor
from ..core.errors import ConfigurationError, DbError, RestoredSourceError, UnreadableStateError
from ..core.types import JsonObject
from ..decorator.trigger_names import BoundTrigger, bound_triggers
from ..lease.document import LeaseView, application_of, failure_of, format_time, is_of_source, stopped_because
from ..lease.reset import AuditEntry, audit_entries
from ..lease.store import StateStore, StateView
from ..trigger.source_history import SourceHistory
from ..trigger.sources.protocol import SourceAdapter
from .output import shown_time


@runtime_checkable
class CountingSource(SourceAdapter, Protocol):
    """A source that can count what a change of the checkpoint would deliver."""

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
    """A trigger by its name; ``bound`` is what ``db.trigger`` declares, None for a trigger of ``hf``'s.

    ``view`` is None while it has no state; it may have state without being declared.
    """

    name: str
    hf: Holdfast
    bound: BoundTrigger | None = None
    view: StateView | None = None

    @property
    def store(self) -> StateStore:
        """Return where its state is kept: one of ``db.trigger`` has a checkpoint store of its own."""
        return self.hf.state if self.bound is None else self.bound.store

    @property
    def is_declared(self) -> bool:
        """Return whether the application declares it now, by itself or with ``db.trigger``."""
        return self.bound is not None or self.name in self.hf.triggers

    def read(self) -> Poller:
        """Return it with its state.

        Raises:
            UnreadableStateError: its state is corrupt or from a newer version.
        """
        return replace(self, view=self.store.read(self.name))

    def source(self) -> SourceAdapter | None:
        """Return where its changes come from; None when it is not declared.

        Raises:
            DbError: the declaration does not fit the database.
        """
        if self.bound is not None:
            return self.bound.find_source()
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
    """Return the trigger called ``name``, with its state.

    Raises:
        ConfigurationError: the application declares none of that name, and none has state; or it declares two.
        UnreadableStateError: its state is corrupt or from a newer version.
    """
    everyone = pollers(hf)
    found = [poller for poller in everyone if poller.name == name] or [Poller(name, hf)]
    if len(found) > 1:
        raise ConfigurationError(
            f"{len(found)} triggers are called '{name}', each with a checkpoint store of its own, so it cannot be told "
            "which one is meant. Give all but one another name=…"
        )
    poller = found[0].read()
    if poller.view is None and not poller.is_declared:
        known = ", ".join(each.name for each in everyone) or "none"
        raise ConfigurationError(f"There is no trigger named '{name}'. Known here: {known}.")
    return poller


def pollers(hf: Holdfast) -> list[Poller]:
    """Return all triggers that are declared or have state, by name, their state not read yet."""
    bound = bound_triggers()
    own = {*hf.triggers, *(set(hf.state.pollers()) - {trigger.name for trigger in bound})}
    found = [*(Poller(name, hf) for name in own), *(Poller(trigger.name, hf, trigger) for trigger in bound)]
    return sorted(found, key=lambda poller: poller.name)


def summary(poller: Poller) -> JsonObject:
    """Return what ``trigger list`` tells of one trigger; an unreadable document is shown, not raised."""
    try:
        found = poller.read()
        return {**described_state(found), "lag_seconds": _lag_if_usable(found)}
    except UnreadableStateError as error:
        return {**described_state(poller), "lag_seconds": None, "error": str(error)}


def _lag_if_usable(poller: Poller) -> float | None:
    """Return the lag; None where the source cannot be used: what is wrong with one must not hide the others."""
    try:
        source = poller.source()
        if source is None:
            return None
        source.validate()
        return lag_seconds(poller, source)
    except DbError:
        return None


def shown_lag(lag: float | None) -> str:
    """Return the lag for people."""
    return "not known" if lag is None else f"{lag:g} s"


def described_state(poller: Poller) -> JsonObject:
    """Return the state as JSON."""
    view = poller.view
    lease = None if view is None else view.lease
    return {
        "name": poller.name,
        "declared": poller.is_declared,
        "application": None if view is None else application_of(view.document),
        "lease": described_lease(view, lease),
        "fencing_token": None if lease is None else lease.fencing_token,
        "cursor": poller.checkpoint.get("cursor"),
        "updated_at": poller.checkpoint.get("updated_at"),
        "stopped": None if view is None else stopped_because(view.document),
        "failure": None if view is None else failure_of(view.document),
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


def shown_failure(failure: JsonObject) -> str:
    """Return for people why deliveries fail, since when the last one did, and when it is tried again."""
    due = failure.get("next_try_at")
    again = "tried again with the next tick" if due is None else f"next try {shown_time(due)}"
    return f"{failure['count']} in a row, the last {shown_time(failure['at'])}, {again}: {failure['error']}"


def described_source(source: SourceAdapter, view: StateView | None, history: SourceHistory | None = None) -> JsonObject:
    """Return what the source is and promises, as JSON."""
    descriptor = source.source_descriptor
    return {
        "name": descriptor.name,
        "kind": descriptor.kind,
        "fingerprint": descriptor.fingerprint,
        "matches_state": view is None or is_of_source(view.document, descriptor),
        "capability": asdict(source.capability()),
        "state_is_beside_rows": history is not None and history.is_together,
        "refused_since_restore": None if history is None or view is None else _refusal(history, view),
    }


def _refusal(history: SourceHistory, view: StateView) -> str | None:
    """Return why nothing is delivered since the source was restored; None when the trigger goes on."""
    try:
        history.finding(view.document)
    except RestoredSourceError as error:
        return str(error)
    return None


def described_audit(entry: AuditEntry) -> dict[str, Any]:
    """Return an audit entry as JSON."""
    return {**asdict(entry), "at": format_time(entry.at)}


def lag_seconds(poller: Poller, source: SourceAdapter) -> float | None:
    """Return the age of the oldest row that waits, 0 when none does, None when it is not known."""
    if "lookback" in poller.checkpoint or poller.view is None:
        return None
    try:
        found = source.fetch_changes(poller.checkpoint, 1)
    except DbError:
        return None
    if found.records or found.waiting is not None:
        at = found.oldest_at if found.records or found.waiting is None else found.waiting.at
        return None if at is None else max(0.0, round((poller.view.read_at - at).total_seconds(), 3))
    return 0.0 if found.caught_up else None
