"""Walks a message through a path of the flow, and kills its worker at every boundary on the way, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from holdfast import Holdfast
from holdfast.engines.context import EngineContext
from holdfast.engines.endings import Dropped, Drops
from holdfast.engines.lookups import SuccessLookups
from holdfast.engines.messages import EngineMessage
from holdfast.engines.ports import Delivery, Ended
from holdfast.engines.queue_delivery import QueuedDelivery
from holdfast.engines.runner import EngineFlow, Outcome
from holdfast.engines.store import TableRecords
from holdfast.jobs.model import Claim, Settled, WorkerId
from holdfast.records.history import History, SuccessKey
from tests.engines.driving import Driven, Killed
from tests.engines.places import ENGINE, Bench, MortalStore

ATTEMPTS = 4  # a message that fails once may lose a worker, too, and still succeed
_MOST_DELIVERIES = 12


def usual_flow(hf: Holdfast, reached: Callable[[str], None]) -> Driven:
    driven = Driven(hf, ENGINE)
    driven.reach(reached)
    return driven


@dataclass(frozen=True)
class Path:
    """A way that a message can go.

    ``fails`` tells whether an attempt fails, ``end`` how the message must end. ``is_done`` has it done before by
    another message, ``meets_conflict`` has another execution at work at its first delivery.
    """

    name: str
    end: str
    fails: Callable[[int], bool] = lambda attempt: False
    is_done: bool = False
    meets_conflict: bool = False


PATHS = [
    Path("success", "Succeeded"),
    Path("failure and retry", "Succeeded", fails=lambda attempt: attempt == 1),
    Path("last attempt", "dead", fails=lambda attempt: True),
    Path("already done", "Succeeded", is_done=True),
    Path("conflict", "Succeeded", meets_conflict=True),
]


class Walk:
    """Messages of one path in one place. Every message is a piece of business of its own."""

    def __init__(self, bench: Bench, path: Path, flow: Callable[..., Driven] = usual_flow) -> None:
        self.bench = bench
        self.path = path
        self._flow = flow
        self._count = 0
        self.repeated: list[str] = []
        bench.fails = lambda context: path.fails(context.attempt)
        bench.work = self._work

    def _work(self, context: EngineContext, message: EngineMessage) -> None:
        if self.bench.records.has_succeeded(message):
            self.repeated.append(message.message_id)

    def boundaries(self) -> list[tuple[str, int]]:
        """Return the boundaries of an undisturbed message, each with how often it was reached before."""
        reached: list[tuple[str, int]] = []
        self._begin()
        self._run(lambda told: reached.append((told, sum(told == name for name, _ in reached))), self.bench.hf)
        assert self._wrong() is None
        return reached

    def problems(self) -> list[str]:
        """Kill the worker of a message of its own at each boundary; return what went wrong."""
        found = []
        boundaries = self.boundaries()
        for boundary, before in boundaries:
            self._begin()
            self._killed_at(boundary, before)
            self._run(lambda told: None, self.bench.hf)
            found += self._told(f"killed at '{boundary}' ({before + 1}. time)")
        for boundary in dict.fromkeys(name for name, _ in boundaries):
            self._begin()
            for _ in range(4):
                self._killed_at(boundary, 0)
            self._run(lambda told: None, self.bench.hf)
            found += self._told(f"killed four times at '{boundary}'", ends=("Succeeded", "dead"))
        return found

    def _begin(self) -> None:
        self._count += 1
        bench, number = self.bench, self._count
        if self.path.is_done:
            bench.send(f"before-{number}", f"c-{number}")
            self._run(lambda told: None, bench.hf)
        bench.send(f"m-{number}", f"c-{number}")
        if self.path.meets_conflict:
            self._conflict()

    def _conflict(self) -> None:
        """Have the lock of the registry taken by another job for a while."""
        self.bench.hf.registry.acquire("another", duration_seconds=50)

    def _killed_at(self, boundary: str, before: int) -> bool:
        """Let workers take the message until one dies at the boundary; return whether one did."""
        state = MortalStore(self.bench.place.documents())
        seen = [0]

        def reached(told: str) -> None:
            if told == boundary:
                seen[0] += 1
                if seen[0] == before + 1:
                    state.is_dead = True
                    raise Killed

        try:
            self._run(reached, self.bench.process(state))
        except Killed:
            return True
        return False

    def _run(self, reached: Callable[[str], None], hf: Holdfast) -> None:
        """Let a worker take deliveries until nothing is left."""
        driven = self._flow(hf, reached)
        deliveries = 0
        while (message := self.bench.receive(driven.queue)) is not None:
            if driven.handle(message) is Outcome.CONFLICT:
                self.bench.place.let_time_pass()
            deliveries += 1
            assert deliveries < _MOST_DELIVERIES, "it does not end"

    def _wrong(self, ends: Sequence[str] | None = None) -> str | None:
        found = self.bench.ends(f"c-{self._count}")
        if len(found) != 1 or found[0] not in (ends or [self.path.end]):
            return f"ended {found}, not {ends or self.path.end}"
        if self.repeated:
            return f"executed again after its success: {self.repeated}"
        return None

    def _told(self, when: str, ends: Sequence[str] | None = None) -> list[str]:
        wrong = self._wrong(ends)
        self.repeated.clear()
        return [] if wrong is None else [f"{self.path.name}, {when}: {wrong}"]


# Bugs to plant


class CountsFirst(EngineFlow):
    """Looks at the count before the history, as the standard's own order has it."""

    def handle(self, delivery: Delivery) -> Outcome:
        message = self.read(delivery.received)
        if delivery.received.charged_count >= self._settings(message).max_attempts:
            assert isinstance(self._records, TableRecords)
            self._records.withdraw = lambda message: None  # type: ignore[method-assign]  # or it is put right later
            return self._bury(delivery, message)
        return super().handle(delivery)


