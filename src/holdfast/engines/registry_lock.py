"""The registry while a job holds its lock: changing it, keeping the lock alive, giving it back."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Collection, Mapping

from ..core.clock import Clock
from ..core.errors import RegistryLocked, Unavailable
from ..core.renewed import Renewed
from ..core.types import FencingToken, JsonObject, JsonValue
from ..lease.conditional_write import Command
from ..lease.document import format_time
from . import registry_document as doc
from .registry_shape import EngineTablesConfig, RegistryView

_log = logging.getLogger("holdfast.engines")


class HeldRegistry(Renewed):
    """The lock that ``Registry.locked`` took. Safe to use from several threads.

    ``lost`` is set as soon as the lock is known to be gone, or can no longer be proved to be ours, and when it has been
    given back: from then on nothing is written. What the registry itself cannot fence (a call to another system) should
    look at it first.
    """

    def __init__(
        self,
        apply: Callable[[Command], RegistryView],
        view: RegistryView,
        *,
        require_tables: Callable[[EngineTablesConfig], None],
        duration_seconds: float,
        margin_seconds: float,
        clock: Clock,
        asked_at: float,
    ) -> None:
        super().__init__(clock, duration_seconds, asked_at, margin_seconds)
        self._changed_by = apply
        self._view = view
        self._require_tables = require_tables
        self._holder = doc.Holder(view.lock.job_id, view.lock.fencing_token)
        self._lane = threading.Lock()

    @property
    def job_id(self) -> str:
        """Return the job that holds the lock."""
        return self._holder.job_id

    @property
    def instance_id(self) -> str | None:
        """Return whose registry it is; None when it is the application's."""
        return self._view.instance_id

    @property
    def fencing_token(self) -> FencingToken | None:
        """Return the token of this acquisition; every later one has a higher token."""
        return self._holder.fencing_token

    @property
    def registry(self) -> JsonObject:
        """Return a copy of the registry as this holder last read or wrote it; nobody else can have changed it since."""
        return copy.deepcopy(self._view.document)

    @property
    def tables(self) -> EngineTablesConfig:
        """Return where engines keep dead letters and history.

        Raises:
            ConfigurationError: this is the registry of an instance, and that is the application's.
        """
        return self._view.tables

    def change(self, changes: Mapping[str, object], *, remove: Collection[str] = ()) -> JsonObject:
        """Set fields of the registry, remove others, and return the registry as it is then.

        Raises:
            RegistryLocked: the lock is no longer ours; nothing was written, and ``lost`` is set.
            ConfigurationError: a value is not JSON, or a field is one that the registry keeps itself.
            StateStoreError: the store could not be used; the lock may still be ours.
        """
        self._apply(lambda document, now: doc.change(document, self._holder, changes, now=now, remove=remove))
        return self.registry

    def configure_tables(self, tables: EngineTablesConfig) -> None:
        """Set where engines keep dead letters and history.

        Raises:
            RegistryLocked: the lock is no longer ours; nothing was written, and ``lost`` is set.
            ConfigurationError: this is the registry of an instance, or the tables are in the database, which has no
                others.
        """
        self._require_tables(tables)
        self._apply(lambda document, now: doc.configure_tables(document, self._holder, tables, now=now))

    def heartbeat(self, progress: JsonValue = None, *, wait_seconds: float = -1) -> None:
        """Extend the lock by one write.

        Raises:
            RegistryLocked: it is no longer ours; ``lost`` is set.
            Unavailable: the store did not answer; a retry can help while ``seconds_left()`` is positive.
        """
        del progress
        asked_at = self._clock.monotonic()
        self._apply(
            lambda document, now: doc.extend_lock(document, self._holder, now=now, duration_seconds=self.ttl_seconds),
            wait_seconds,
        )
        self._renewed_at = asked_at

    def give_back(self) -> None:
        """Release the lock, whatever happens: what goes wrong is logged, and the lock then frees itself at its end.

        Does not wait for a write of ours that is not answered: that one is refused once the lock is free.
        """
        self.mark_lost()
        try:
            self._changed_by(lambda document, now: doc.release_lock(document, self._holder))
        except RegistryLocked as error:
            _log.warning("Job '%s' had lost the registry's lock before it ended. %s", self.job_id, error)
        except Exception as error:  # a store of the user's own may raise anything, and the work itself is done
            until = self._view.lock.until
            _log.warning(
                "Job '%s' could not release the registry's lock, which ends by itself at %s at the latest: %s",
                self.job_id,
                "?" if until is None else format_time(until),
                error,
            )

    def _apply(self, command: Command, wait_seconds: float = -1) -> None:
        """Write in turn: heartbeat and change of one holder would only make each other try again."""
        if not self._lane.acquire(timeout=wait_seconds):
            raise Unavailable("The registry is busy with a write of the same job that has not been answered yet.")
        try:
            if self.lost.is_set():
                raise RegistryLocked(
                    f"The registry's lock of '{self.job_id}' was lost or given back; nothing is written under it any "
                    "more. Lock it again."
                )
            self._view = self._changed_by(command)
        except RegistryLocked:
            self.mark_lost()
            raise
        finally:
            self._lane.release()
