"""What a processor's handler learns about the delivery it is part of."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.context import HandlerContext
from .message import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorContext(HandlerContext):
    """The context of one delivery.

    ``checkpoint`` is what the processor has passed when this batch commits. ``attempt`` counts the tries of this batch
    in this process. ``is_active`` is False for a version that only runs beside the one in use: leave effects on the
    outside world to that one.
    """

    processor_id: str
    version: int = 1
    partition: int = 0
    checkpoint: Checkpoint | None = None
    is_active: bool = True


def without_transaction(processor_id: str) -> str:
    """Return why a processor has no ``context.transaction``."""
    return (
        f"context.transaction is not there: processor '{processor_id}' was declared with transactional=False, so its "
        "checkpoint is stored after the handler. Leave that out to have both in one transaction."
    )
