"""Blocking steps of coroutines on threads made for them.

The event loop's own threads are few, and may all be taken by steps that wait for this very one.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

_Result = TypeVar("_Result")


def one_thread(name: str = "holdfast-step") -> ThreadPoolExecutor:
    """Return a thread for steps that follow one another. Let go of it with ``shutdown(wait=False)``."""
    return ThreadPoolExecutor(1, thread_name_prefix=name)


def on_thread(thread: Executor, step: Callable[[], _Result]) -> asyncio.Future[_Result]:
    """Start a step with the caller's context variables. When its future is cancelled, the step still ends by itself."""
    return asyncio.get_running_loop().run_in_executor(thread, partial(contextvars.copy_context().run, step))


def on_own_thread(step: Callable[[], _Result]) -> asyncio.Future[_Result]:
    """Start a step on a thread that ends with it."""
    thread = one_thread()
    try:
        return on_thread(thread, step)
    finally:
        thread.shutdown(wait=False)
