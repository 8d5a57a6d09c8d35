"""SIGTERM and Ctrl-C as a wish to stop, however they arrive.

A signal handler runs in the middle of whatever the main thread does. If that is ``event.wait()``, the event's lock is
taken and ``event.set()`` would wait for it for ever, so the handler only hands the news to a thread. Nor may the main
thread wait without a limit: a signal that another thread received does not wake it.
"""

from __future__ import annotations

import os
import signal
import threading
from queue import SimpleQueue
from types import FrameType
from typing import Any

from .clock import Clock

_ONE_WISH_SECONDS = 1.0


class StopSignals:
    """While open (in the main thread), SIGTERM and SIGINT set an event.

    Signals that follow within a second are the same wish: some tools signal a process and its group. A later one ends
    the process as usual.
    """

    def __init__(self, event: threading.Event, clock: Clock) -> None:
        self._event = event
        self._clock = clock
        self._before: dict[signal.Signals, Any] = {}
        self._first_at: float | None = None
        self._news: SimpleQueue[bool] = SimpleQueue()  # its put may interrupt itself
        self._thread = threading.Thread(target=self._pass_on, name="holdfast-signals", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._received)

    def __exit__(self, *_: object) -> None:
        self._restore()
        self._news.put(False)
        self._thread.join()

    def _received(self, number: int, frame: FrameType | None) -> None:
        now = self._clock.monotonic()
        if self._first_at is None:
            self._first_at = now
            self._news.put(True)
        elif now - self._first_at > _ONE_WISH_SECONDS:
            self._restore()
            os.kill(os.getpid(), number)

    def _pass_on(self) -> None:
        if self._news.get():
            self._event.set()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)
