"""The names of durabletask that orchestrators need, or a sentence that it is not installed."""

from __future__ import annotations

from ...core.errors import MissingDependencyError

try:
    from durabletask.task import RetryPolicy, TaskFailedError
except ImportError as error:
    raise MissingDependencyError("Orchestrators need durabletask: run \"pip install 'holdfast[durable]'\".") from error

__all__ = ["RetryPolicy", "TaskFailedError"]
