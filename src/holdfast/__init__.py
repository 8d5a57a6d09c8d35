"""Holdfast: work that must not be lost, on the database a team already has.

Everything exported here is the public surface; modules below it may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .app import Holdfast
from .binding.reader import DbReader
from .binding.writer import DbWriter
from .core.config import DbConfig
from .core.engine import EngineProvider
from .core.errors import (
    AlreadyRunning,
    Ambiguous,
    CheckpointMismatchError,
    CommitError,
    ConfigurationError,
    Conflict,
    CursorSerializationError,
    DbConnectionError,
    DbError,
    FetchError,
    FingerprintMismatchError,
    ForeignCheckpointError,
    HandlerError,
    InvalidTransition,
    JobError,
    LeaseAcquireError,
    LeaseConflictError,
    LostLeaseError,
    MessageError,
    MissingDependencyError,
    MissingGrantError,
    NotFoundError,
    OutboxError,
    PayloadError,
    PollerError,
    QueryError,
    RegistryLocked,
    SerializationError,
    SourceConfigurationError,
    StateStoreError,
    Unavailable,
    UnreadableStateError,
    WriteError,
)
from .core.events import RowChange
from .core.normalizer import EventNormalizer, make_normalizer
from .core.retry import RetryPolicy
from .core.telemetry import MetricsCollector
from .core.types import CursorPart, CursorValue, RawRecord, SourceDescriptor
from .decorator.async_proxies import AsyncDbOut, AsyncDbReader, AsyncDbWriter
from .decorator.bindings import DbBindings
from .decorator.metadata import get_db_metadata
from .decorator.out import DbOut
from .decorator.triggering import ModelChange
from .engines.context import EngineContext
from .engines.definition import EngineDefinition
from .engines.engines import Engines
from .engines.flow import Outcome
from .engines.messages import EngineMessage
from .engines.registry import EngineTablesConfig, HeldRegistry, Registry, RegistryView
from .jobs.context import JobContext
from .jobs.definition import BoundJob, JobDefinition
from .jobs.model import Enqueued, JobStatus
from .jobs.outcomes import Discard, JobCancelled, Retry, Snooze
from .jobs.queue import JobResult, Jobs
from .jobs.worker import WorkerSettings
from .outbox.append import Outbox
from .outbox.context import ProcessorContext
from .outbox.message import Appended, Checkpoint, Message, NewMessage
from .outbox.outcomes import Done, Skip, Stop
from .outbox.processors import Processors
from .outbox.sinks.protocol import Sink
from .state.store import StateStore
from .trigger.context import PollContext
from .trigger.poll import PollTrigger
from .trigger.runner import PollRunner
from .trigger.sources.protocol import AdapterCapability, FetchResult, SourceAdapter
from .trigger.sources.sqlalchemy import SqlAlchemySource

if TYPE_CHECKING:
    from .core.otel import OpenTelemetryCollector
    from .engines.azure import AzureStorage
    from .state.blob_checkpoint import BlobCheckpointStore

_LAZY = {
    "AzureStorage": ".engines.azure",
    "BlobCheckpointStore": ".state.blob_checkpoint",
    "OpenTelemetryCollector": ".core.otel",
}

__all__ = [
    "__version__",
    "AdapterCapability",
    "AlreadyRunning",
    "Ambiguous",
    "Appended",
    "AsyncDbOut",
    "AsyncDbReader",
    "AsyncDbWriter",
    "AzureStorage",
    "BlobCheckpointStore",
    "BoundJob",
    "Checkpoint",
    "CheckpointMismatchError",
    "CommitError",
    "ConfigurationError",
    "Conflict",
    "CursorPart",
    "CursorSerializationError",
    "CursorValue",
    "DbBindings",
    "DbConfig",
    "DbConnectionError",
    "DbError",
    "DbOut",
    "DbReader",
    "DbWriter",
    "Discard",
    "Done",
    "EngineContext",
    "EngineDefinition",
    "EngineMessage",
    "EngineProvider",
    "EngineTablesConfig",
    "Engines",
    "Enqueued",
    "EventNormalizer",
    "FetchError",
    "FetchResult",
    "FingerprintMismatchError",
    "ForeignCheckpointError",
    "HandlerError",
    "HeldRegistry",
    "Holdfast",
    "InvalidTransition",
    "JobCancelled",
    "JobContext",
    "JobDefinition",
    "JobError",
    "JobResult",
    "JobStatus",
    "Jobs",
    "LeaseAcquireError",
    "LeaseConflictError",
    "LostLeaseError",
    "Message",
    "MessageError",
    "MetricsCollector",
    "MissingDependencyError",
    "MissingGrantError",
    "ModelChange",
    "NewMessage",
    "NotFoundError",
    "OpenTelemetryCollector",
    "Outbox",
    "OutboxError",
    "Outcome",
    "PayloadError",
    "PollContext",
    "PollRunner",
    "PollTrigger",
    "PollerError",
    "ProcessorContext",
    "Processors",
    "QueryError",
    "RawRecord",
    "Registry",
    "RegistryLocked",
    "RegistryView",
    "Retry",
    "RetryPolicy",
    "RowChange",
    "SerializationError",
    "Sink",
    "Skip",
    "Snooze",
    "SourceAdapter",
    "SourceConfigurationError",
    "SourceDescriptor",
    "SqlAlchemySource",
    "StateStore",
    "StateStoreError",
    "Stop",
    "Unavailable",
    "UnreadableStateError",
    "WorkerSettings",
    "WriteError",
    "get_db_metadata",
    "make_normalizer",
]


def __getattr__(name: str) -> Any:
    """Import on first use what needs an extra or is rarely used, so that ``import holdfast`` stays small and fast."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