class BuriesLast(EngineFlow):
    """Deletes a message before its dead letter is written."""

    def _bury(self, delivery: Delivery, message: EngineMessage) -> Outcome:
        delivery.forget()
        self._reached("buried")
        return super()._bury(delivery, message)


class DeletesFirst(QueuedDelivery):
    """Deletes a message before its success is in the history."""

    def succeed(self, ended: Ended) -> None:
        self.forget()
        self._reached("recorded")
        self._records.record(ended)


class KnowsNoHistory(QueuedDelivery):
    """Takes nothing for done."""

    def has_succeeded(self, message: EngineMessage) -> bool:
        return False


class TrustsItsMessage(QueuedDelivery):
    """Records the end of an execution without making sure that the message is still its own."""

    def record(self, ended: Ended) -> None:
        self._records.record(ended)


class DropsFirst(Drops):
    """Deletes messages in a transaction before the one that records their ends."""

    def settle(self, worker: WorkerId, batch: Sequence[Settled]) -> set[Claim]:
        with self._store.transaction() as connection:
            ours = self._store.drop_on(connection, worker, [report.claim for report in batch])
        with self._store.transaction() as connection:
            self._reached("dropped")
            _record(self, connection, [report.value for report in batch if report.claim in ours])
        return ours


class DropsWhatIsNotOurs(Drops):
    """Records the ends of messages whether they are still its own or not."""

    def settle(self, worker: WorkerId, batch: Sequence[Settled]) -> set[Claim]:
        super().settle(worker, batch)
        with self._store.transaction() as connection:
            _record(self, connection, [report.value for report in batch])
        return {report.claim for report in batch}


def _record(drops: Drops, connection: Connection, ends: Sequence[Dropped]) -> None:
    History(connection.engine).add_many(connection, [end.entry for end in ends if end.entry is not None])
    drops._bury(connection, ends)


class FindsNothing(SuccessLookups):
    """Takes nothing for done."""

    def has_succeeded(self, worker: WorkerId, claim: Claim, key: SuccessKey) -> bool:
        return False


def with_bug(bug: type[object]) -> Callable[[Holdfast, Callable[[str], None]], Driven]:
    """Return what makes flows with a bug."""

    def flow(hf: Holdfast, reached: Callable[[str], None]) -> Driven:
        driven = usual_flow(hf, reached)
        if issubclass(bug, EngineFlow):
            driven.flow.__class__ = bug  # a flow, with the same fields
        elif issubclass(bug, QueuedDelivery):
            driven.delivery_kind = bug
        else:
            assert driven.handler is not None
            messages = driven.handler.delivering
            planted = messages.drops if issubclass(bug, Drops) else messages.lookups
            planted.__class__ = bug  # type: ignore[assignment]  # with the same fields
        return driven

    return flow
