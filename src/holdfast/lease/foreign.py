"""State stores written against azure-functions-db's five-method protocol, made to look like ours.

Such a store keeps checkpoint and lease by its own means. What the kernel adds for its own stores (one round trip per
commit, joined transactions, a fencing token the store checks) cannot be had here; heartbeats can.
"""

from __future__ import annotations

import threading
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..core.clock import Clock
from ..core.errors import CommitError, LostLeaseError
from ..core.renewed import Renewed
from ..core.types import FencingToken, JsonObject, JsonValue, OwnerId
from .held_lease import JoinedTransaction

if TYPE_CHECKING:
    from .history import KeptHistory


@runtime_checkable
class ForeignStateStore(Protocol):
    """The five methods azure-functions-db asks of a state store."""

    def acquire_lease(self, poller_name: str, ttl_seconds: int) -> str: ...  # noqa: D102 - their contract
    def renew_lease(self, poller_name: str, lease_id: str, ttl_seconds: int) -> None: ...  # noqa: D102 - their contract
    def release_lease(self, poller_name: str, lease_id: str) -> None: ...  # noqa: D102 - their contract
    def load_checkpoint(self, poller_name: str) -> dict[str, object]: ...  # noqa: D102 - their contract
    def commit_checkpoint(  # noqa: D102 - their contract
        self, poller_name: str, checkpoint: dict[str, object], lease_id: str
    ) -> None: ...


class ForeignLease(Renewed):
    """A lease held in a foreign store, with the surface of ``Lease``."""

    def __init__(self, store: ForeignStateStore, poller_name: str, ttl_seconds: int, clock: Clock) -> None:
        super().__init__(clock, float(ttl_seconds))
        self._store = store
        self._poller_name = poller_name
        self._lane = threading.RLock()
        self._ttl_seconds = ttl_seconds
        self._lease_id = store.acquire_lease(poller_name, ttl_seconds)
        self._checkpoint: JsonObject = dict(store.load_checkpoint(poller_name))

    @property
    def checkpoint(self) -> JsonObject:
        """Return the last checkpoint read or written."""
        return self._checkpoint

    @property
    def owner_id(self) -> OwnerId:
        """Return the store's lease id."""
        return OwnerId(self._lease_id)

    @property
    def fencing_token(self) -> FencingToken:
        """Return the number after the last colon of the lease id, as azure-functions-db writes it, else 0."""
        tail = self._lease_id.rpartition(":")[2]
        return FencingToken(int(tail) if tail.isdigit() else 0)

    def now(self) -> datetime:
        """Return this machine's time: a foreign store tells none."""
        return self._clock.now()

    def protect(self, locked: bool) -> None:
        """Do nothing: no handler transaction can join a foreign store."""

    def heartbeat(self, progress: JsonValue = None, *, wait_seconds: float = -1) -> None:
        """Renew the lease; a foreign store keeps no progress."""
        del progress
        if self._lane.acquire(timeout=wait_seconds):
            try:
                asked_at = self._clock.monotonic()
                self._store.renew_lease(self._poller_name, self._lease_id, self._ttl_seconds)
                self._renewed_at = asked_at
            finally:
                self._lane.release()

    def commit(
        self,
        checkpoint: JsonObject,
        joined: JoinedTransaction | None = None,
        history: KeptHistory | None = None,
    ) -> None:
        """Record a checkpoint in the foreign store, which keeps no history of the source.

        Raises:
            LostLeaseError: the store says the lease is someone else's.
            CommitError: anything else went wrong.
        """
        del history
        if joined is not None:
            joined.close()
            raise CommitError("context.transaction needs state kept in SQL; this state store keeps it elsewhere.")
        with self._lane:
            if self.lost.is_set():
                raise LostLeaseError(
                    f"The lease of '{self._poller_name}' was lost; nothing is written under it any more."
                )
            try:
                self._store.commit_checkpoint(self._poller_name, dict(checkpoint), self._lease_id)
            except LostLeaseError:
                self.mark_lost()
                raise
            except Exception as error:
                raise CommitError(f"The checkpoint of '{self._poller_name}' could not be recorded: {error}") from error
        self._checkpoint = checkpoint

    def release(self, *, wait_seconds: float = -1) -> None:
        """Release the lease in the foreign store."""
        del wait_seconds
        with self._lane:
            if not self.lost.is_set():
                try:
                    self._store.release_lease(self._poller_name, self._lease_id)
                finally:
                    self.mark_lost()
