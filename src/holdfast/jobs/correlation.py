"""The correlation id of the job that is running, so that what its handler enqueues belongs to the same business."""

from __future__ import annotations

from contextvars import ContextVar

current_correlation_id: ContextVar[str | None] = ContextVar("holdfast_correlation_id", default=None)
