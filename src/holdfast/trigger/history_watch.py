"""Notices that rows which a trigger has delivered were taken back, before anything behind them is delivered.

The source's history is compared with that of the checkpoint under each new lease and after each new session of the
source; where the state is kept elsewhere, also behind every page, because it says up to where its rows are committed.
A page that was read before a difference was found is read again: it may be of a server that is in charge no more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..core.clock import Clock
from ..core.types import JsonObject
from ..database.history import History, UnknownHistory
from ..lease.held_lease import HeldLease, Lease
from ..lease.history import Fit, FormerPlace, KeptHistory, continued, moved_on, turned_back
from .source_history import SourceHistory
from .sources.protocol import FetchResult

_log = logging.getLogger("holdfast.trigger")
_LOOK_SECONDS = 60.0


class HistoryWatch:
    """Watches the history of one trigger's source, for one thread at a time."""

    def __init__(self, name: str, source: object, state_store: object, clock: Clock) -> None:
        self._name = name
        self._history = SourceHistory.of(name, source, state_store)
        self._clock = clock
        self._lease: HeldLease | None = None
        self._sessions = 0
        self._looked_at = 0.0
        self._kept: KeptHistory | None = None
        self._present: History | None = None
        self._is_unknown_logged = False

    def read(self, lease: HeldLease, fetch: Callable[[], FetchResult]) -> FetchResult:
        """Return what ``fetch`` reads behind the lease's checkpoint, once that fits the history of what was read.

        Raises:
            RestoredSourceError: it does not fit, and nobody can know where to go on.
        """
        history = self._history
        if history is None or not isinstance(lease, Lease):
            return fetch()
        if lease is not self._lease:
            self._begin(history, lease)
        while True:
            found = fetch()
            is_marked = bool(found.records) and not history.is_together
            if not (is_marked or self._must_look(history)) or self._still_fits(history, lease, is_marked):
                return found

    def after(self, checkpoint: JsonObject) -> KeptHistory | None:
        """Return what to keep beside the next checkpoint: its rows had been read when the source was looked at."""
        if self._history is None or self._kept is None or self._present is None:
            return None
        return self._kept if self._history.is_together else continued(self._kept, self._present, checkpoint)

    def committed(self, kept: KeptHistory | None) -> None:
        """Note that a checkpoint was recorded with what is kept beside it."""
        self._kept = kept

    def _must_look(self, history: SourceHistory) -> bool:
        """Return whether everything may be another server's now; behind a pooler that shows in no session of ours."""
        return self._sessions != history.source.sessions() or self._clock.monotonic() - self._looked_at >= _LOOK_SECONDS

    def _begin(self, history: SourceHistory, lease: Lease) -> None:
        """Compare under a new lease. What is not known yet of its checkpoint is known from now on."""
        self._kept = lease.kept_history
        is_new = self._kept is None and lease.checkpoint.get("cursor") is not None
        self._still_fits(history, lease, is_new and not history.is_together)

    def _still_fits(self, history: SourceHistory, lease: Lease, marks: bool) -> bool:
        """Look at the source's history; return whether the checkpoint fits it, and did before."""
        self._lease = None  # whatever fails here, the next step begins with what the document keeps
        self._sessions, self._looked_at = history.source.sessions(), self._clock.monotonic()
        self._present, fits = None, True
        present = history.present(self._kept, marks=marks)
        if isinstance(present, UnknownHistory):
            self._is_unknown(history, present)
        else:
            fits = self._fits(history, lease, present)
            self._present = present
        self._lease = lease
        return fits

    def _is_unknown(self, history: SourceHistory, present: UnknownHistory) -> None:
        self._kept = None
        if not self._is_unknown_logged and not history.is_together:
            self._is_unknown_logged = True
            _log.warning("A restore of the source of trigger '%s' is not noticed: %s", self._name, present.because)

    def _fits(self, history: SourceHistory, lease: Lease, present: History) -> bool:
        found = history.judged(self._kept, present, lease.checkpoint)
        kept = self._kept or history.begun(present, lease.checkpoint)
        if found.fit is Fit.SAME:
            self._kept = kept
            return True
        history.source.close()  # how far it may be read was found out in the other history
        if found.fit is Fit.MOVED_ON:
            self._kept = moved_on(kept, present)
            self._log_move("nothing that it has delivered was taken back", kept, present)
        else:
            self._go_back(lease, kept, present, found.place)
        return False

    def _go_back(self, lease: Lease, kept: KeptHistory, present: History, place: FormerPlace | None) -> None:
        """Go on from a former place, or from where the checkpoint has been taken back to; under a token far ahead."""
        if place is None:
            back, checkpoint, what = (
                moved_on(kept, present),
                None,
                "its checkpoint went back with the rows and fits them",
            )
        else:
            back, checkpoint = turned_back(kept, present, place), place.checkpoint
            behind = checkpoint.get("cursor") or "the beginning"
            what = f"rows that it has delivered were taken back, so it goes back to {behind}"
        lease.go_back(back, checkpoint)
        self._kept = back
        self._log_move(what, kept, present, lease)

    def _log_move(self, what: str, kept: KeptHistory, present: History, lease: Lease | None = None) -> None:
        token = "" if lease is None else f"; its fencing token is {lease.fencing_token} now, far ahead of any before"
        _log.warning(
            "Trigger '%s' goes on after a fail-over or restore of its source (timeline %s, before: %s): %s%s",
            self._name,
            present.timeline or "-",
            kept.timeline or "-",
            what,
            token,
        )
