"""Claims jobs up to its capacity, runs them, keeps their leases, reports how they ended, drains when asked to stop."""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from sqlalchemy.engine import Engine

from ..core.clock import Clock, SystemClock, new_id
from ..core.retry import doubling
from ..core.telemetry import MetricsCollector
from ..runtime.supervisor import watch
from .announcement import Announcement
from .claiming import BackOff, Claiming
from .handler_threads import LoopRunner, ThreadRunner
from .held import HeldJobs
from .lanes import Lane
from .model import ClaimedJob, PutBack, WorkerId
from .once import OnceLine, may_run_once
from .overdue import Overdue, report_left_behind
from .reporter import Report, Reporter
from .runner import Execution
from .running import InFlight, JobHandler, Running
from .settings import WorkerSettings, checked_key
from .stores.protocol import WakeUps, WorkerStore
from .suspects import Suspects
from .telemetry import WorkerTelemetry
from .watchdog import Watchdog

_LEAST_POLL_SECONDS = 0.02
_LEAST_REST_SECONDS = 0.001
_LINE_SECONDS = 0.01
_LOOK_AROUND_SECONDS = 0.2
_REPORT_SECONDS = 5.0
_WAITING_SECONDS = 0.5
_LONG_SECONDS = 60.0
_LOOP_STUCK = "The event loop does not turn"
_THREADS_STUCK = f"Every thread has been busy with one job for {_LONG_SECONDS:g} s"
_LONGEST_REST = 5  # polls, where wake-ups come


