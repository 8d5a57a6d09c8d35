"""Whether a checkpoint still fits the history of its source, and where to go on when it does not. Pure.

Beside the checkpoint the document keeps the history it was made in: whose it was, how far it had come when the last
batch had been read, and the same for some batches before, closer together the newer they are. When rows were taken back
that lie below the checkpoint, the newest of those that lies in the present history is where to go on: what was taken
back is forgotten, and what has been written since is delivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from ..core.errors import RestoredSourceError
from ..core.types import JsonObject
from ..database.history import History
from .document import Document, render

_LEVELS = 9
_KEPT_OF_LEVEL = 4
_LARGEST_PLACE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FormerPlace:
    """Where a trigger stood after a batch: a checkpoint, and a position at which all that it passed was committed."""

    batch: int
    position: Mapping[str, int]
    checkpoint: JsonObject


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """The history that a checkpoint was made in, as its document keeps it."""

    system: str
    database: str
    timeline: str
    position: Mapping[str, int] = field(default_factory=dict)
    batch: int = 0
    recent: Sequence[FormerPlace] = ()

    def to_json(self, checkpoint: JsonObject) -> JsonObject:
        """Return what is kept beside a checkpoint; ``of`` tells which, since older releases move on without it."""
        return {
            "of": _mark_of(checkpoint),
            "system": self.system,
            "database": self.database,
            "timeline": self.timeline,
            "position": dict(self.position),
            "batch": self.batch,
            "recent": [[place.batch, dict(place.position), place.checkpoint] for place in self.recent],
        }


class Fit(Enum):
    """How a checkpoint fits the present history."""

    SAME = auto()
    MOVED_ON = auto()
    """Another server has taken over; nothing that the checkpoint has passed was taken back."""
    WENT_TOGETHER = auto()
    """Rows may have been taken back, and the checkpoint with them."""
    TAKEN_BACK = auto()
    """Rows that the checkpoint has passed were taken back: it goes on at a former place."""


@dataclass(frozen=True, slots=True)
class Finding:
    """How a checkpoint fits, and the former place to go on at if it does not."""

    fit: Fit
    place: FormerPlace | None = None


def kept_history(document: Document) -> KeptHistory | None:
    """Return the history kept beside the present checkpoint; None where none is, or it is of another checkpoint."""
    kept, checkpoint = document.get("history"), document.get("checkpoint") or {}
    if not isinstance(kept, dict) or kept.get("of") != _mark_of(checkpoint):
        return None
    try:
        recent = [FormerPlace(int(batch), dict(position), dict(place)) for batch, position, place in kept["recent"]]
        system, database, timeline = (str(kept[name]) for name in ("system", "database", "timeline"))
        return KeptHistory(system, database, timeline, dict(kept["position"]), int(kept["batch"]), recent)
    except (KeyError, TypeError, ValueError):  # written by hand: the checkpoint is worth more than this
        return None


def judged(
    name: str, kept: KeptHistory | None, present: History, *, is_together: bool, transaction: int | None = None
) -> Finding:
    """Return how a checkpoint fits the present history of its source.

    ``is_together`` says that the checkpoint is kept in the source's own database, and so has gone back with the rows.
    ``transaction`` is the transaction id that the checkpoint stands at, if it does.

    Raises:
        RestoredSourceError: nobody can know where to go on without missing rows; the message names the choices.
    """
    finding = _finding(name, kept, present, is_together)
    if transaction is not None and finding.fit is not Fit.TAKEN_BACK:
        _check_transaction(name, kept, present, transaction)
    return finding


def _finding(name: str, kept: KeptHistory | None, present: History, is_together: bool) -> Finding:
    if kept is None:
        return Finding(Fit.SAME)
    is_here = (kept.system, kept.database) == (present.system, present.database)
    if is_together:
        is_same = is_here and kept.timeline == present.timeline
        return Finding(Fit.SAME if is_same else Fit.WENT_TOGETHER)
    if not is_here:
        raise _refusal(name, f"is of {_named(kept)}, and this is {_named(present)}: its rows were restored elsewhere")
    if present.has(kept.position):
        return Finding(Fit.SAME if kept.timeline == present.timeline else Fit.MOVED_ON)
    return Finding(Fit.TAKEN_BACK, _place_within(name, kept, present))


def _check_transaction(name: str, kept: KeptHistory | None, present: History, transaction: int) -> None:
    """Refuse transaction ids that mean nothing here, wherever the checkpoint is kept."""
    if kept is not None and kept.system != present.system:
        raise _refusal(
            name, f"stands at a transaction of {_named(kept)}, and this is {_named(present)}, where ids mean others"
        )
    if present.next_transaction is not None and transaction >= present.next_transaction:
        raise _refusal(
            name,
            f"stands at transaction {transaction}, which this server, whose next one is {present.next_transaction}, "
            "has not reached: the rows were restored from another one",
        )


def _place_within(name: str, kept: KeptHistory, present: History) -> FormerPlace:
    """Return the newest place that lies in the present history, where it can be known what does."""
    if present.past_unknown is not None:
        raise _refusal(name, f"is of timeline {kept.timeline}, and this is {present.timeline}: {present.past_unknown}")
    within = [place for place in kept.recent if present.has(place.position)]
    if not within:
        fact = f"is at {_shown(kept.position)}, and the database's history is shorter: it was restored to before that"
        raise _refusal(name, fact)
    return max(within, key=lambda place: place.batch)


def _refusal(name: str, fact: str) -> RestoredSourceError:
    return RestoredSourceError(
        f"The checkpoint of trigger '{name}' {fact}. Rows could be missed, so nothing is delivered: keep the place "
        f"with 'holdfast trigger adopt {name}', or choose another one with 'holdfast trigger reset-to-cursor' or "
        "'holdfast trigger reset-to-beginning'."
    )


def _named(history: KeptHistory | History) -> str:
    """Return whose history it is, for people."""
    return f"database {history.database or '?'} of the system {history.system or '?'}"


def _shown(position: Mapping[str, int]) -> str:
    return ", ".join(f"{mark} of {name}" for name, mark in position.items()) or "its beginning"


def begun(present: History, checkpoint: JsonObject, *, is_together: bool) -> KeptHistory:
    """Return the history of a checkpoint of which none is kept: what it has passed was committed by now."""
    identity = (present.system, present.database, present.timeline)
    if is_together:
        return KeptHistory(*identity)
    position = present.position if checkpoint.get("cursor") is not None else {}
    return KeptHistory(*identity, position, 0, _with_place((), FormerPlace(0, position, _place_of(checkpoint))))


def continued(kept: KeptHistory, present: History, checkpoint: JsonObject) -> KeptHistory:
    """Return the history after one more batch, whose rows had been read when ``present`` was."""
    batch = kept.batch + 1
    recent = _with_place(kept.recent, FormerPlace(batch, present.position, _place_of(checkpoint)))
    return KeptHistory(present.system, present.database, present.timeline, present.position, batch, recent)


def turned_back(kept: KeptHistory, present: History, place: FormerPlace) -> KeptHistory:
    """Return the history of a former place, now that it is known to lie in the present one."""
    recent = [each for each in kept.recent if each.batch <= place.batch]
    return replace(moved_on(kept, present), batch=place.batch, recent=recent)


def moved_on(kept: KeptHistory, present: History) -> KeptHistory:
    """Return what is kept, now that all of it is known to lie in the present history."""
    position = present.position if kept.position else {}
    return KeptHistory(present.system, present.database, present.timeline, position, kept.batch, kept.recent)


def _mark_of(checkpoint: JsonObject) -> list[object]:
    """Return what tells a checkpoint from one that someone else has written since."""
    return [checkpoint.get("cursor"), checkpoint.get("last_successful_batch_id")]


def _place_of(checkpoint: JsonObject) -> JsonObject:
    return {key: checkpoint[key] for key in ("cursor", "lookback") if key in checkpoint}


def _with_place(recent: Sequence[FormerPlace], place: FormerPlace) -> list[FormerPlace]:
    """Return the places with one more, thinned out: the four newest of every 1, 2, 4 … 256 batches, no large ones."""
    places = [*recent, place] if len(render(place.checkpoint)) <= _LARGEST_PLACE_BYTES else list(recent)
    kept: set[int] = set()
    for level in range(_LEVELS):
        kept.update([each.batch for each in places if each.batch % (1 << level) == 0][-_KEPT_OF_LEVEL:])
    return [each for each in places if each.batch in kept]
