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
from ..runtime.keeper import keeping
from ..state.lease import HeldLease
from ..state.store import StateStore
from .ports import Scope
from .registry import HeldRegistry, Registry

_log = logging.getLogger("holdfast.engines")
_RELEASE_SECONDS = 5.0
_READABLE = 60


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
        self.lease.release(wait_seconds=_RELEASE_SECONDS)


class Singletons:
    """Keeps executions apart.

    Args:
        leases: where the leases are kept.
        registry: what singletons change.
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
            self._registry.require_free(scope.job_id)
        with ExitStack() as held:
            lease = held.enter_context(self._leased(scope))
            registry = None
            if scope.lock_seconds is not None:
                registry = held.enter_context(self._registry.locked(scope.job_id, duration_seconds=scope.lock_seconds))
            yield HeldAlone(lease, registry)

    def give_up(self, scope: Scope) -> None:
        """Free the registry's lock of a dead execution. Whatever is left of that can change nothing from then on."""
        if scope.lock_seconds is not None:
            with suppress(RegistryLocked):  # it is another's by now
                self._registry.release(scope.job_id)

    @contextmanager
    def _leased(self, scope: Scope) -> Iterator[HeldLease]:
        try:
            lease = self._leases.acquire(lease_name(scope.key), ttl_seconds=self._lease_seconds)
        except LeaseConflictError as error:
            raise AlreadyRunning(f"'{scope.name}' is running already. It is free again when that ends.") from error
        try:
            with keeping(lease, self._clock):
                yield lease
        finally:
            try:
                lease.release(wait_seconds=_RELEASE_SECONDS)
            except Exception as error:  # whatever it is, the lease frees itself when it runs out
                _log.warning("The lease of '%s' could not be released and frees itself: %s", scope.name, error)


def lease_name(scope: str, kind: str = "alone") -> str:
    """Return where the lease of a scope is kept: readable, and never that of another scope."""
    readable = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in scope[:_READABLE])
    return f"{kind}-{readable}-{hashlib.sha256(scope.encode()).hexdigest()[:24]}"
