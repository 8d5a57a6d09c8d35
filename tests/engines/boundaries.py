"""Walks a message through a path of the flow, and kills its worker at every boundary on the way, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast import Holdfast
from holdfast.engines.context import EngineContext
from holdfast.engines.flow import EngineFlow, Outcome
from holdfast.engines.invisible import KeptInvisible
from holdfast.engines.messages import EngineMessage
from holdfast.engines.ports import Ended
from holdfast.engines.queues.protocol import EngineQueue, Received
from holdfast.engines.table_records import TableRecords
from tests.engines.places import ENGINE, Bench, Killed, MortalStore

ATTEMPTS = 4  # a message that fails once may lose a worker, too, and still succeed
_MOST_DELIVERIES = 12


def usual_flow(hf: Holdfast, reached: Callable[[str], None]) -> EngineFlow:
    flow = hf.engines.flow(ENGINE)
    flow._reached = reached
    return flow


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

    def __init__(self, bench: Bench, path: Path, flow: Callable[..., EngineFlow] = usual_flow) -> None:
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
        flow = self._flow(hf, reached)
        deliveries = 0
        while (message := self._received(flow)) is not None:
            if flow.handle(message) is Outcome.CONFLICT:
                self.bench.place.let_time_pass()
            deliveries += 1
            assert deliveries < _MOST_DELIVERIES, "it does not end"

    def _received(self, flow: EngineFlow) -> Received | None:
        return self.bench.receive(flow._queue)

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

    def handle(self, received: Received) -> Outcome:
        message = self._read(received)
        if received.dequeue_count >= self._settings(message).max_retry_attempts:
            self._records.withdraw = lambda message: None  # type: ignore[method-assign]  # or it is put right afterwards
            return self._bury(received, message, self._queue)
        return super().handle(received)


class BuriesLast(EngineFlow):
    """Deletes a message before its dead letter is written."""

    def _bury(self, received: Received, message: EngineMessage, queue: EngineQueue) -> Outcome:
        queue.delete(received)
        self._reached("buried")
        return super()._bury(received, message, queue)


class TrustsItsMessage(EngineFlow):
    """Records the end of an execution without making sure that the message is still its own."""

    def _execute(self, received: Received, message: EngineMessage) -> Outcome:
        kept = KeptInvisible(self._queue, received, 30.0, self._clock)
        return self._run(_Trusting(kept), message, None)  # type: ignore[arg-type]  # as much of it as the flow uses


class _Trusting:
    def __init__(self, kept: KeptInvisible) -> None:
        self.message = kept.message
        self.lost = kept.lost
        self.when_lost = kept.when_lost

    def extend(self) -> None:
        pass

    def let_go(self) -> Received:
        return self.message


class DeletesFirst(TableRecords):
    """Deletes a message before its success is in the history."""

    def settle(self, ended: Ended, queue: EngineQueue, received: Received, reached: Callable[[str], None]) -> None:
        queue.delete(received)
        reached("recorded")
        self.record(ended)


class KnowsNoHistory(TableRecords):
    """Takes nothing for done."""

    def has_succeeded(self, message: EngineMessage) -> bool:
        return False


def with_bug(bug: type[object]) -> Callable[[Holdfast, Callable[[str], None]], EngineFlow]:
    """Return what makes flows with a bug; records in tables, as where no transaction spans them and the queue."""

    def flow(hf: Holdfast, reached: Callable[[str], None]) -> EngineFlow:
        made = usual_flow(hf, reached)
        records = hf.engines._records()
        letters, history = records.letters, records.history
        if issubclass(bug, TableRecords):
            made._records = bug(letters, history)
        else:
            made._records = TableRecords(letters, history)
            made.__class__ = bug  # type: ignore[assignment]  # a flow, with the same fields
        return made

    return flow
