"""What an engine's handler is told about the execution it is part of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """The context of one execution.

    ``attempt`` counts deliveries, from 1. ``lease_lost`` is set when another worker may have the message: stop when
    convenient, nothing will be recorded. ``registry`` is the locked registry of a singleton, None otherwise.
    """

    engine: str
    operation: str
    correlation_id: str
    message_id: str
    instance_id: str
    attempt: int = 1
    causation_id: str | None = None
    registry: Any = None
    lease_lost: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    _beat: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def heartbeat(self) -> None:
        """Keep the message invisible from now on for its whole time. That is done anyway while the handler runs.

        Raises:
            LostLeaseError: the message is someone else's by now.
        """
        self._beat()
