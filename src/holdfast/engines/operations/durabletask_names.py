"""The names of durabletask that orchestrators need, or a sentence that it is not installed."""

from __future__ import annotations

from ...core.extras import needed

with needed("Orchestrators need durabletask", "durable"):
    from durabletask.task import RetryPolicy, TaskFailedError

__all__ = ["RetryPolicy", "TaskFailedError"]
