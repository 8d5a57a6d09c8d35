"""Claims jobs up to its capacity, runs them, keeps their leases, reports how they ended, drains when told to stop."""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Engine

from ..core.clock import Clock, SystemClock, new_id
from ..core.errors import Ambiguous, ConfigurationError, Unavailable
from ..core.retry import RetryPolicy
from ..core.telemetry import MetricsCollector
from .execution import Execution
from .keeper import Keeper
from .model import ClaimedJob, PutBack, WorkerId
from .reporter import Reporter
from .runners import LoopRunner, ThreadRunner
from .running import InFlight, JobHandler, Running
from .stores.protocol import WakeUps, WorkerStore
from .telemetry import WorkerTelemetry

_AHEAD_SECONDS = 0.1
_LEAST_POLL_SECONDS = 0.02
_LINE_SECONDS = 0.01
_LOOK_AROUND_SECONDS = 0.2
_REPORT_SECONDS = 5.0
_WAITING_SECONDS = 0.5
_TOPICS_SECONDS = 1.0
_UNKNOWN_HANDLER_SECONDS = 30.0
_AFTER_ERRORS = RetryPolicy(max_retries=0, base_delay_seconds=0.1, max_delay_seconds=5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a worker works. The defaults: leases of 30 s are extended every 10 s, and looked after every 10 s."""

    concurrency: int = 10
    ahead: int = 1000
    beat_seconds: float = 10.0
    watchdog_seconds: float = 10.0
    poll_seconds: float = 1.0
    drain_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.ahead < 0:
            raise ConfigurationError("A worker needs concurrency of at least 1, and ahead of at least 0.")
        if min(self.beat_seconds, self.watchdog_seconds, self.poll_seconds) <= 0 or self.drain_seconds < 0:
            raise ConfigurationError("A worker's beat_seconds, watchdog_seconds and poll_seconds must be above 0.")


class JobWorker:
    """One worker in one process.

    Args:
        store: the queue, on connections that handlers do not use.
        keeper_store: the queue, on a connection that only beats and the watchdog use.
        transaction_engine: where ``context.transaction`` is opened.
        handlers: what to run, by topic and operation.
        stop: when set, the worker drains and ends.
    """

    def __init__(
        self,
        store: WorkerStore,
        handlers: Sequence[JobHandler],
        stop: threading.Event,
        *,
        keeper_store: WorkerStore | None = None,
        transaction_engine: Engine | None = None,
        settings: WorkerSettings | None = None,
        metrics: MetricsCollector | None = None,
        clock: Clock | None = None,
        name: str | None = None,
    ) -> None:
        self.id = WorkerId(name or f"{socket.gethostname()}-{os.getpid()}-{new_id(8)}")
        self._store = store
        self._settings = settings or WorkerSettings()
        self._clock = clock or SystemClock()
        self._stop = stop
        self._handlers: Mapping[tuple[str, str], JobHandler] = {(item.topic, item.operation): item for item in handlers}
        self._topics = sorted({item.topic for item in handlers})
        self._telemetry = WorkerTelemetry(self.id, metrics)
        self._in_flight = InFlight()
        self._wake = threading.Event()
        self._reporter = Reporter(store, self.id, self._in_flight, self._telemetry, self._clock, self._freed)
        execution = Execution(
            store,
            self.id,
            transaction_engine or store.engine,
            self._telemetry,
            self._clock,
            self._reporter.put,
            self._forget,
        )
        self._threads = ThreadRunner(self._settings.concurrency, execution.run, self._clock)
        self._loop = LoopRunner(self._settings.concurrency, execution.run_async)
        self._keeper = Keeper(
            keeper_store or store,
            self.id,
            self._in_flight,
            self._telemetry,
            self._clock,
            beat_seconds=self._settings.beat_seconds,
            watchdog_seconds=self._settings.watchdog_seconds,
            on_reaped=self._look_for_due,
        )
        self._listener = self._listening()
        self._turn = 0
        self._pace = _Pace(self._settings.concurrency, self._settings.ahead)
        self._promote_at = 0.0
        self._limited: list[str] = []
        self._limited_until = 0.0

    def _listening(self) -> WakeUps | None:
        return self._store.wake_ups(
            frozenset(self._topics), self._clock, on_jobs=self._look_for_due, on_cancel=self._cancelled
        )

    def run(self) -> bool:
        """Work until ``stop`` is set, then let running handlers finish; return whether they all did in time."""
        self._reporter.start()
        self._keeper.start()
        if self._listener is not None:
            self._listener.start()
        fetcher = threading.Thread(target=self._fetch, name="holdfast-jobs-fetcher", daemon=True)
        fetcher.start()
        while not self._clock.wait(self._stop, _LOOK_AROUND_SECONDS):
            self._keeper.lose_what_ran_out()
        self._wake.set()
        fetcher.join(self._settings.drain_seconds)
        return self._drain()

    # Fetching

    def _fetch(self) -> None:
        failures, idle = 0, 0
        while not self._stop.is_set():
            self._wake.clear()
            try:
                claimed = self._claim()
            except (Unavailable, Ambiguous) as error:
                self._telemetry.unavailable("Claiming jobs", error)
                claimed, failures = -1, failures + 1
            except Exception:
                self._telemetry.broke("Claiming jobs")
                claimed, failures = -1, failures + 1
            if claimed < 0:
                self._clock.wait(self._stop, _AFTER_ERRORS.delay_for_attempt(failures - 1))
                continue
            failures, idle = 0, 0 if claimed else idle + 1
            if not claimed:
                self._clock.wait(self._wake, self._rest(idle))
                self._threads.wake()
            self._give_back_what_waits()

    def _claim(self) -> int:
        """Claim what there is room for and start it, then look what is due; return how many jobs there were."""
        return self._claim_ready() + self._promote_due()

    def _claim_ready(self) -> int:
        """Claim from the topics without limits and from each limited one in turns, sharing the room between them.

        What was claimed is started at once: an error of the next claim must not throw it away.
        """
        free = self._pace.capacity() - len(self._in_flight)
        if free < 1:
            return 0
        limited = self._limited_topics()
        started = 0
        for turn in range(len(limited) + 1):
            place = (self._turn + turn) % (len(limited) + 1)
            share = math.ceil((free - started) / (len(limited) + 1 - turn))
            started += self._start(self._claimed(limited[place - 1] if place else None, share))
        self._turn += 1
        return started

    def _claimed(self, limited_topic: str | None, capacity: int) -> list[ClaimedJob]:
        if capacity < 1:
            return []
        if limited_topic is None:
            return self._store.claim(self.id, self._rotated_topics(), capacity)
        return self._store.claim_limited(self.id, limited_topic, capacity)

    def _rest(self, idle: int) -> float:
        """Return how long to wait for a wake-up: longer the longer there was nothing, never past what is due."""
        if self._waiting_since() is not None:
            return _LINE_SECONDS
        if self._pace.capacity() <= len(self._in_flight):
            return self._settings.poll_seconds
        poll = self._settings.poll_seconds
        if not self._store.notifies:
            poll = min(poll, _LEAST_POLL_SECONDS * 2 ** min(idle, 10))
        return max(0.0, min(poll, self._promote_at - self._clock.monotonic()))

    def _promote_due(self) -> int:
        """Let jobs whose time has come be claimed; return how many."""
        now = self._clock.monotonic()
        if now < self._promote_at:
            return 0
        self._promote_at = now + self._settings.poll_seconds
        promoted = self._store.promote()
        due_in = self._store.next_due_seconds()
        if due_in is not None:
            self._promote_at = now + min(self._settings.poll_seconds, max(_LEAST_POLL_SECONDS, due_in))
        return promoted

    def _rotated_topics(self) -> list[str]:
        """Return the topics, another one first each time, so that a busy one does not starve the rest."""
        self._topics.append(self._topics.pop(0))
        return self._topics

    def _limited_topics(self) -> list[str]:
        now = self._clock.monotonic()
        if now >= self._limited_until:
            self._limited = [topic for topic in self._store.limited_topics() if topic in self._topics]
            self._limited_until = now + _TOPICS_SECONDS
        return self._limited

    def _start(self, jobs: Sequence[ClaimedJob]) -> int:
        """Hand jobs to where they run; return how many there were."""
        if not jobs:
            return 0
        if self._stop.is_set():  # the answer came after the wish to stop
            for job in jobs:
                self._reporter.put(PutBack(job.claim))
            return len(jobs)
        now = self._clock.monotonic()
        known, unknown = [], []
        for job in jobs:
            handler = self._handlers.get((job.topic, job.operation))
            if handler is None:
                unknown.append(job)
            else:
                known.append(Running(job, handler, now))
        self._in_flight.add(known)
        self._keeper.expect_lease(min(job.lease_seconds for job in jobs))
        self._telemetry.claimed(jobs, len(self._in_flight))
        self._pace.started(known)
        self._threads.start([running for running in known if not running.handler.is_async])
        async_jobs = [running for running in known if running.handler.is_async]
        if async_jobs:
            self._loop.start(async_jobs)
        for job in unknown:
            self._telemetry.unknown(job)
            reason = f"no handler named '{job.operation}' for topic '{job.topic}' in worker {self.id}"
            self._reporter.put(PutBack(job.claim, _UNKNOWN_HANDLER_SECONDS, reason))
        return len(jobs)

    def _give_back_unbegun(self) -> None:
        """Put back what nobody has begun with."""
        unbegun = [*self._threads.take_back(), *self._loop.take_back()]
        self._pace.gave_back(len(unbegun))
        for running in unbegun:
            running.is_reported = True
            self._reporter.put(PutBack(running.claim))

    def _waiting_since(self) -> float | None:
        """Return when the job was claimed that has waited longest for its turn."""
        found = [since for since in (self._threads.waiting_since, self._loop.waiting_since) if since is not None]
        return min(found, default=None)

    def _give_back_what_waits(self) -> None:
        """Leave jobs that were claimed ahead to others when those before them take long."""
        since = self._waiting_since()
        if since is not None and self._clock.monotonic() - since > _WAITING_SECONDS:
            self._pace.slow_down()
            self._give_back_unbegun()

    # News

    def _freed(self) -> None:
        self._pace.ended(len(self._in_flight), self._clock.monotonic())
        self._wake.set()

    def _forget(self, running: Running) -> None:
        self._in_flight.remove([running.claim])
        self._freed()

    def _look_for_due(self) -> None:
        self._promote_at = 0.0
        self._wake.set()

    def _cancelled(self) -> None:
        self._keeper.beat_now()

    # Ending

    def _drain(self) -> bool:
        deadline = self._clock.monotonic() + self._settings.drain_seconds
        self._give_back_unbegun()
        while len(self._in_flight) and self._clock.monotonic() < deadline:
            self._wake.clear()
            if len(self._in_flight):
                self._clock.wait(self._wake, min(_LOOK_AROUND_SECONDS, max(0.0, deadline - self._clock.monotonic())))
                self._keeper.lose_what_ran_out()
        left = [running for running in self._in_flight.all() if not running.is_reported]
        for running in left:
            self._reporter.put(PutBack(running.claim, 0.0, "the worker stopped before the handler ended"))
            running.lose(is_certain=True)
        has_reported = self._reporter.finish(_REPORT_SECONDS)
        if self._listener is not None:
            self._listener.stop()
        self._keeper.stop()
        self._threads.stop()
        self._loop.stop()
        return has_reported and not left


class _Pace:
    """How many jobs to hold: as many as run at once, and ahead of them what is done within a moment.

    Claims cost a round trip, so short jobs are claimed ahead; long ones are left for workers that are free.
    """

    def __init__(self, concurrency: int, most_ahead: int) -> None:
        self._concurrency = concurrency
        self._most_ahead = most_ahead
        self._ahead = 0
        self._started = 0
        self._since = 0.0
        self._left = 0

    def capacity(self) -> int:
        """Return how many jobs may be in flight."""
        return self._concurrency + self._ahead

    def slow_down(self) -> None:
        """Claim nothing ahead until jobs are seen to be short again."""
        self._ahead = 0

    def gave_back(self, jobs: int) -> None:
        """Note that jobs leave without having run: they say nothing about how fast jobs are."""
        self._started -= jobs

    def started(self, jobs: Sequence[Running]) -> None:
        """Note that jobs were claimed."""
        if not jobs:
            return
        if not self._left:
            self._since = jobs[0].started_at
            self._started = 0
        self._started += len(jobs)
        self._left += len(jobs)

    def ended(self, in_flight: int, now: float) -> None:
        """Note how many are left, and look how fast they went."""
        ended = self._started - in_flight
        self._left = in_flight
        elapsed = max(1e-6, now - self._since)
        if ended > 0:
            self._ahead = min(self._most_ahead, int(ended / elapsed * _AHEAD_SECONDS))
            self._started, self._since = in_flight, now