class JobWorker:
    """One worker in one process.

    Args:
        store: the queue, on connections that handlers do not use.
        keeper_store: the queue, on a connection that only beats use.
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
        self.id = WorkerId(checked_key("Worker", name or f"{socket.gethostname()}-{os.getpid()}-{new_id(8)}"))
        self._store = store
        self._settings = settings or WorkerSettings()
        self._clock = clock or SystemClock()
        self._stop = stop
        self._handlers: Mapping[tuple[str, str], JobHandler] = {(item.topic, item.operation): item for item in handlers}
        self._jobs = Lane(self._settings.concurrency, self._settings.ahead)
        self._lanes = self._lanes_of(handlers)
        self._found = {key: (item, self._lanes[key]) for key, item in self._handlers.items()}
        self._groups = _in_groups(self._jobs, self._lanes.values())
        self._wanted = _operations_by_topic(handlers)
        self._telemetry = WorkerTelemetry(self.id, metrics)
        self._in_flight = InFlight()
        self._wake = threading.Event()
        self._may_be_due = threading.Event()
        self._reporter = Reporter(
            store, self.id, self._in_flight, self._telemetry, self._clock, self._freed, self._look_for_due
        )
        execution = Execution(
            store,
            self.id,
            transaction_engine or store.engine,
            self._telemetry,
            self._clock,
            self._report,
            self._forget,
        )
        lanes = [lane for group in self._groups for lane in group]
        self._threads = ThreadRunner(lanes, execution.run, self._clock)
        self._loop = LoopRunner(self._settings.concurrency, execution.run_async, self._clock)
        self._once = OnceLine(self._in_flight, self._clock, lambda running: self._hand_over([running]))
        self._suspects = Suspects(
            store,
            self.id,
            self._in_flight,
            self._clock,
            claim=lambda: self._claiming.claim_suspect(self.id, self._can_run),
            hold=self._hold_suspect,
            make_way=self._give_back_unbegun,
            start=self._start_alone,
            put_back=self._put_back,
        )
        self._overdue = Overdue(self._in_flight, self._clock, abandon=self._abandon, report=self._reporter.put)
        self._dead_parts: list[str] = []
        self._stuck: set[str] = set()
        self._held = HeldJobs(
            keeper_store or store,
            self.id,
            self._in_flight,
            self._telemetry,
            self._clock,
            beat_seconds=self._settings.beat_seconds,
            is_live=self._is_live,
        )
        self._watchdog = Watchdog(
            store,
            self._telemetry,
            self._clock,
            seconds=self._settings.watchdog_seconds,
            before=self._held.heartbeat,
            on_reaped=self._look_for_due,
        )
        self._listener = self._listening()
        self._announcement = Announcement(store, self.id, lambda: self._wanted, self._clock)
        self._announcing = BackOff("Announcing what this worker can run", self._telemetry, self._clock)
        self._announce_at = 0.0
        self._claiming = Claiming(store, self._telemetry, self._clock)
        self._fetching = BackOff("Starting jobs", self._telemetry, self._clock)
        self._testing = BackOff("Testing suspects", self._telemetry, self._clock)
        self._promoting = BackOff("Looking for jobs that are due", self._telemetry, self._clock)
        self._promote_at = 0.0
        self._turn = 0

    def _lanes_of(self, handlers: Sequence[JobHandler]) -> dict[tuple[str, str], Lane]:
        """Return the lane of each operation: that of jobs, or one for each engine."""
        apart = {id(item.delivering): item.delivering for item in handlers}
        lanes = {key: Lane(own.concurrency, self._settings.ahead) for key, own in apart.items() if own is not None}
        return {(item.topic, item.operation): lanes.get(id(item.delivering), self._jobs) for item in handlers}

    def _listening(self) -> WakeUps | None:
        return self._store.wake_ups(
            self._wanted, self._clock, on_jobs=self._look_for_due, on_cancel=self._held.beat_now
        )

    def run(self) -> bool:
        """Work until ``stop`` is set, then let running handlers finish; return whether they all did in time.

        When a part of the worker dies, it sets ``stop`` itself, lets go of what that part held, drains the rest and
        returns False.
        """
        fetcher = threading.Thread(target=self._fetch, name="holdfast-jobs-fetcher", daemon=True)
        self._reporter.start()
        self._held.start()
        self._watchdog.start()
        if self._listener is not None:
            self._listener.start()
        fetcher.start()
        self._dead_parts = watch(self._parts(fetcher), self._stop, self._clock, self._look_around)
        if self._dead_parts:  # the others must not keep alive what these held
            self._telemetry.broken(self._dead_parts)
            self._stop.set()
        self._wake.set()
        return self._drain(fetcher)

    # Watching

    def dead_parts(self) -> list[str]:
        """Return the parts that died, for which it ended."""
        return self._dead_parts

    def _parts(self, fetcher: threading.Thread) -> dict[str, Callable[[], bool]]:
        """Return what it leans on, each with what returns whether it is alive."""
        listener = self._listener
        return {
            "the reporter": lambda: self._reporter.is_alive,
            "the keeper of leases": lambda: self._held.is_alive,
            "the watchdog": lambda: self._watchdog.is_alive,
            "the listener": lambda: listener is None or listener.is_alive,
            "the fetcher": fetcher.is_alive,
            "the threads of handlers": lambda: self._threads.is_alive,
            "the event loop": lambda: self._loop.is_alive,
            "the last place for a handler": lambda: self._lost < self._settings.concurrency,
        }

    @property
    def _lost(self) -> int:
        """Return how many places are taken by handlers that were abandoned."""
        return self._threads.lost + self._loop.lost

    def _look_around(self) -> None:
        if not self._held.is_alive:
            self._held.mark_lost()  # else the keeper looks at the clock
        self._loop.knock()
        self._log_stuck(_LOOP_STUCK, self._loop.is_stuck, is_async=True)
        self._log_stuck(_THREADS_STUCK, self._are_threads_stuck(), is_async=False)
        self._let_go_of_the_held_up()
        self._loop.excuse()
        for running in self._overdue.look():
            self._telemetry.abandoned(running, self._lost)

    def _are_threads_stuck(self) -> bool:
        """Return whether jobs hold every thread for long. Operations of engines, in lanes of their own, may."""
        long_ago = self._clock.monotonic() - _LONG_SECONDS
        return len(self._begun(is_async=False, before=long_ago)) >= self._settings.concurrency

    def _begun(self, *, is_async: bool, before: float = math.inf) -> list[Running]:
        every = self._in_flight.all()
        return [
            item
            for item in every
            if item.handler.is_async is is_async
            and item.handler.delivering is None
            and item.begun_at is not None
            and item.begun_at < before
        ]

    def _log_stuck(self, what: str, is_stuck: bool, *, is_async: bool) -> None:
        """Say once that handlers are in the way, and once that it is over."""
        if is_stuck and what not in self._stuck:
            self._stuck.add(what)
            self._telemetry.stuck(what, self._begun(is_async=is_async))
            self._wake.set()
        elif not is_stuck and what in self._stuck:
            self._stuck.discard(what)
            self._telemetry.unstuck(what)

    def _abandon(self, running: Running) -> bool:
        return self._loop.abandon(running) if running.handler.is_async else self._threads.abandon(running)

    def _is_live(self, running: Running) -> bool:
        """Return whether a job can still end by itself: nobody beats for one whose thread has died."""
        return self._reporter.is_alive if running.is_reported else running.has_live_thread

    def _let_go_of_the_dead(self) -> None:
        """Put back what ran on a thread or loop that died."""
        for running in self._in_flight.all():
            if not running.has_live_thread and running.take_report():
                self._reporter.put(PutBack(running.claim, 0.0, "what ran it in its worker died"))

    def _let_go_of_the_held_up(self) -> None:
        """Leave to others what waits on a blocked loop for longer than its lease: beats must not keep it for ever."""
        for running in self._loop.held_up():
            if self._loop.abandon(running):
                running.lose(is_certain=True)
                held_up = PutBack(running.claim, 0.0, "another handler blocked the event loop")
                self._overdue.cut(running.transaction, held_up)

    # Fetching

    def _fetch(self) -> None:
        idle = 0
        has_news = True
        while True:
            self._wake.clear()
            if self._stop.is_set():  # looked at after the clearing, which may have taken the call to end with it
                return
            claimed = self._fetching.attempt(partial(self._claim, has_news), 0)
            idle = 0 if claimed else idle + 1
            has_news = bool(claimed)
            if not claimed:
                has_news = self._clock.wait(self._wake, self._rest(idle)) or not self._store.notifies
                has_news = has_news or self._claiming.opens_in_seconds(self._wanted) <= 0
                self._threads.wake()
            self._give_back_what_waits()

    def _claim(self, has_news: bool = True) -> int:
        """Claim what there is room for and start it, then look what is due; return how many jobs there were.

        While a suspect is tested nothing else begins. Trouble with suspects keeps no other job waiting.
        """
        self._announce()
        tested = self._testing.attempt(self._suspects.step, 0)
        if self._suspects.is_testing:
            return tested + self._promote_due()
        started = self._claim_ready(has_news)
        if not started and not len(self._in_flight):
            self._suspects.nothing_else()
        self._once.advance()
        return tested + started + self._promote_due()

    def _announce(self) -> None:
        """Say now and then what this worker can run."""
        now = self._clock.monotonic()
        if now >= self._announce_at:
            self._announce_at = now + self._announcing.attempt(self._announcement.tick, 0.0)

    def _claim_ready(self, has_news: bool) -> int:
        """Claim what there is room for, jobs and messages of engines; without news, one of the two in turn."""
        if self._loop.is_stuck and self._store.engine is None:
            self._store.give_back_waiting()  # a server sends whatever the worker has announced
            return 0
        self._turn += 1
        groups = self._groups if has_news else [self._groups[self._turn % len(self._groups)]]
        return sum(map(self._claim_for, groups))

    def _claim_for(self, lanes: Sequence[Lane]) -> int:
        """Claim what lanes have room for; nothing that needs the event loop while it is stuck."""
        rooms = {lane: free for lane in lanes if (free := self._room(lane)) > 0}
        mosts = {topic: rooms[lane] for (topic, _), lane in self._lanes.items() if lane in rooms}
        if not mosts:
            return 0
        able = [item for item in self._handlers.values() if not self._is_held_up(item)]
        possible = self._wanted if len(able) == len(self._handlers) else _operations_by_topic(able)
        wanted = {topic: operations for topic, operations in possible.items() if topic in mosts}
        return sum(map(self._start, self._claiming.claim(self.id, wanted, sum(rooms.values()), mosts)))

    def _room(self, lane: Lane) -> int:
        return lane.room() - (self._lost if lane is self._jobs else 0)

    def _can_run(self, topic: str, operation: str) -> bool:
        handler = self._handlers.get((topic, operation))
        return handler is not None and not self._is_held_up(handler)

    def _is_held_up(self, handler: JobHandler) -> bool:
        """Return whether the event loop that a handler needs is stuck."""
        if handler.delivering is not None:
            return handler.delivering.is_held_up
        return handler.is_async and self._loop.is_stuck

    def _rest(self, idle: int) -> float:
        """Return how long to wait for a wake-up: longer the longer there was nothing, never past what is due."""
        if self._fetching.due_in_seconds < math.inf:
            return self._fetching.due_in_seconds
        failing = self._testing.due_in_seconds
        tests = failing if failing < math.inf else self._suspects.seconds_left()
        claims = self._settings.poll_seconds if self._suspects.is_testing else self._rest_of_claims(idle)
        return min(tests, claims)

    def _rest_of_claims(self, idle: int) -> float:
        if any(self._waiting_since(lane) is not None for lane in self._lanes.values()):
            return _LINE_SECONDS
        if not any(self._room(lane) > 0 for lane in self._lanes.values()):
            return self._settings.poll_seconds
        poll = self._settings.poll_seconds
        if self._store.notifies:
            poll = doubling(poll, _LONGEST_REST * poll, idle)
        else:
            poll = min(poll, doubling(_LEAST_POLL_SECONDS, poll, idle))
        retry = max(_LEAST_POLL_SECONDS, self._claiming.retry_in_seconds())  # due now, but perhaps not asked
        rate = max(_LEAST_REST_SECONDS, self._claiming.opens_in_seconds(self._wanted))
        return max(0.0, min(poll, self._promote_at - self._clock.monotonic(), retry, rate))

    def _promote_due(self) -> int:
        """Let jobs whose time has come be claimed; return how many."""
        now = self._clock.monotonic()
        if now < self._promote_at and not self._may_be_due.is_set():
            return 0
        self._may_be_due.clear()  # before the look: what comes beside it is looked for again
        self._promote_at = now + self._settings.poll_seconds
        return self._promoting.attempt(self._promoted, 0)

    def _promoted(self) -> int:
        now = self._clock.monotonic()
        promoted, due = 0, self._store.next_due()
        if due.seconds is not None and due.seconds <= 0:
            promoted, due = self._store.promote(), self._store.next_due()
        self._suspects.heard(due.has_suspects)
        rest = self._settings.poll_seconds * (_LONGEST_REST if self._store.notifies else 1)
        self._promote_at = now + (rest if due.seconds is None else min(rest, max(_LEAST_POLL_SECONDS, due.seconds)))
        return promoted + due.has_suspects

    def _start(self, jobs: Sequence[ClaimedJob]) -> int:
        """Hand jobs to where they run; return how many there were."""
        if not jobs:
            return 0
        if self._stop.is_set():  # the answer came after the wish to stop
            for job in jobs:
                self._reporter.put(PutBack(job.claim))
            return len(jobs)
        now = self._clock.monotonic()
        known = [Running(job, *self._found[job.topic, job.operation], now) for job in jobs]
        self._in_flight.add(known)
        self._held.expect_lease(min(job.lease_seconds for job in jobs))
        self._telemetry.claimed(jobs, len(self._in_flight))
        lanes = {running.lane for running in known}
        for lane in lanes:
            self._started(lane, known if len(lanes) == 1 else [running for running in known if running.lane is lane])
        once = [running for running in known if may_run_once(running)]
        self._hand_over([running for running in known if not may_run_once(running)] if once else known)
        self._once.put(once)
        return len(jobs)

    def _started(self, lane: Lane, jobs: Sequence[Running]) -> None:
        lane.pace.started(jobs)
        delivering = jobs[0].handler.delivering
        if delivering is not None:
            delivering.expect(jobs)

    def _hand_over(self, jobs: Sequence[Running]) -> None:
        """Hand jobs to where they run."""
        self._threads.start([running for running in jobs if not running.handler.is_async])
        async_jobs = [running for running in jobs if running.handler.is_async]
        if async_jobs:
            with suppress(RuntimeError):  # the loop has died: what waits for it is given back when that is noticed
                self._loop.start(async_jobs)

    def _hold_suspect(self, job: ClaimedJob) -> Running:
        running = Running(job, *self._found[job.topic, job.operation], self._clock.monotonic())
        self._in_flight.add([running])
        if running.handler.delivering is not None:
            running.handler.delivering.expect([running])
        self._held.expect_lease(job.lease_seconds)
        self._telemetry.claimed([job], len(self._in_flight))
        self._telemetry.tested(job)
        return running

    def _start_alone(self, running: Running) -> None:
        runner = self._loop if running.handler.is_async else self._threads
        try:
            runner.start_alone(running)
        except RuntimeError as error:  # no thread can be had
            self._put_back(running, str(error))

    def _put_back(self, running: Running, reason: str | None = None) -> None:
        running.is_reported = True
        self._reporter.put(PutBack(running.claim, 0.0, reason))

    def _give_back_unbegun(self) -> None:
        """Put back what nobody has begun with."""
        for lane in dict.fromkeys(self._lanes.values()):
            self._give_back_line(lane)

    def _give_back_line(self, lane: Lane) -> None:
        self._give_back([running for line in self._lines(lane) for running in line.take_back()])

    def _give_back(self, unbegun: Sequence[Running]) -> None:
        for running in unbegun:
            running.lane.pace.gave_back(1)
            self._put_back(running)

    def _lines(self, lane: Lane) -> Sequence[Lane | LoopRunner | OnceLine]:
        """Return where the jobs of a lane wait."""
        return (lane, self._loop, self._once) if lane is self._jobs else (lane,)

    def _waiting_since(self, lane: Lane) -> float | None:
        """Return when the job was claimed that has waited longest for its turn."""
        found = (line.waiting_since for line in self._lines(lane))
        return min((since for since in found if since is not None), default=None)

    def _give_back_what_waits(self) -> None:
        """Leave jobs that were claimed ahead to others when those before them take long, or the loop is stuck."""
        if self._loop.is_stuck:
            self._give_back(self._loop.take_back())
        for lane in dict.fromkeys(self._lanes.values()):
            since = self._waiting_since(lane)
            if since is not None and self._clock.monotonic() - since > _WAITING_SECONDS:
                lane.pace.slow_down()
                self._give_back_line(lane)

    # News

    def _freed(self) -> None:
        now = self._clock.monotonic()
        for lane in dict.fromkeys(self._lanes.values()):
            lane.pace.ended(lane.in_flight, now)
        self._once.advance()
        self._wake.set()

    def _report(self, report: Report) -> None:
        if self._once.is_awaited(report.claim):
            self._reporter.put_now(report)
        else:
            self._reporter.put(report)

    def _forget(self, running: Running) -> None:
        self._in_flight.remove([running.claim])
        self._freed()

    def _look_for_due(self) -> None:
        """Have the fetcher look what is due, from any thread: when it looks next is the fetcher's own to write."""
        self._may_be_due.set()
        self._wake.set()

    # Ending

    def _drain(self, fetcher: threading.Thread) -> bool:
        deadline = self._clock.monotonic() + self._settings.drain_seconds
        self._give_back_unbegun()
        if self._has_ended(fetcher, deadline):
            self._suspects.stop()
            self._give_back_unbegun()  # what the last claim has brought
        while self._are_ending() and self._clock.monotonic() < deadline:
            self._wake.clear()
            if self._are_ending():
                self._clock.wait(self._wake, min(_LOOK_AROUND_SECONDS, max(0.0, deadline - self._clock.monotonic())))
                self._look_around()
        left = [running for running in self._in_flight.all() if running.take_report()]
        for running in left:
            running.lose(is_certain=True)
            if running.let_go is not None:
                with suppress(Exception):  # what is held besides ends by itself
                    running.let_go()
            self._reporter.put(report_left_behind(running))
        has_reported = self._reporter.finish(_REPORT_SECONDS)
        if self._listener is not None:
            self._listener.stop()
        self._watchdog.stop(_REPORT_SECONDS if has_reported else 0.0)
        self._held.stop()
        self._threads.stop()
        self._loop.stop()
        if has_reported:  # else the database does not answer, and has had its time
            self._announcement.withdraw()
        return has_reported and not left and not self._dead_parts and not self._lost

    def _has_ended(self, fetcher: threading.Thread, deadline: float) -> bool:
        """Wait for the claim that is under way; return whether it was answered in time."""
        while fetcher.is_alive() and (left := deadline - self._clock.monotonic()) > 0:
            fetcher.join(min(_LOOK_AROUND_SECONDS, left))
            self._look_around()
        return not fetcher.is_alive()

    def _are_ending(self) -> bool:
        """Return whether there is anything to wait for: reports that nobody sends are not."""
        self._let_go_of_the_dead()
        return any(self._is_live(running) for running in self._in_flight.all())


def _operations_by_topic(handlers: Sequence[JobHandler]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for topic, operation in sorted({(item.topic, item.operation) for item in handlers}):
        found.setdefault(topic, []).append(operation)
    return found


def _in_groups(jobs: Lane, lanes: Iterable[Lane]) -> list[list[Lane]]:
    """Return the lanes that claim together: that of jobs, and those of engines."""
    every = list(dict.fromkeys(lanes))
    groups = [[lane for lane in every if lane is jobs], [lane for lane in every if lane is not jobs]]
    return [group for group in groups if group] or [[jobs]]
