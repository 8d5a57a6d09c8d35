"""What became of every message, and every way in which that can be wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import accumulate, pairwise

from sqlalchemy import text
from sqlalchemy.engine import Engine

from tests.outbox.faults.app import OPTIONS

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Account:
    """The account of one processor. Only ``duplicated`` may be above zero, for one that is not transactional."""

    committed: int
    rolled_back: int
    effects: int
    lost: int
    duplicated: int
    effects_of_rolled_back: int
    out_of_order: int
    mismatches_rejected: int

    def __str__(self) -> str:
        names = [field.name.replace("_", " ") for field in fields(self)]
        widths = [max(8, len(name)) for name in names]
        heads = "  ".join(name.rjust(width) for name, width in zip(names, widths, strict=True))
        figures = "  ".join(str(value).rjust(width) for value, width in zip(astuple(self), widths, strict=True))
        return f"{heads}\n{figures}"


@dataclass(frozen=True, slots=True)
class Ends:
    """How transactions ended, as far as their writers know: which messages surely did or did not commit."""

    committed: frozenset[str]
    undone: frozenset[str]
    unsure: frozenset[str]

    def settled(self, present: Collection[str]) -> Ends:
        """Return the same with every unanswered COMMIT decided by whether its message is there."""
        there = self.unsure.intersection(present)
        return Ends(self.committed | there, self.undone | (self.unsure - there), frozenset())


@dataclass(frozen=True, slots=True)
class Effect:
    """One write of a handler."""

    message_id: str
    place: Place


class Books:
    """What the database says at the end of a run."""

    def __init__(self, engine: Engine, ends: Ends, mismatches: Counter[str] | None = None) -> None:
        transaction_id = "CAST(transaction_id AS text)" if engine.dialect.name == "postgresql" else "0"
        outbox = text(f"SELECT message_id, {transaction_id}, position FROM holdfast_outbox")
        with engine.connect() as connection:
            self.outbox: dict[str, Place] = {row[0]: (int(row[1]), row[2]) for row in connection.execute(outbox)}
            self._orders = Counter(connection.execute(text("SELECT message_id FROM orders")).scalars())
            found = connection.execute(
                text("SELECT processor_id, message_id, transaction_id, position FROM effects ORDER BY number")
            ).all()
        self._effects: dict[str, list[Effect]] = {}
        for processor_id, message_id, transaction, position in found:
            self._effects.setdefault(processor_id, []).append(Effect(message_id, (transaction, position)))
        self.ends = ends.settled(self.outbox)
        self._mismatches = mismatches or Counter()

    def account(self, processor_id: str) -> Account:
        """Return the figures of a processor."""
        effects = self._effects.get(processor_id, [])
        times = Counter(effect.message_id for effect in effects)
        return Account(
            committed=len(self.ends.committed),
            rolled_back=len(self.ends.undone),
            effects=len(effects),
            lost=len(self.ends.committed - times.keys()),
            duplicated=sum(count - 1 for count in times.values()),
            effects_of_rolled_back=sum(times[message_id] for message_id in self.ends.undone),
            out_of_order=out_of_order([in_order_of(processor_id, effect.place) for effect in first_of_each(effects)]),
            mismatches_rejected=self._mismatches[processor_id],
        )

    def problems(self, processor_ids: Iterable[str], repeated: Collection[str] = ()) -> list[str]:
        """Return every broken promise, in words; the processors in ``repeated`` may deliver twice."""
        found = list(self._wrong_appends())
        for processor_id in processor_ids:
            found += [f"{processor_id}: {what}" for what in self._wrong_effects(processor_id, processor_id in repeated)]
        return found

    def _wrong_appends(self) -> Iterable[str]:
        """The outbox holds what committed, nothing else, and the data that was written with it."""
        wrong = {
            "committed and not in the outbox": self.ends.committed - self.outbox.keys(),
            "rolled back and in the outbox": self.ends.undone & self.outbox.keys(),
            "in the outbox, and nobody wrote it": self.outbox.keys() - self.ends.committed - self.ends.undone,
        }
        yield from (f"{what}: {name}" for what, names in wrong.items() for name in sorted(names))
        if self._orders != Counter(self.outbox.keys()):
            yield "the data and the messages written with it differ"

    def _wrong_effects(self, processor_id: str, may_repeat: bool) -> Iterable[str]:
        account = self.account(processor_id)
        for name in ("lost", "effects_of_rolled_back", "out_of_order", *(() if may_repeat else ("duplicated",))):
            if count := getattr(account, name):
                yield f"{name.replace('_', ' ')} {count}"
        for effect in self._effects.get(processor_id, ()):
            if effect.place != self.outbox.get(effect.message_id):
                yield f"{effect.message_id} was delivered as {effect.place} and is {self.outbox.get(effect.message_id)}"


def in_order_of(processor_id: str, place: Place) -> Place:
    """Return what a processor orders messages by."""
    return (0, place[1]) if OPTIONS.get(processor_id, {}).get("order") == "position" else place


def first_of_each(effects: Iterable[Effect]) -> list[Effect]:
    """Return the first effect of each message, in the order they were written."""
    first: dict[str, Effect] = {}
    for effect in effects:
        first.setdefault(effect.message_id, effect)
    return list(first.values())


def out_of_order(places: Sequence[Place]) -> int:
    """Return how many come after one that they should come before."""
    return sum(place < highest for highest, place in zip(accumulate(places, max), places, strict=True))


def falls(numbers: Sequence[int]) -> int:
    """Return how often a number is not above the one before it."""
    return sum(later <= earlier for earlier, later in pairwise(numbers))
