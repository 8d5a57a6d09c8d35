"""Takes single messages through their steps as a worker does, one call for each delivery.

Where the queue is in the database that is the path of the jobs' worker: a claim, ``Execution``, the reports of the
``Reporter``. Elsewhere it is that of the engines' own worker. ``Killed`` at a boundary is the death of the process:
what it has not written by then is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast import Holdfast
from holdfast.core.clock import new_id
from holdfast.core.errors import LostLeaseError
from holdfast.engines.claimed import EngineHandler, received_from
from holdfast.engines.ports import Delivery
from holdfast.engines.queue_delivery import QueuedDelivery
from holdfast.engines.queues.embedded import FORMER_OPERATION, EmbeddedQueue
from holdfast.engines.queues.protocol import EngineQueue, Received
from holdfast.engines.runner import EngineFlow, Outcome
from holdfast.engines.store import TableRecords
from holdfast.jobs.lanes import Lane
from holdfast.jobs.model import Claim, ClaimedJob, Failure, PutBack, WorkerId
from holdfast.jobs.reporter import Report, Reporter
from holdfast.jobs.runner import Execution
from holdfast.jobs.running import InFlight, Running
from holdfast.jobs.stores.base import SqlJobStore
from holdfast.jobs.telemetry import WorkerTelemetry
from tests.jobs.queues import next_suspect


class Killed(BaseException):
    """The worker died."""


class ClaimedQueue:
    """A queue in the database, from which a test claims as the jobs' worker does: suspects too, which it begins."""

    def __init__(self, queue: EmbeddedQueue) -> None:
        self._queue = queue
        self._store: SqlJobStore = queue._store
        self.worker = WorkerId(f"test-{new_id(8)}")
        self.jobs: dict[Claim, ClaimedJob] = {}
        self.name, self.topic, self.send = queue.name, queue.topic, queue.send
        self._operations = [queue.operation, FORMER_OPERATION]

    def receive(self, most: int, visibility_seconds: float) -> list[Received]:
        self._store.promote()
        jobs = self._store.claim(self.worker, {self.topic: self._operations}, most)
        while len(jobs) < most:
            suspect = next_suspect(self._store, self.worker, self._is_own)
            if suspect is None:
                break
            assert self._store.begin(self.worker, suspect.job.claim)
            jobs.append(suspect.job)
        self.jobs.update({job.claim: job for job in jobs})
        return [received_from(job) for job in jobs]

    def _is_own(self, topic: str, operation: str) -> bool:
        return topic == self.topic and operation in self._operations

    def extend(self, message: Received, visibility_seconds: float) -> Received:
        if message.receipt not in self._store.heartbeat(self.worker, [message.receipt]):
            raise LostLeaseError("It is no longer this worker's.")
        return message

    def delete(self, message: Received) -> bool:
        with self._store.transaction() as connection:
            return bool(self._store.drop_on(connection, self.worker, [message.receipt]))

    def retry_later(self, message: Received, delay_seconds: float, error: str) -> bool:
        return bool(self._store.fail(self.worker, [Failure(message.receipt, 0, error, delay_seconds)]))

    def put_back(self, message: Received, delay_seconds: float, reason: str) -> bool:
        return bool(self._store.put_back(self.worker, [PutBack(message.receipt, delay_seconds, reason)]))


TestQueue = ClaimedQueue | EngineQueue


def queue_of(hf: Holdfast, engine: str) -> Any:
    """Return the queue of an engine, as one process receives from it."""
    queue = hf.engines.queue(engine)
    return ClaimedQueue(queue) if isinstance(queue, EmbeddedQueue) else queue


class _Told(WorkerTelemetry):
    """Remembers reports that were refused."""

    def __init__(self, worker: WorkerId) -> None:
        super().__init__(worker, None)
        self.refused: set[Claim] = set()

    def stale(self, claims: Iterable[Claim]) -> None:
        self.refused.update(claims)


class Driven:
    """The flow of an engine in one process, and what drives it. ``flow`` may be changed, to plant a bug."""

    def __init__(self, hf: Holdfast, engine: str, queue: Any = None, *, is_apart: bool = False) -> None:
        self._hf = hf
        self._clock = hf._clock
        self.queue = queue or queue_of(hf, engine)
        self.handler: EngineHandler | None = None
        self.delivery_kind: type[QueuedDelivery] = QueuedDelivery
        if isinstance(self.queue, ClaimedQueue):
            self.handler, _ = [each for each in hf.engines.handlers() if each.topic == self.queue.topic]
            self.handler.delivering.is_one_database &= not is_apart
            self.flow: EngineFlow = self.handler.delivering.flow
            self.records = self.handler.delivering.records
        else:
            self.flow = hf.engines.flow(engine)
            records = self.flow._records
            assert isinstance(records, TableRecords)
            self.records = records

    def reach(self, reached: Callable[[str], None]) -> None:
        """Have boundaries told."""
        self.flow._reached = reached

    def handle(self, received: Received) -> Outcome:
        """Take one delivery to its end."""
        if isinstance(self.queue, ClaimedQueue):
            return self._claimed(self.queue, received)
        made = self.delivery_kind(self.queue, received, self.records, self._clock, self.flow.reached)
        return self.flow.handle(made)

    def _claimed(self, queue: ClaimedQueue, received: Received) -> Outcome:
        assert self.handler is not None
        running = Running(queue.jobs[received.receipt], self.handler, Lane(1, 0), self._clock.monotonic())
        in_flight, telemetry, reports = InFlight(), _Told(queue.worker), list[Report]()
        in_flight.add([running])
        self.handler.delivering.expect([running])
        store = self.handler.delivering.store
        reporter = Reporter(store, queue.worker, in_flight, telemetry, self._clock, lambda: None)
        execution = Execution(
            store,
            queue.worker,
            self._hf.database,
            telemetry,
            self._clock,
            reports.append,
            lambda running: in_flight.remove([running.claim]),
        )
        with _Watched(self.flow) as watched:
            execution.run(running)
        if watched.death is not None:
            raise watched.death
        reporter._send(reports)
        return Outcome.LOST if telemetry.refused else watched.outcome or Outcome.LOST


class _Watched:
    """Learns what a flow returned, or that the process died in it."""

    def __init__(self, flow: EngineFlow) -> None:
        self._flow = flow
        self._handle = flow.handle
        self.outcome: Outcome | None = None
        self.death: Killed | None = None

    def __enter__(self) -> _Watched:
        self._flow.handle = self._watch  # type: ignore[method-assign]
        return self

    def __exit__(self, *given: object) -> None:
        self._flow.handle = self._handle  # type: ignore[method-assign]

    def _watch(self, delivery: Delivery) -> Outcome:
        try:
            self.outcome = self._handle(delivery)
        except Killed as death:
            self.death = death
            raise
        return self.outcome
