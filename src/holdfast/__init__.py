"""Holdfast: work that must not be lost, on the database a team already has.

Everything exported here is the public surface; modules below it may change. Each name is imported when it is first
used, so that ``import holdfast`` costs next to nothing and nobody loads a workload that they do not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ._version import __version__
from .runtime import logs as _logs  # noqa: F401 - what is logged goes through it

if TYPE_CHECKING:
    from .app import Holdfast
    from .binding.reader import DbReader
    from .binding.writer import DbWriter
    from .core.config import DbConfig
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
        UnreadableRowError,
        UnreadableStateError,
        WriteError,
    )
    from .core.events import RowChange
    from .core.normalizer import EventNormalizer, make_normalizer
    from .core.otel import OpenTelemetryCollector
    from .core.retry import RetryPolicy
    from .core.telemetry import MetricsCollector
    from .core.types import CursorPart, CursorValue, RawRecord, SourceDescriptor
    from .database.pools import EngineProvider
    from .decorator.async_proxies import AsyncDbOut, AsyncDbReader, AsyncDbWriter
    from .decorator.bindings import DbBindings
    from .decorator.metadata import get_db_metadata
    from .decorator.out import DbOut
    from .decorator.triggering import ModelChange
    from .engines.azure import AzureStorage
    from .engines.context import EngineContext
    from .engines.definition import EngineDefinition
    from .engines.engines import Engines
    from .engines.messages import EngineMessage
    from .engines.registry import EngineTablesConfig, HeldRegistry, Registry, RegistryView
    from .engines.runner import Outcome
    from .jobs.context import JobContext
    from .jobs.definition import BoundJob, JobDefinition
    from .jobs.jobs import JobResult, Jobs
    from .jobs.model import Enqueued, JobStatus
    from .jobs.outcomes import Discard, JobCancelled, Retry, Snooze
    from .jobs.settings import WorkerSettings
    from .lease.blob_checkpoint import BlobCheckpointStore
    from .lease.store import StateStore
    from .outbox.append import Outbox
    from .outbox.context import ProcessorContext
    from .outbox.message import Appended, Checkpoint, Message, NewMessage
    from .outbox.outcomes import Done, Skip, Stop
    from .outbox.processors import Processors
    from .outbox.sinks.protocol import Sink
    from .trigger.context import PollContext
    from .trigger.poll import PollTrigger
    from .trigger.runner import PollRunner
    from .trigger.sources.protocol import AdapterCapability, FetchResult, SourceAdapter
    from .trigger.sources.sqlalchemy import SqlAlchemySource

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
    "UnreadableRowError",
    "UnreadableStateError",
    "WorkerSettings",
    "WriteError",
    "get_db_metadata",
    "make_normalizer",
]

_FOUND_IN = {
    ".app": ("Holdfast",),
    ".binding.reader": ("DbReader",),
    ".binding.writer": ("DbWriter",),
    ".core.config": ("DbConfig",),
    ".core.errors": (
        "AlreadyRunning",
        "Ambiguous",
        "CheckpointMismatchError",
        "CommitError",
        "ConfigurationError",
        "Conflict",
        "CursorSerializationError",
        "DbConnectionError",
        "DbError",
        "FetchError",
        "FingerprintMismatchError",
        "ForeignCheckpointError",
        "HandlerError",
        "InvalidTransition",
        "JobError",
        "LeaseAcquireError",
        "LeaseConflictError",
        "LostLeaseError",
        "MessageError",
        "MissingDependencyError",
        "MissingGrantError",
        "NotFoundError",
        "OutboxError",
        "PayloadError",
        "PollerError",
        "QueryError",
        "RegistryLocked",
        "SerializationError",
        "SourceConfigurationError",
        "StateStoreError",
        "Unavailable",
        "UnreadableRowError",
        "UnreadableStateError",
        "WriteError",
    ),
    ".core.events": ("RowChange",),
    ".core.normalizer": ("EventNormalizer", "make_normalizer"),
    ".core.otel": ("OpenTelemetryCollector",),
    ".core.retry": ("RetryPolicy",),
    ".core.telemetry": ("MetricsCollector",),
    ".core.types": ("CursorPart", "CursorValue", "RawRecord", "SourceDescriptor"),
    ".database.pools": ("EngineProvider",),
    ".decorator.async_proxies": ("AsyncDbOut", "AsyncDbReader", "AsyncDbWriter"),
    ".decorator.bindings": ("DbBindings",),
    ".decorator.metadata": ("get_db_metadata",),
    ".decorator.out": ("DbOut",),
    ".decorator.triggering": ("ModelChange",),
    ".engines.azure": ("AzureStorage",),
    ".engines.context": ("EngineContext",),
    ".engines.definition": ("EngineDefinition",),
    ".engines.engines": ("Engines",),
    ".engines.runner": ("Outcome",),
    ".engines.messages": ("EngineMessage",),
    ".engines.registry": ("EngineTablesConfig", "HeldRegistry", "Registry", "RegistryView"),
    ".jobs.context": ("JobContext",),
    ".jobs.definition": ("BoundJob", "JobDefinition"),
    ".jobs.model": ("Enqueued", "JobStatus"),
    ".jobs.outcomes": ("Discard", "JobCancelled", "Retry", "Snooze"),
    ".jobs.jobs": ("JobResult", "Jobs"),
    ".jobs.settings": ("WorkerSettings",),
    ".lease.blob_checkpoint": ("BlobCheckpointStore",),
    ".lease.store": ("StateStore",),
    ".outbox.append": ("Outbox",),
    ".outbox.context": ("ProcessorContext",),
    ".outbox.message": ("Appended", "Checkpoint", "Message", "NewMessage"),
    ".outbox.outcomes": ("Done", "Skip", "Stop"),
    ".outbox.processors": ("Processors",),
    ".outbox.sinks.protocol": ("Sink",),
    ".trigger.context": ("PollContext",),
    ".trigger.poll": ("PollTrigger",),
    ".trigger.runner": ("PollRunner",),
    ".trigger.sources.protocol": ("AdapterCapability", "FetchResult", "SourceAdapter"),
    ".trigger.sources.sqlalchemy": ("SqlAlchemySource",),
}
_MODULES = {name: module for module, names in _FOUND_IN.items() for name in names}


if not TYPE_CHECKING:  # to a type checker a misspelt name would be Any

    def __getattr__(name: str) -> object:
        """Import what is asked for where it is, and keep it."""
        if name not in _MODULES:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
        return found


def __dir__() -> list[str]:
    """Return also the names that nobody has used yet."""
    return sorted({*globals(), *_MODULES})
