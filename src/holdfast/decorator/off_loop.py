"""Blocking steps off the event loop.

They run on threads of our own, not on the loop's default ones: those may all be taken by triggers that wait for the
very handlers that wait for a step.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from ..core.blocking_calls import on_thread

_Result = TypeVar("_Result")
_MOST_THREADS = 32
_threads: ThreadPoolExecutor


def _begin_anew() -> None:
    """Make the threads. A fork copies what counts them, not them."""
    global _threads
    _threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="holdfast-async")


_begin_anew()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


async def off_loop(step: Callable[[], _Result], thread: Executor | None = None) -> _Result:
    """Run a step on a worker thread with the caller's context variables. When cancelled, the step still ends by itself.

    Args:
        step: what to run.
        thread: where, when it matters; otherwise on any of the shared threads.
    """
    return await on_thread(thread or _threads, step)


async def to_the_end(step: Callable[[], _Result], thread: Executor | None = None) -> _Result:
    """Do the same, but return only when the step has ended; a cancellation meanwhile is raised after it."""
    running = on_thread(thread or _threads, step)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        running.exception()  # seen; the cancellation goes first
        raise cancelled
    return running.result()
