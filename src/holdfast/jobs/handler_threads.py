"""Where handlers run: ``def`` on threads, ``async def`` on one event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from ..core.clock import Clock
from ..runtime.event_loop import EventLoop
from .lanes import Lane, emptied
from .running import Running

_log = logging.getLogger("holdfast.jobs")


class ThreadRunner:
    """Threads that take jobs from the lines of all lanes in turn. They are started, and woken, only as they are needed.

    Waking a thread costs more than a very short job: when jobs are short, few threads do them all. Where the machine
    gives no more threads, those that are there do the work.
    """

    def __init__(self, lanes: Sequence[Lane], run: Callable[[Running], None], clock: Clock) -> None:
        self._lanes = deque(lanes)
        self._most = sum(lane.places for lane in lanes)
        self._run = run
        self._clock = clock
        self._wake_ups: SimpleQueue[bool] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()
        self._has_refused = False
        self.lost = 0  # threads whose handler was abandoned and has not come back

    def start(self, jobs: Sequence[Running]) -> None:
        """Take jobs in."""
        for running in jobs:
            running.lane.put(running)
        self.wake()

    def start_alone(self, running: Running) -> None:
        """Begin with a job at once, on a thread of its own.

        Raises:
            RuntimeError: the machine gives no thread.
        """
        threading.Thread(target=self._run_alone, args=(running,), name="holdfast-job-alone", daemon=True).start()

    def _run_alone(self, running: Running) -> None:
        self._run(running)
        with self._lock:
            self._leave(running)

    @property
    def is_alive(self) -> bool:
        """Return whether every thread that was started still works, and there is one for those in line."""
        return all(thread.is_alive() for thread in self._threads) and not (self._has_refused and not self._threads)

    def wake(self) -> None:
        """Wake as many threads as the lines need."""
        with self._lock:
            wanted = sum(lane.wanted_threads() for lane in self._lanes)
            woken = min(wanted, self._idle)
            self._idle -= woken
            new = self._started(min(wanted - woken, self._most - len(self._threads)))
        for _ in range(woken + new):
            self._wake_ups.put(True)

    def _started(self, wanted: int) -> int:
        """Start threads; return how many the machine gave."""
        for number in range(wanted):
            thread = threading.Thread(target=self._work, name=f"holdfast-job-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._refused(error)
                return number
            self._threads.append(thread)
        return max(0, wanted)

    def _refused(self, error: RuntimeError) -> None:
        if not self._has_refused:
            _log.error("Only %d of %d threads for jobs could be started: %s", len(self._threads), self._most, error)
        self._has_refused = True

    def abandon(self, running: Running) -> bool:
        """Leave a thread to a handler that does not end; return whether it has not ended meanwhile."""
        with self._lock:
            self.lost += _abandoned(running)
            return running.is_abandoned

    def stop(self) -> None:
        """Let the threads end when they are done."""
        for _ in self._threads:
            self._wake_ups.put(False)

    def _work(self) -> None:
        while self._wake_ups.get():
            self._empty_lines()
            with self._lock:
                self._idle += 1
                is_wanted = any(lane.wanted_threads() for lane in self._lanes)
            if is_wanted:  # someone came while this thread was about to rest
                self.wake()

    def _empty_lines(self) -> None:
        running, begun = self._next(None), self._clock.monotonic()
        while running is not None:
            self._run(running)
            now = self._clock.monotonic()
            running.lane.took(now - begun)
            running, begun = self._next(running), now

    def _next(self, ended: Running | None) -> Running | None:
        """Leave the job that has ended, and take the next: of each lane in turn, so that a busy one starves none."""
        with self._lock:
            if ended is not None:
                self._leave(ended)
                ended.lane.busy -= 1
            for _ in range(len(self._lanes)):
                self._lanes.rotate(-1)
                running = self._lanes[-1].next()
                if running is not None:
                    return running
        return None

    def _leave(self, ended: Running) -> None:
        """Note that a handler has come back; the caller holds the lock."""
        ended.thread = None
        self.lost -= ended.is_abandoned


class LoopRunner:
    """Jobs on an event loop of their own."""

    def __init__(self, concurrency: int, run: Callable[[Running], Coroutine[Any, Any, None]], clock: Clock) -> None:
        self._concurrency = concurrency
        self._run = run
        self._waiting: deque[Running] = deque()
        self._tasks: dict[asyncio.Task[None], Running] = {}
        self._loop = EventLoop(clock, "holdfast-jobs-loop")
        self._lock = threading.Lock()
        self._counted_seconds = 0.0  # of the present blockade
        self.lost = 0  # tasks that were abandoned and have not ended

    def start(self, jobs: Sequence[Running]) -> None:
        """Take jobs in.

        Raises:
            RuntimeError: the machine gives no thread, or the loop has died.
        """
        self._waiting.extend(jobs)
        self._loop.post(self._begin)

    def start_alone(self, running: Running) -> None:
        """Begin with a job at once, however many there are. Raises as ``start`` does."""
        self._loop.post(self._create, running)

    @property
    def is_alive(self) -> bool:
        """Return whether the loop turns, if it was ever needed."""
        return self._loop.is_alive

    @property
    def is_stuck(self) -> bool:
        """Return whether a handler keeps the loop from turning."""
        return self._loop.is_stuck

    def knock(self) -> None:
        """See whether the loop turns, if there is anything on it."""
        if self._tasks or self._waiting:
            self._loop.knock()

    def held_up(self) -> list[Running]:
        """Return the jobs that another one has kept from going on for longer than their lease."""
        stuck_seconds = self._loop.stuck_seconds
        return [job for job in self._blocked() if stuck_seconds > job.job.lease_seconds]

    def excuse(self) -> None:
        """Count no time towards ``max_seconds`` for which another job has kept the loop from turning."""
        stuck_seconds = self._loop.stuck_seconds
        uncounted, self._counted_seconds = max(0.0, stuck_seconds - self._counted_seconds), stuck_seconds
        for job in self._blocked():
            job.excused_seconds += uncounted

    def _blocked(self) -> list[Running]:
        """Return the jobs that cannot go on because another one blocks the loop."""
        if not self._loop.is_stuck:
            return []
        blocking = self._loop.current_task
        return [job for task, job in list(self._tasks.items()) if task is not blocking]  # nobody changes it now

    def take_back(self) -> list[Running]:
        """Return the jobs that have not begun."""
        return emptied(self._waiting)  # the loop takes from it too

    @property
    def waiting_since(self) -> float | None:
        """Return when the first in line was claimed, None when nobody waits for a place on the loop."""
        try:
            return self._waiting[0].started_at
        except IndexError:
            return None

    def abandon(self, running: Running) -> bool:
        """Leave a task alone that was cancelled and does not end; return whether it has not ended meanwhile."""
        with self._lock:
            self.lost += _abandoned(running)
            return running.is_abandoned

    def stop(self) -> None:
        """End the loop; what still runs on it is cancelled."""
        self._loop.stop(self._tasks.keys)

    def _begin(self) -> None:
        """Start what there is room for. Runs on the loop."""
        with suppress(IndexError):  # it was taken back meanwhile
            while self._waiting and len(self._tasks) < self._concurrency:
                self._create(self._waiting.popleft())

    def _create(self, running: Running) -> None:
        task = self._loop.create_task(self._run(running))
        running.stop_task = lambda: self._stop(task)
        self._tasks[task] = running
        task.add_done_callback(lambda ended: self._ended(ended, running))

    def _stop(self, task: asyncio.Task[None]) -> None:
        with suppress(RuntimeError):  # the loop has died, and the task with it
            self._loop.post(task.cancel)

    def _ended(self, task: asyncio.Task[None], running: Running) -> None:
        del self._tasks[task]
        with self._lock:
            running.thread = None
            self.lost -= running.is_abandoned
        if self._waiting:
            self._begin()


def _abandoned(running: Running) -> bool:
    """Give a job up unless it has just ended, or been reported: then its thread comes back in a moment."""
    running.is_abandoned = running.thread is not None and running.take_report()
    return running.is_abandoned
