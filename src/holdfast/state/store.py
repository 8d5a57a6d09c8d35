"""Leases and checkpoints over any document store: read, apply a pure change, write on condition."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from ..core.clock import Clock, StoreTime, SystemClock, new_id
from ..core.errors import (
    Ambiguous,
    ConfigurationError,
    Conflict,
    FingerprintMismatchError,
    LeaseConflictError,
    LostLeaseError,
)
from ..core.names import checked_name, default_app_name
from ..core.types import JsonObject, OwnerId, SourceDescriptor
from . import document as doc
from .documents import DocumentStore, Snapshot, Written
from .lease import Lease

SourceChange = Literal["reject", "reset"]


@dataclass(frozen=True, slots=True)
class StateView:
    """A poller's state as it was read: the document, and the store's time of the answer."""

    poller_name: str
    document: doc.Document
    read_at: datetime

    @property
    def lease(self) -> doc.LeaseView | None:
        """Return the lease part."""
        return doc.lease_of(self.document, self.poller_name)

    @property
    def checkpoint(self) -> JsonObject:
        """Return the checkpoint part; empty when the poller is at the beginning."""
        checkpoint: JsonObject = self.document.get("checkpoint") or {}
        return checkpoint


class StateStore:
    """The state of every poller of one application, kept in ``documents``.

    Also speaks azure-functions-db's five-method protocol (``acquire_lease`` … ``commit_checkpoint``).
    """

    def __init__(
        self,
        documents: DocumentStore,
        *,
        app_name: str | None = None,
        skew_margin_seconds: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.documents = documents
        self.app_name = checked_name("The app name", app_name or default_app_name())
        self.clock = clock or SystemClock()
        self._skew_margin_seconds = skew_margin_seconds
        self._leases: dict[str, Lease] = {}

    def document_name(self, poller_name: str) -> str:
        """Return where a poller's document is kept: ``state/{app_name}/{poller_name}.json``.

        Raises:
            ConfigurationError: the name cannot be part of a path.
        """
        return f"state/{self.app_name}/{checked_name('The trigger name', poller_name)}.json"

    def skew_margin(self, ttl_seconds: float) -> timedelta:
        """Return the margin that clocks are allowed to differ by: a lease is not taken before expiry plus this.

        Raises:
            ConfigurationError: the time to live is too short for the margin the store's clock needs.
        """
        least = self.documents.skew_margin_seconds
        margin = self._skew_margin_seconds
        if margin is None:
            margin = least if least is not None else min(1.0, ttl_seconds / 10)
        margin = max(margin, least or 0.0)
        if ttl_seconds <= 2 * margin:
            raise ConfigurationError(
                f"lease_ttl_seconds={ttl_seconds:g} is too short: this store's clock needs a margin of {margin:g} s on "
                f"either side, so use more than {2 * margin:g}."
            )
        return timedelta(seconds=margin)

    def read(self, poller_name: str) -> StateView | None:
        """Return a poller's state, or None when it has none yet.

        Raises:
            UnreadableStateError: the document is corrupt or from a newer version.
        """
        name = self.document_name(poller_name)
        snapshot = self.documents.read(name)
        if snapshot is None:
            return None
        read_at = snapshot.store_time or self.clock.now()
        return StateView(poller_name, doc.parse(snapshot.content, name), read_at)

    def check(self, poller_name: str, source: SourceDescriptor, on_source_change: SourceChange) -> None:
        """Refuse state that cannot be read, or that belongs to another source definition (unless that means a reset).

        Raises:
            UnreadableStateError: the document is corrupt or from a newer version.
            FingerprintMismatchError: the stored checkpoint belongs to another source definition.
        """
        view = self.read(poller_name)
        if view is not None and on_source_change == "reject":
            doc.check_fingerprint(view.document, {source.fingerprint, *source.legacy_fingerprints})

    def pollers(self) -> list[str]:
        """Return the names of all pollers that have state."""
        prefix = f"state/{self.app_name}/"
        return [name.removeprefix(prefix).removesuffix(".json") for name in self.documents.list(prefix)]

    def acquire(
        self,
        poller_name: str,
        *,
        ttl_seconds: float,
        source: SourceDescriptor | None = None,
        on_source_change: SourceChange = "reject",
        owner_id: OwnerId | None = None,
    ) -> Lease:
        """Take the poller's lease.

        Raises:
            LeaseConflictError: someone else holds it, or was faster.
            FingerprintMismatchError: the stored checkpoint belongs to another source definition.
            UnreadableStateError: the document is corrupt or from a newer version.
            Unavailable: the store did not answer.
        """
        name = self.document_name(poller_name)
        ttl = timedelta(seconds=ttl_seconds)
        margin = self.skew_margin(ttl_seconds)
        owner = owner_id or new_owner_id()
        time = StoreTime(self.clock)
        snapshot = self.documents.read(name) or self._created(name, poller_name)
        time.learn(snapshot.store_time)
        kept = self._matching(doc.parse(snapshot.content, name), source, on_source_change)
        asked_at = self.clock.monotonic()
        changed = doc.acquire(
            kept,
            poller_name=poller_name,
            fingerprint=None if source is None else source.fingerprint,
            owner_id=owner,
            ttl=ttl,
            skew_margin=margin,
            now=time.now(),
        )
        written = self._write_acquired(name, snapshot, changed, owner)
        time.learn(written.store_time)
        holder = doc.Holder(owner, changed["lease"]["fencing_token"])
        return Lease(
            self.documents,
            name,
            changed,
            written,
            holder,
            ttl=ttl,
            skew_margin=margin,
            time=time,
            clock=self.clock,
            asked_at=asked_at,
        )

    def _created(self, name: str, poller_name: str) -> Snapshot:
        """Create a document without a lease, to learn the store's time before any lease is dated with it."""
        content = doc.render(doc.empty(poller_name))
        try:
            written = self.documents.create(name, content)
            return Snapshot(content, written.etag, written.store_time)
        except (Conflict, Ambiguous):
            found = self.documents.read(name)
            if found is None:
                raise
            return found

    def _matching(
        self, found: doc.Document, source: SourceDescriptor | None, on_source_change: SourceChange
    ) -> doc.Document:
        if source is None:
            return found
        try:
            doc.check_fingerprint(found, {source.fingerprint, *source.legacy_fingerprints})
        except FingerprintMismatchError:
            if on_source_change == "reject":
                raise
            return {**found, "checkpoint": {}}
        return found

    def _write_acquired(self, name: str, snapshot: Snapshot, changed: doc.Document, owner: OwnerId) -> Written:
        content = doc.render(changed)
        try:
            return self.documents.replace(name, content, snapshot.etag)
        except Conflict as error:
            raise LeaseConflictError(
                f"Another worker took the lease of '{changed['poller_name']}' first. It is free again when that worker "
                "stops or its lease runs out."
            ) from error
        except Ambiguous:
            found = self.documents.read(name)
            if found is None or doc.parse(found.content, name).get("lease", {}).get("owner_id") != owner:
                raise
            return Written(found.etag, found.store_time)

    # The protocol of azure-functions-db, for code written against it.

    def acquire_lease(self, poller_name: str, ttl_seconds: int) -> str:
        """Take the lease and return its id, ``{owner}:{token}``."""
        lease = self.acquire(poller_name, ttl_seconds=ttl_seconds, source=self._declared_source())
        lease_id = f"{lease.owner_id}:{lease.fencing_token}"
        self._leases[lease_id] = lease
        return lease_id

    def renew_lease(self, poller_name: str, lease_id: str, ttl_seconds: int) -> None:
        """Extend the lease by the time to live it was acquired with."""
        del ttl_seconds
        self._held(poller_name, lease_id).heartbeat()

    def release_lease(self, poller_name: str, lease_id: str) -> None:
        """Free the lease at once."""
        self._held(poller_name, lease_id).release()
        del self._leases[lease_id]

    def load_checkpoint(self, poller_name: str) -> dict[str, object]:
        """Return the checkpoint, empty when there is none."""
        view = self.read(poller_name)
        return {} if view is None else dict(view.checkpoint)

    def commit_checkpoint(self, poller_name: str, checkpoint: dict[str, object], lease_id: str) -> None:
        """Record a checkpoint under the lease."""
        self._held(poller_name, lease_id).commit(dict(checkpoint))

    def _held(self, poller_name: str, lease_id: str) -> Lease:
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LostLeaseError(f"The lease '{lease_id}' of trigger '{poller_name}' is not held by this store object.")
        return lease

    def _declared_source(self) -> SourceDescriptor | None:
        return None


def new_owner_id(host: Callable[[], str] = socket.gethostname, process_id: Callable[[], int] = os.getpid) -> OwnerId:
    """Return an owner id that is new for every session and tells people where it runs."""
    return OwnerId(f"{host()}/{process_id()}/{new_id(8)}")
