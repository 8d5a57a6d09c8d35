"""What a trigger is made of, checked when it is declared: a wrong kind of thing would come up amid a tick."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy.engine import Engine

from ..core.clock import Clock
from ..core.errors import ConfigurationError
from ..core.key_text import shown_key
from ..core.keywords import options_of
from ..core.normalizer import EventNormalizer
from ..core.retry import LONGEST_SECONDS, RetryPolicy
from ..lease.foreign import ForeignStateStore
from ..lease.store import SourceChange, StateStore
from ..records.protocol import HistoryTable
from ..runtime.keeper import checked_interval
from .sources.outbox import check_strategy
from .sources.outbox_columns import OutboxDefinition
from .sources.protocol import SimpleSource, SourceAdapter
from .sources.settings import ReadingSettings
from .sources.update_proof import check_updates
from .telemetry import TriggerTelemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSelection:
    """Which rows are delivered, and what orders them."""

    cursor: str | None = None
    key: str | list[str] | None = None
    schema: str | None = None
    query: str | None = None
    where: str | None = None
    parameters: dict[str, object] | None = None
    url: str | None = None
    source: SourceAdapter | SimpleSource | None = None
    strategy: str = "cursor"
    table: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How rows are handed to the handler, and under what lease.

    ``poll_seconds`` is for workers, which wait that long when there is nothing to read.
    """

    normalizer: EventNormalizer | None = None
    batch_size: int = 100
    max_batches_per_tick: int = 10
    retry_policy: RetryPolicy | None = None
    on_source_change: SourceChange = "reject"
    lease_seconds: float = 30
    heartbeat_seconds: float | None = None
    poll_seconds: float = 1.0
    tick_deadline_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSettings:
    """How a host's calls are served, beside what azure-functions-db knows."""

    heartbeat_interval_seconds: float | None = None
    tick_deadline_seconds: float | None = None
    clock: Clock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings(PollSettings):
    """What is around a runner: its worker, and where it records what happened."""

    on_source_change: SourceChange = "reject"
    transaction_engine: Engine | None = None
    stop: threading.Event | None = None
    loop: asyncio.AbstractEventLoop | None = None
    history: Callable[[], HistoryTable] | None = None
    telemetry: TriggerTelemetry | None = None

    def check(self, lease_seconds: float) -> None:
        """Refuse what does not fit.

        Raises:
            ConfigurationError: the first thing that is wrong.
        """
        if self.on_source_change not in ("reject", "reset"):
            given = self.on_source_change
            raise ConfigurationError(f"on_source_change={given!r} is not known: use 'reject' or 'reset'.")
        checked_interval(self.heartbeat_interval_seconds, lease_seconds)


@dataclass(slots=True)
class RegisteredTrigger:
    """A trigger as it was declared. Its source is made when it is first needed, so declaring one never connects."""

    name: str
    handler: Callable[..., Any]
    make_source: Callable[[], SourceAdapter | SimpleSource]
    delivery: Delivery
    made: SourceAdapter | SimpleSource | None = None
    telemetry: TriggerTelemetry | None = None

    @property
    def source(self) -> SourceAdapter | SimpleSource:
        """Return the source, the same each time."""
        if self.made is None:
            self.made = self.make_source()
        return self.made


def check_declaration(
    trigger: str, rows: RowSelection, reading: ReadingSettings, outbox: OutboxDefinition, delivery: Delivery
) -> None:
    """Refuse what is wrong without asking the database.

    Raises:
        ConfigurationError: the first thing that is wrong.
    """
    _check_numbers(trigger, reading, delivery)
    checked_interval(delivery.heartbeat_seconds, delivery.lease_seconds)
    check_updates(reading.updates)
    given = options_of(RowSelection, rows) | options_of(ReadingSettings, reading)
    check_strategy(trigger, rows.strategy, outbox, given)
    if rows.strategy == "cursor" and rows.source is None and rows.cursor is None:
        raise ConfigurationError(f"Trigger '{trigger}' needs cursor=…: the column that grows with every change.")


def _check_numbers(trigger: str, reading: ReadingSettings, delivery: Delivery) -> None:
    for setting, value in (
        ("batch_size", delivery.batch_size),
        ("max_batches_per_tick", delivery.max_batches_per_tick),
        ("lookback_limit", reading.lookback_limit),
    ):
        given: object = value
        if not isinstance(given, int) or given < 1:
            raise ConfigurationError(f"Trigger '{trigger}': {setting}={given!r} must be a whole number of at least 1.")
    _require_above_zero(trigger, "lease_seconds", delivery.lease_seconds)
    for setting, seconds in (("poll_seconds", delivery.poll_seconds), ("lookback", reading.lookback)):
        if seconds is not None:
            _require_above_zero(trigger, setting, seconds)


def _require_above_zero(trigger: str, setting: str, given: object) -> None:
    amount = given.total_seconds() if isinstance(given, timedelta) else given
    if not (isinstance(amount, (int, float)) and 0 < amount <= LONGEST_SECONDS):
        raise ConfigurationError(
            f"Trigger '{trigger}': {setting}={shown_key(given)} must be a number above 0, a century at most."
        )


def check_counts(**settings: object) -> None:
    """Check settings that are numbers of at least 1.

    Raises:
        ConfigurationError: one is no number.
        ValueError: one is less than 1.
    """
    for name, value in settings.items():
        kinds = (int, float) if name.endswith("_seconds") else (int,)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ConfigurationError(f"{name} must be a number, not {value!r}.")
        if value < 1:
            raise ValueError(f"{name} must be >= 1")


def check_parts(source: object, state_store: object, retry_policy: object) -> None:
    """Check that source, store and retry policy are such.

    Raises:
        ConfigurationError: one is something else; the message says what to pass.
    """
    check_source(source)
    if not isinstance(state_store, (StateStore, ForeignStateStore)):
        is_document_store = hasattr(state_store, "read") and hasattr(state_store, "replace")
        hint = "Wrap it: StateStore(…)" if is_document_store else "Pass a BlobCheckpointStore or a StateStore."
        raise ConfigurationError(f"checkpoint_store must be a state store, not {type(state_store).__name__}. {hint}")
    if retry_policy is not None and not hasattr(retry_policy, "delay_for_attempt"):
        raise ConfigurationError(
            f"retry_policy must be a RetryPolicy, not {retry_policy!r}. Write for example RetryPolicy(max_retries=3)."
        )


def check_source(source: object) -> None:
    """Check that changes can be read from it.

    Raises:
        ConfigurationError: it is no source.
    """
    if not isinstance(source, (SourceAdapter, SimpleSource)):
        raise ConfigurationError(
            f"source must be a source of changes, such as SqlAlchemySource, not {type(source).__name__}."
        )
