"""What a trigger's handler learns about the delivery it is part of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..runtime.context import HandlerContext


@dataclass(frozen=True, slots=True, kw_only=True)
class PollContext(HandlerContext):
    """The context of one delivery. ``attempt`` counts the tries of this batch in this run."""

    poller_name: str
    invocation_id: str
    batch_id: str
    lease_owner: str
    checkpoint_before: dict[str, object]
    checkpoint_after_candidate: dict[str, object] | None
    tick_started_at: datetime
    source_name: str
