"""Only one execution at a time: a lease for each scope, and for singletons the registry's lock inside it.

The steps are the standard's (section 1.8): look at the registry's lock, take the lease, take the lock. Each of them
answers 409 when it cannot be had [ENGINE-6]. The lease is kept alive beside the execution; if the process dies, it ends
by itself, and the same message takes the lock up again at once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from ..core.clock import Clock
from ..core.errors import AlreadyRunning, LeaseConflictError, RegistryLocked
from ..lease.held_lease import HeldLease, Lease
from ..lease.store import StateStore
from ..records.history import SuccessKey
from ..runtime.keeper import keeping
from .ports import Scope
from .registry import HeldRegistry, Registry

_log = logging.getLogger("holdfast.engines")
RELEASE_SECONDS = 5.0
_READABLE = 60
_LEAST_MARGINS = 3  # of the store's clock: a lease of two would never be usable


@dataclass(frozen=True, slots=True)
class HeldAlone:
    """The lease of a scope, and the registry's lock if it was asked for."""

    lease: HeldLease
    registry: HeldRegistry | None

    @property
    def is_lost(self) -> bool:
        """Return whether another execution may have begun: the lease alone decides that.

        Under a lost lock of the registry nothing is written, so an execution that still succeeds has lost nothing.
        """
        return self.lease.lost.is_set()

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the lease is lost."""
        self.lease.when_lost(callback)

    def let_go(self) -> None:
        """Free both at once, because the process ends: what the execution still does can change nothing."""
        if self.registry is not None:
            self.registry.give_back()
        self.lease.release(wait_seconds=RELEASE_SECONDS)


class Singletons:
    """Keeps executions apart.

    Args:
        leases: where the leases are kept.
        registry: what singletons change: the application's; those that name an instance, that instance's.
        lease_seconds: how long after its death an execution keeps others out.
    """

    def __init__(self, leases: StateStore, registry: Registry, *, clock: Clock, lease_seconds: float = 30.0) -> None:
        self._leases = leases
        self._registry = registry
        self._clock = clock
        self._lease_seconds = lease_seconds

    @contextmanager
    def alone(self, scope: Scope) -> Iterator[HeldAlone]:
        """Be the only execution of a scope inside the block.

        Raises:
            AlreadyRunning: another execution is at work: 409.
            RegistryLocked: another job has the registry's lock: 409.
        """
        if scope.lock_seconds is not None:
            self._registry_of(scope).require_free(scope.job_id)
        with ExitStack() as held:
            lease = held.enter_context(
                self._leased(lease_name(scope.key), self._lease_seconds, _already_running(scope))
            )
            registry = None
            if scope.lock_seconds is not None:
                locked = self._registry_of(scope).locked(scope.job_id, duration_seconds=scope.lock_seconds)
                registry = held.enter_context(locked)
            yield HeldAlone(lease, registry)

    def require_idle(self, scope: Scope) -> None:
        """Look whether the scope could be had now; only having it makes sure. Raises as ``alone`` does."""
        if scope.lock_seconds is not None:
            self._registry_of(scope).require_free()
        view, margin = self._leases.read(lease_name(scope.key)), self._leases.skew_margin(self._lease_seconds)
        if view is not None and view.lease is not None and view.lease.is_live(view.read_at, margin):
            raise _already_running(scope)

    @contextmanager
    def in_hand(self, key: SuccessKey, seconds: float) -> Iterator[Lease]:
        """Have the only message about something in hand inside the block; no document of it stays [ENGINE-7].

        Args:
            key: what it is about. The leases are those of one application, so its name is no part of theirs.
            seconds: how long after its death a worker keeps other messages out.

        Raises:
            AlreadyRunning: another message has it, or a worker that died while it had this one.
        """
        ttl_seconds = max(seconds, _LEAST_MARGINS * (self._leases.documents.skew_margin_seconds or 0.0))
        busy = (
            f"A message with correlation id '{key.correlation_id}' is at work on '{key.operation}'. It is free again "
            "when that ends."
        )
        name = lease_name("\n".join((key.engine, key.operation, key.correlation_id)), "message")
        with self._leased(name, ttl_seconds, AlreadyRunning(busy), Lease.discard) as lease:
            yield lease

    def give_up(self, scope: Scope) -> None:
        """Free the registry's lock of a dead execution. Whatever is left of that can change nothing from then on."""
        if scope.lock_seconds is not None:
            with suppress(RegistryLocked):  # it is another's by now
                self._registry_of(scope).release(scope.job_id)

    def _registry_of(self, scope: Scope) -> Registry:
        return self._registry.instance(scope.instance_id)

    @contextmanager
    def _leased(
        self, name: str, ttl_seconds: float, busy: AlreadyRunning, end: Callable[..., None] = Lease.release
    ) -> Iterator[Lease]:
        try:
            lease = self._leases.acquire(name, ttl_seconds=ttl_seconds)
        except LeaseConflictError as error:
            raise busy from error
        try:
            with keeping(lease, self._clock):
                yield lease
        finally:
            try:
                end(lease, wait_seconds=RELEASE_SECONDS)
            except Exception as error:  # whatever it is, the lease frees itself when it runs out
                _log.warning("The lease '%s' could not be released and frees itself: %s", name, error)


def _already_running(scope: Scope) -> AlreadyRunning:
    return AlreadyRunning(f"'{scope.name}' is running already. It is free again when that ends.")


def lease_name(scope: str, kind: str = "alone") -> str:
    """Return where the lease of a scope is kept: readable, and never that of another scope."""
    readable = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in scope[:_READABLE])
    return f"{kind}-{readable}-{hashlib.sha256(scope.encode()).hexdigest()[:24]}"
