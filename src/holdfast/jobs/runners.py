"""Where handlers run: ``def`` on threads, ``async def`` on one event loop."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from ..core.clock import Clock
from .running import Running

_BRIEF_SECONDS = 0.002
_STOP_SECONDS = 2.0


class ThreadRunner:
    """A few threads that take jobs from one line. Threads are started, and woken, only as they are needed.

    Waking a thread costs more than a very short job: when jobs are short, few threads do them all.
    """

    def __init__(self, threads: int, run: Callable[[Running], None], clock: Clock) -> None:
        self._most = threads
        self._run = run
        self._clock = clock
        self._line: deque[Running] = deque()
        self._wake_ups: SimpleQueue[bool] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._mean_seconds = 1.0
        self._lock = threading.Lock()

    def start(self, jobs: Sequence[Running]) -> None:
        """Take jobs in."""
        self._line.extend(jobs)
        self.wake()

    @property
    def waiting_since(self) -> float | None:
        """Return when the first in line was claimed, None when nobody waits for a thread."""
        return _claimed_at(self._line)

    def wake(self) -> None:
        """Wake as many threads as the line needs."""
        waiting = len(self._line)
        wanted = min(waiting, 1 + math.ceil(waiting * min(1.0, self._mean_seconds / _BRIEF_SECONDS)))
        with self._lock:
            woken = min(wanted, self._idle)
            self._idle -= woken
            new = min(wanted - woken, self._most - len(self._threads))
            for _ in range(new):
                name = f"holdfast-job-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
        for _ in range(woken + new):
            self._wake_ups.put(True)

    def take_back(self) -> list[Running]:
        """Return the jobs no thread has begun with."""
        waiting = []
        with suppress(IndexError):
            while True:
                waiting.append(self._line.popleft())
        return waiting

    def stop(self) -> None:
        """Let the threads end when they are done."""
        for _ in self._threads:
            self._wake_ups.put(False)

    def _work(self) -> None:
        while self._wake_ups.get():
            self._empty_line()
            with self._lock:
                self._idle += 1
            if self._line:  # someone came while this thread was about to rest
                self.wake()

    def _empty_line(self) -> None:
        started, count = self._clock.monotonic(), 0
        while True:
            try:
                running = self._line.popleft()
            except IndexError:
                break
            self._run(running)
            count += 1
        if count:
            self._mean_seconds = (self._clock.monotonic() - started) / count


class LoopRunner:
    """One event loop on a thread of its own, started with the first job."""

    def __init__(self, concurrency: int, run: Callable[[Running], Coroutine[Any, Any, None]]) -> None:
        self._concurrency = concurrency
        self._run = run
        self._waiting: deque[Running] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, jobs: Sequence[Running]) -> None:
        """Take jobs in."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._turn, name="holdfast-jobs-loop", daemon=True)
            self._thread.start()
        self._waiting.extend(jobs)
        self._loop.call_soon_threadsafe(self._begin)

    def take_back(self) -> list[Running]:
        """Return the jobs that have not begun."""
        waiting = []
        with suppress(IndexError):  # the loop takes from it too
            while True:
                waiting.append(self._waiting.popleft())
        return waiting

    @property
    def waiting_since(self) -> float | None:
        """Return when the first in line was claimed, None when nobody waits for a place on the loop."""
        return _claimed_at(self._waiting)

    def stop(self) -> None:
        """End the loop; what still runs on it is cancelled."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_SECONDS)  # a handler that blocks the loop is left behind

    def _turn(self) -> None:
        assert self._loop is not None
        try:
            self._loop.run_forever()
            self._cancel_all()
        finally:
            self._loop.close()

    def _cancel_all(self) -> None:
        assert self._loop is not None
        left = list(self._tasks)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=1.0))

    def _begin(self) -> None:
        """Start what there is room for. Runs on the loop."""
        assert self._loop is not None
        while self._waiting and len(self._tasks) < self._concurrency:
            running = self._waiting.popleft()
            task = self._loop.create_task(self._run(running))
            running.stop_task = lambda task=task: self._stop(task)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _stop(self, task: asyncio.Task[None]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(task.cancel)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting:
            self._begin()


def _claimed_at(line: deque[Running]) -> float | None:
    try:
        return line[0].started_at
    except IndexError:
        return None
