"""Leases and checkpoints over any document store: read, apply a pure change, write on condition."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from ..core.clock import Clock, SystemClock, new_id
from ..core.errors import ConfigurationError, Conflict, FingerprintMismatchError, LeaseConflictError, LostLeaseError
from ..core.identity import application_identity
from ..core.moments_ahead import MomentsAhead, lies_ahead
from ..core.names import checked_name, default_app_name
from ..core.types import JsonObject, OwnerId, SourceDescriptor
from . import audit
from . import document as doc
from .audit import AuditEntry
from .conditional_write import ConditionalDocument, DocumentShape
from .documents import DocumentStore
from .held_lease import Lease

_log = logging.getLogger("holdfast.state")
SKEW_FOR_TTL_SECONDS = 120.0  # where it is not known how long leases are
SourceChange = Literal["reject", "reset"]

_STATE = DocumentShape(doc.parse, doc.revision_of, doc.has_landed, doc.deleted, "holdfast trigger show")


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

    @property
    def stopped_at(self) -> datetime | None:
        """Return when it was stopped, None when it may run or that is not known."""
        return doc.stopped_at(self.document)


class StateStore:
    """The state of every poller of one application, kept in ``documents``.

    ``application`` is whose workers take leases here; left out, it is the ``app_name``, else the top-level package of
    the caller. ``audited`` is called when a changed source makes a trigger begin anew, before it does. ``ahead`` knows
    what the process has seen of moments in the future.

    Also speaks azure-functions-db's five-method protocol (``acquire_lease`` … ``commit_checkpoint``).
    """

    def __init__(
        self,
        documents: DocumentStore,
        *,
        app_name: str | None = None,
        skew_margin_seconds: float | None = None,
        clock: Clock | None = None,
        application: str | None = None,
        audited: Callable[[AuditEntry], None] | None = None,
        ahead: MomentsAhead | None = None,
    ) -> None:
        self.documents = documents
        self._audited = audited
        self.application = application or application_identity(app_name)
        self.app_name = checked_name("The app name", app_name or default_app_name())
        self.clock = clock or SystemClock()
        self._skew_margin_seconds = skew_margin_seconds
        self._ahead = ahead or MomentsAhead(self.clock)
        self._leases: dict[str, Lease] = {}

    def over(self, documents: DocumentStore) -> StateStore:
        """Return the same state through another way to its store, such as one inside a transaction."""
        same = copy(self)
        same.documents = documents
        return same

    def document_name(self, poller_name: str) -> str:
        """Return where a poller's document is kept: ``state/{app_name}/{poller_name}.json``.

        Raises:
            ConfigurationError: the name cannot be part of a path.
        """
        return f"state/{self.app_name}/{checked_name('The trigger name', poller_name)}.json"

    def document(self, poller_name: str) -> ConditionalDocument:
        """Return a poller's document, to be read and changed."""
        return ConditionalDocument(self.documents, self.document_name(poller_name), _STATE, self.clock)

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
        document = self.document(poller_name)
        found = document.read()
        return None if found is None else StateView(poller_name, found, document.time.now())

    def check(self, poller_name: str, source: SourceDescriptor, on_source_change: SourceChange) -> None:
        """Refuse state that cannot be read, or that belongs to another source definition (unless that means a reset).

        Raises:
            UnreadableStateError: the document is corrupt or from a newer version.
            FingerprintMismatchError: the stored checkpoint belongs to another source definition.
        """
        view = self.read(poller_name)
        if view is not None and on_source_change == "reject":
            doc.check_source(view.document, source)

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
            OtherApplicationError: someone else is another application.
            FingerprintMismatchError: the stored checkpoint belongs to another source definition.
            UnreadableStateError: the document is corrupt or from a newer version.
            Unavailable: the store did not answer.
        """
        ttl = timedelta(seconds=ttl_seconds)
        margin = self.skew_margin(ttl_seconds)
        owner = owner_id or new_owner_id()
        document = self.document(poller_name)
        found = document.read_or_create(doc.empty(poller_name))
        change = self._source_change(poller_name, found, source, on_source_change, owner)
        former = doc.application_of(found)
        outlived = self._outlived(poller_name, found, document.time.now(), margin)

        def taken(found: doc.Document, now: datetime) -> doc.Document:
            return doc.acquire(
                found if change is None else doc.begun_anew(found, change.audit_id),
                poller_name=poller_name,
                source=source,
                owner_id=owner,
                ttl=ttl,
                skew_margin=margin,
                now=now,
                application=self.application,
                outlived=outlived,
            )

        if change is not None:
            taken(found, document.time.now())  # refused while someone else holds it: then there is nothing to tell
            self._keep_source_change(change)
        asked_at = self.clock.monotonic()
        try:
            held = document.apply(taken)
        except Conflict as error:
            raise LeaseConflictError(
                f"Another worker took the lease of '{poller_name}' first. It is free again when that worker stops or "
                "its lease runs out."
            ) from error
        self._warn_of_take_over(poller_name, former)
        holder = doc.Holder(owner, held["lease"]["fencing_token"])
        return Lease(document, holder, ttl=ttl, skew_margin=margin, clock=self.clock, asked_at=asked_at)

    def _outlived(
        self, poller_name: str, found: doc.Document, now: datetime, margin: timedelta
    ) -> doc.LeaseView | None:
        """Return a lease that was watched for its whole length, its end in the future by a wrong clock; else None."""
        lease = doc.lease_of(found, poller_name)
        if lease is None or lease.owner_id is None or not lies_ahead(lease.extended_at, now):
            return None
        length = lease.expires_at - lease.extended_at + margin
        is_outlived = self._ahead.is_wrong(
            f"the lease in '{self.document_name(poller_name)}'",
            lease.expires_at,
            now,
            what="its end",
            remedy="nobody has extended it for its whole length, so it is taken",
            watched_seconds=length.total_seconds(),
        )
        return lease if is_outlived else None

    def keep_failure(self, poller_name: str, error: str, retry_seconds: float) -> JsonObject:
        """Keep why a poller cannot be run, by one write while nobody holds its lease; return what is kept.

        Raises:
            LeaseConflictError: someone holds the lease, or it is stopped; nothing was written.
            UnreadableStateError: the document is corrupt or from a newer version.
            StateStoreError: it was not written, as the error says.
        """
        document = self.document(poller_name)
        document.read_or_create(doc.empty(poller_name))
        margin = self.skew_margin(SKEW_FOR_TTL_SECONDS)

        def kept(found: doc.Document, now: datetime) -> doc.Document:
            due = now + timedelta(seconds=retry_seconds)
            return doc.failed_unheld(
                found, error, poller_name=poller_name, next_try_at=due, skew_margin=margin, now=now
            )

        failure = doc.failure_of(document.apply(kept))
        assert failure is not None
        return failure

    def _warn_of_take_over(self, poller_name: str, former: str | None) -> None:
        if former not in (None, self.application):
            _log.warning(
                "Trigger '%s' was run by the application '%s' before; '%s' takes over and goes on from its checkpoint. "
                "If both are to run, give each app_name=…",
                poller_name,
                former,
                self.application,
            )

    def _source_change(
        self,
        poller_name: str,
        found: doc.Document,
        source: SourceDescriptor | None,
        on_source_change: SourceChange,
        owner: OwnerId,
    ) -> AuditEntry | None:
        """Return the audit entry of a start from the beginning, when the document is of another source."""
        if source is None:
            return None
        try:
            doc.check_source(found, source)
        except FingerprintMismatchError:
            if on_source_change == "reject":
                raise
            return audit.new_entry(self, poller_name, found, {}, "on_source_change=reset", owner)
        return None

    def _keep_source_change(self, entry: AuditEntry) -> None:
        audit.save(self, entry)
        if self._audited is not None:
            self._audited(entry)
        _log.warning(
            "The source of trigger '%s' has changed, so it starts from the beginning (on_source_change='reset'). To go "
            "back: put the old definition back and run 'holdfast trigger undo %s'",
            entry.poller_name,
            entry.poller_name,
        )

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
