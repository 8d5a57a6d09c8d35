"""Each call of a handler has context variables of its own: what it sets is gone when it ends.

Threads and loops run many handlers, one after the other. Without this, a variable that one of them sets, or the
precision it calculates with, would be the next one's, of another tenant perhaps.
"""

from __future__ import annotations

import contextvars
import decimal
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


def in_own_context(call: Callable[[], _Result]) -> _Result:
    """Call something that sees the context variables of here, and changes its own."""
    return contextvars.copy_context().run(_with_own_decimals, call)


def own_decimals() -> None:
    """Let the present context, such as that of a task, have rules for decimals of its own: its copies share theirs."""
    decimal.setcontext(decimal.getcontext().copy())


def _with_own_decimals(call: Callable[[], _Result]) -> _Result:
    own_decimals()
    return call()
