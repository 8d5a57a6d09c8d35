"""The event loop of ``async def`` handlers, on a thread of its own: guarded, because everybody's handlers are on it.

``sys.exit`` in a task, or a handler that stops the loop, does not end it. A handler that blocks it is noticed by
whoever knocks and gets no answer: then nothing is begun on it. A loop that dies all the same is a part that died.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any

from ..core.clock import Clock, SystemClock

STUCK_SECONDS = 0.5
_STOP_SECONDS = 2.0
_log = logging.getLogger("holdfast.runtime")


class EventLoop:
    """One loop and its thread, started when something is first posted."""

    def __init__(self, clock: Clock, name: str = "holdfast-async") -> None:
        self._clock = clock
        self._name = name
        self.forget_everything()

    def forget_everything(self) -> None:
        """Begin anew. A fork copies the loop, not its thread."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._asked_at: float | None = None
        self._has_warned = False

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Have something called on the loop.

        Raises:
            RuntimeError: the machine gives no thread, or the loop has died.
        """
        self.started().call_soon_threadsafe(call, *arguments)

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task; called on the loop."""
        assert self._loop is not None
        return self._loop.create_task(coroutine)

    def started(self) -> asyncio.AbstractEventLoop:
        """Return the loop, started. Raises ``RuntimeError`` when the machine gives no thread."""
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._turn, args=(loop,), name=self._name, daemon=True)
                thread.start()
                self._loop, self._thread = loop, thread  # not before: it would be taken for dead
            return self._loop

    @property
    def is_alive(self) -> bool:
        """Return whether the loop turns, if it was ever needed."""
        thread = self._thread  # it may be let go of meanwhile
        return thread is None or thread.is_alive()

    # Noticing that it does not turn

    def knock(self) -> None:
        """Ask the loop to answer, unless an answer is still awaited."""
        if self._asked_at is None and self._loop is not None:
            self._asked_at = self._clock.monotonic()
            with suppress(RuntimeError):  # it has died, which is seen elsewhere
                self.post(self._answer)

    @property
    def stuck_seconds(self) -> float:
        """Return for how long nobody has answered; 0 while that is no longer than a healthy loop may take."""
        asked_at = self._asked_at
        waited = 0.0 if asked_at is None else self._clock.monotonic() - asked_at
        return waited if waited > STUCK_SECONDS else 0.0

    @property
    def is_stuck(self) -> bool:
        """Return whether a handler keeps the loop from turning."""
        return self.stuck_seconds > 0

    @property
    def current_task(self) -> asyncio.Task[Any] | None:
        """Return the task in whose hands the loop is: on a loop that is stuck, the one that blocks it."""
        return None if self._loop is None else asyncio.current_task(self._loop)

    @property
    def blocked_by(self) -> str:
        """Return what people call the task that blocks the loop."""
        task = self.current_task
        if task is None:
            return "a handler"
        return task.get_name() if not task.get_name().startswith("Task-") else f"a task of {task.get_coro()}"

    def warn_once(self) -> None:
        """Say once that the loop is stuck."""
        if not self._has_warned:
            self._has_warned = True
            _log.error(
                "The event loop does not turn: %s blocks it. No async handler begins here until it does; call what "
                "blocks with asyncio.to_thread(…), or make the handler a def.",
                self.blocked_by,
            )

    def _answer(self) -> None:
        self._asked_at = None
        if self._has_warned:
            self._has_warned = False
            _log.warning("The event loop turns again")

    # Its thread

    def stop(self, tasks: Callable[[], Collection[asyncio.Task[None]]] = list) -> None:
        """End the loop; the tasks are cancelled. A handler that blocks it is left behind."""
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            self._is_stopping = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end, self._loop, tasks)
            self._thread.join(_STOP_SECONDS)

    def _end(self, loop: asyncio.AbstractEventLoop, tasks: Callable[[], Collection[asyncio.Task[None]]]) -> None:
        self._ending = loop.create_task(_cancelled(tasks()))
        self._ending.add_done_callback(lambda _: loop.stop())

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while not self._is_stopping:
                self._turn_on(loop)
        except Exception:
            _log.exception("The event loop of handlers died")
        finally:
            with suppress(Exception):  # what is broken may not even close
                loop.close()

    def _turn_on(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            _log.error("A task of a handler called for the end of the process (%r). The loop goes on.", error)


async def _cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1.0)


_of_process = EventLoop(SystemClock())

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _of_process.forget_everything())


def handlers_loop() -> EventLoop:
    """Return the loop of this process for handlers that no jobs' worker runs: a new one when the last has died."""
    global _of_process
    if not _of_process.is_alive:
        _of_process = EventLoop(SystemClock())
    return _of_process
