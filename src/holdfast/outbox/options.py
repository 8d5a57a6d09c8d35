"""The keywords of processors, for type checkers and for completion; nobody imports this at run time.

The value that they become, with its defaults, is in ``definition.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from ..core.retry import RetryPolicy
from .message import Checkpoint


class ProcessorOptions(TypedDict, total=False):
    """What ``hf.processor`` takes beside the id, and ``hf.relay`` beside id and sink."""

    start_from: str | Checkpoint
    first_kept: str | Checkpoint | None
    types: Sequence[str] | None
    version: int
    partitions: int
    batch_size: int
    order: str
    transactional: bool
    lease_seconds: float
    heartbeat_seconds: float | None
    poll_seconds: float
    retry_policy: RetryPolicy | None
    on_error: str
