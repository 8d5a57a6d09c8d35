"""The keywords of jobs, for type checkers and for completion; nobody imports this at run time.

The values that they become, with their defaults, are in ``settings.py`` and ``definition.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import EllipsisType
from typing import TypedDict

from .settings import Rate


class JobOptions(TypedDict, total=False):
    """What ``hf.job`` takes beside the topic."""

    name: str | None
    priority: int
    max_attempts: int | None
    lease_seconds: float
    retry_base_seconds: float
    retry_max_seconds: float
    unique_seconds: float | None
    max_seconds: float | None
    transactional: bool
    concurrency: int | None
    concurrency_per_key: int | None
    rate: Rate | None
    rate_per_key: Rate | None
    max_payload_bytes: int


class PeriodicOptions(TypedDict, total=False):
    """What ``hf.periodic`` takes beside the job and its cron expression."""

    timezone: str
    name: str | None
    arguments: Mapping[str, object] | None


class _OneJobsOptions(TypedDict, total=False):
    run_at: datetime | None
    delay_seconds: float | None
    priority: int | None
    unique_key: str | None
    unique_seconds: float | None
    key: str | None
    correlation_id: str | None
    instance_id: str | None
    tags: Sequence[str] | None


class EnqueueOptions(_OneJobsOptions, total=False):
    """What ``JobDefinition.options`` takes."""

    max_attempts: int | EllipsisType | None


class RemoteEnqueueOptions(_OneJobsOptions, total=False):
    """What ``RemoteQueue.enqueue`` takes beside the job and its arguments."""

    max_attempts: int | None
    lease_seconds: float | None
