"""Bounds on what requests may take: time, and how many run at once, for each caller and for each part of the API.

A request that waits for a locked table holds a thread and a connection until the database answers. So only a few of
one part of the API (``dlq``, ``history``, …) run at once, and not all of them are one caller's: those behind them wait
without a thread, and other parts and callers go on. A request past its deadline is answered; its work ends when it
does, and keeps its slot until then.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass

from ..core.errors import ConfigurationError
from ..runtime.fair_slots import FairSlots, OpenAtOnce
from .errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """How long a request may take, how long its body, and how many run at once."""

    deadline_seconds: float = 15.0
    body_seconds: float = 10.0
    per_caller: int = 32
    per_part: int = 4

    def __post_init__(self) -> None:
        if not (self.deadline_seconds > 0 and self.body_seconds > 0 and self.per_caller >= 1 and self.per_part >= 1):
            raise ConfigurationError("Limits of requests that let nothing through: use times above 0 and 1 or more.")


class Slots:
    """Which requests run now. For one event loop."""

    def __init__(self, limits: RequestLimits) -> None:
        self._most = limits.per_part
        self._each = max(1, limits.per_part - 1)
        self._open = OpenAtOnce(limits.per_caller, ApiError.too_many_at_once)
        self._parts: dict[str, FairSlots] = {}

    def of_caller(self, name: str) -> AbstractContextManager[None]:
        """Count a request of a caller while it is answered.

        Raises:
            ApiError: 429, as many of the caller's as may be are being answered.
        """
        return self._open.counted(name)

    def of_part(self, path: str, name: str) -> AbstractAsyncContextManager[None]:
        """Have a slot of the part of the API that a path is in; what is no part shares those of the others.

        One caller has all but one of them at most, so that others have their turn in the same part.
        """
        words = path.split("/", 3)
        part = words[2] if len(words) > 2 and words[1] == "api" and words[2] in _PARTS else ""
        return self._parts.setdefault(part, FairSlots(self._most, self._each)).place(name)


_PARTS = frozenset({"dlq", "history", "engines", "registry", "audit"})
