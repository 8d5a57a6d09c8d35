"""Whose turn it is among the waiting jobs of a limited topic: pure ordering of what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Candidate(NamedTuple):
    """A ready job that has room. When it became ready is in a form that sorts, and that any value of the column has."""

    id: int
    key: str | None
    priority: int
    ready_at: Any
    operation: str


Ready = Mapping[str, Sequence[Candidate]]  # by key, in the order in which the keys have their turn
_Place = tuple[int, int, int]  # sorts by priority, then how many of its key come before, then its key's turn


def first(candidates: Iterable[Candidate], most: int) -> list[Candidate]:
    """Return up to ``most`` jobs of any operation, higher priority first, then in the order they became ready."""
    return sorted(candidates, key=lambda job: (-job.priority, job.ready_at, job.id))[:most]


def in_turn(ready: Ready) -> list[Candidate]:
    """Return the jobs, higher priority first; among equals every key gives one job before any gives a second."""
    return [candidate for _, candidate in _placed(ready)]


def too_shallow(ready: Ready, rooms: Mapping[str, int], capacity: int) -> list[str]:
    """Return the keys of which more must be read to know the first ``capacity`` jobs.

    Args:
        ready: what was read of each key, its best jobs first.
        rooms: how many jobs there is room for, by key.
        capacity: how many jobs are wanted.
    """
    placed = _placed(ready)
    last = placed[capacity - 1][0] if len(placed) >= capacity else None
    return [
        key
        for turn, (key, jobs) in enumerate(ready.items())
        if 0 < len(jobs) < rooms[key] and (last is None or (-jobs[-1].priority, len(jobs), turn) < last)
    ]


def _placed(ready: Ready) -> list[tuple[_Place, Candidate]]:
    return sorted(
        ((-candidate.priority, before, turn), candidate)
        for turn, jobs in enumerate(ready.values())
        for before, candidate in enumerate(jobs)
    )


@dataclass(slots=True)
class FairOrder:
    """Where the claims from a topic stopped, as one worker remembers it."""

    last_key: str = ""
    is_keyless_next: bool = False

    def share(self, keyed: Sequence[Candidate], keyless: Sequence[Candidate], capacity: int) -> list[Candidate]:
        """Return up to ``capacity`` jobs, higher priority first; equals come from either side in turn."""
        taken: list[Candidate] = []
        sides = (keyed, keyless)
        used = [0, 0]
        while len(taken) < min(capacity, len(keyed) + len(keyless)):
            side = self._next_side(keyed[used[0] : used[0] + 1], keyless[used[1] : used[1] + 1])
            taken.append(sides[side][used[side]])
            used[side] += 1
        return taken

    def _next_side(self, keyed: Sequence[Candidate], keyless: Sequence[Candidate]) -> int:
        if not keyed or not keyless:
            return 0 if keyed else 1
        if keyed[0].priority != keyless[0].priority:
            return 0 if keyed[0].priority > keyless[0].priority else 1
        self.is_keyless_next = not self.is_keyless_next
        return 0 if self.is_keyless_next else 1

    def note(self, looked_at: Sequence[str], ready: Iterable[str], taken: Sequence[Candidate]) -> None:
        """Remember where to go on: after the last key that was served, but before any that was passed by.

        Args:
            looked_at: the keys that were looked at, in order.
            ready: those of them that had a job and room for it, in order.
            taken: what was claimed, in order.
        """
        served = {candidate.key: None for candidate in reversed(taken) if candidate.key is not None}
        last = self.last_key
        for key in ready:
            if key not in served:
                self.last_key = last
                return
            last = key
        if served:
            self.last_key = next(iter(served))
        elif looked_at:
            self.last_key = looked_at[-1]  # all full: the next claim looks further
