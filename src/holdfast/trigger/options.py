"""The keywords of triggers and their sources, for type checkers and for completion; nobody imports this at run time.

The values that they become, with their defaults, are in ``definition.py``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypedDict

from sqlalchemy import ColumnElement
from sqlalchemy.engine import Engine

from ..core.clock import Clock
from ..core.config import DbConfig
from ..core.normalizer import EventNormalizer
from ..core.retry import RetryPolicy
from ..database.pools import EngineProvider
from ..lease.store import SourceChange
from ..records.protocol import HistoryTable
from .sources.protocol import SimpleSource, SourceAdapter
from .telemetry import TriggerTelemetry


class HorizonOptions(TypedDict, total=False):
    """How far a source is read."""

    horizon: str | None
    horizon_margin_seconds: float
    lookback: timedelta | float | None
    lookback_limit: int


class ReadingOptions(HorizonOptions, total=False):
    """How a cursor source is read."""

    created_column: str | None
    deleted_column: str | None
    updates: str | None
    cursor_timezone: str | None


class SourceOptions(ReadingOptions, total=False):
    """What ``SqlAlchemySource`` takes beside the arguments of azure-functions-db."""

    db_config: DbConfig | None
    clock: Clock | None


class OutboxOptions(TypedDict, total=False):
    """The columns of an outbox table, and the types to deliver."""

    position: str | None
    transaction: str | None
    message_id: str | None
    message_type: str | None
    data: str | None
    types: Sequence[str] | None


class TriggerOptions(ReadingOptions, OutboxOptions, total=False):
    """What ``hf.trigger`` takes beside the table."""

    cursor: str | ColumnElement[Any] | None
    key: str | ColumnElement[Any] | list[str] | None
    name: str | None
    schema: str | None
    query: str | None
    where: str | None
    parameters: dict[str, object] | None
    url: str | None
    source: SourceAdapter | SimpleSource | None
    strategy: str
    normalizer: EventNormalizer | None
    batch_size: int
    max_batches_per_tick: int
    retry_policy: RetryPolicy | None
    on_source_change: SourceChange
    lease_seconds: float
    heartbeat_seconds: float | None
    poll_seconds: float
    tick_deadline_seconds: float | None


class PollOptions(TypedDict, total=False):
    """What ``PollTrigger`` takes beside the arguments of azure-functions-db."""

    heartbeat_interval_seconds: float | None
    tick_deadline_seconds: float | None
    clock: Clock | None


class RunnerOptions(PollOptions, total=False):
    """What ``PollRunner`` takes beside the arguments of azure-functions-db."""

    on_source_change: SourceChange
    transaction_engine: Engine | None
    stop: threading.Event | None
    loop: asyncio.AbstractEventLoop | None
    history: Callable[[], HistoryTable] | None
    telemetry: TriggerTelemetry | None


class BindingOptions(OutboxOptions, total=False):
    """What ``DbBindings.trigger`` takes beside the arguments of azure-functions-db."""

    model: type | None
    updates: str | None
    strategy: str
    url: str | None
    db_config: DbConfig | None
    engine_provider: EngineProvider | None
    schema: str | None
    where: str | None
    parameters: dict[str, object] | None
    horizon: str | None
    lookback: timedelta | float | None
