"""What the workloads of one application share: its database, its state, its registry and the tables of its records."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, TypedDict

from sqlalchemy.engine import Engine

from .core.clock import Clock, SystemClock
from .core.config import DbConfig, ResolvedDbConfig, parse_url, resolve_db_config
from .core.errors import ConfigurationError
from .core.identity import application_identity
from .core.moments_ahead import MomentsAhead
from .core.names import checked_name, default_app_name
from .core.telemetry import MetricsCollector
from .database.budget import MAX_CONNECTIONS, Budget, PoolName
from .database.pools import EngineProvider, Pools
from .database.statements import family
from .lease.documents import DocumentStore
from .lease.store import StateStore
from .lease.stores.sql import SqlDocumentStore
from .records.schema import PUBLISHER

if TYPE_CHECKING:
    from .engines.azure import AzureStorage
    from .engines.engines import DurableOperations
    from .engines.queues.protocol import EngineQueues
    from .engines.registry import EngineTablesConfig, Registry
    from .records.location import TableLocations
    from .records.protocol import HistoryTable


class ApplicationOptions(TypedDict, total=False):
    """What ``Holdfast`` takes beside the URL."""

    app_name: str | None
    instance_id: str | None
    db_config: DbConfig | None
    max_connections: int
    state: DocumentStore | None
    engine_provider: EngineProvider | None
    metrics: MetricsCollector | None
    skew_margin_seconds: float | None
    engine_queues: EngineQueues | None
    engine_tables: AzureStorage | None
    durable: DurableOperations | None
    outbox_retention: timedelta | None
    clock: Clock | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationSettings:
    """An application as it was declared."""

    app_name: str | None = None
    instance_id: str | None = None
    db_config: DbConfig | None = None
    max_connections: int = MAX_CONNECTIONS
    state: DocumentStore | None = None
    engine_provider: EngineProvider | None = None
    metrics: MetricsCollector | None = None
    skew_margin_seconds: float | None = None
    engine_queues: EngineQueues | None = None
    engine_tables: AzureStorage | None = None
    durable: DurableOperations | None = None
    outbox_retention: timedelta | None = None
    clock: Clock | None = None


class Resources:
    """Nothing connects until something is asked for.

    Args:
        url: the database, when the settings have no ``db_config``; ``HOLDFAST_URL`` when both are left out.
        settings: the application.
        audited_in: returns the database if it has a history and an audit.
    """

    def __init__(self, url: str | None, settings: ApplicationSettings, audited_in: Callable[[], Engine | None]) -> None:
        _check_retention(settings.outbox_retention)
        budget = Budget(_config_from(url, settings.db_config), settings.max_connections)
        self.audited_in = audited_in
        self.application = application_identity(settings.app_name)
        self.app_name = checked_name("The app name", settings.app_name or default_app_name())
        self.provider = settings.engine_provider or EngineProvider()
        self.pools = Pools(self.provider, budget)
        self.config = self.pools.config
        self.metrics = settings.metrics
        self.clock = settings.clock or SystemClock()
        self._ahead = MomentsAhead(self.clock)
        self.instance_id = _checked_instance(settings.instance_id)
        self._settings = settings
        self._state: StateStore | None = None

    def database(self) -> Engine:
        """Return the application's database, for handlers and for ``context.transaction``."""
        return self.pools.engine(PoolName.HANDLERS)

    def dialect(self) -> str:
        """Return the family of the database's dialect."""
        return family(self.database().dialect.name)

    @property
    def has_state(self) -> bool:
        """Return whether checkpoints and leases are kept in the database."""
        return self._settings.state is None

    def state(self) -> StateStore:
        """Return where checkpoints and leases are kept."""
        if self._state is None:
            from .trigger.operator import source_change_audit

            self._state = StateStore(
                self._settings.state or SqlDocumentStore(self.pools.engine(PoolName.BEATS)),
                app_name=self.app_name,
                skew_margin_seconds=self._settings.skew_margin_seconds,
                clock=self.clock,
                application=self.application,
                audited=source_change_audit(self.audited_in),
                ahead=self._ahead,
            )
        return self._state

    def documents(self) -> DocumentStore:
        """Return the store of checkpoints, leases and the registry."""
        return self.state().documents

    def engine_leases(self) -> StateStore:
        """Return the leases of singletons and timers, apart from those of triggers."""
        return StateStore(
            self.documents(),
            app_name=f"{self.app_name}.engines",
            skew_margin_seconds=self._settings.skew_margin_seconds,
            clock=self.clock,
            ahead=self._ahead,
        )

    def registry(self) -> Registry:
        """Return what the application's engines share, and the lock under which it may be changed."""
        from .engines.registry import Registry

        return Registry(
            self.documents(),
            app_name=self.app_name,
            tables_in_database=self._settings.engine_tables is None,
            skew_margin_seconds=self._settings.skew_margin_seconds,
            clock=self.clock,
            ahead=self._ahead,
        )

    @cached_property
    def tables(self) -> TableLocations[EngineTablesConfig]:
        """Return where dead letters and history are, through the handlers' pool."""
        return self.tables_in(self.database)

    def tables_in(self, database: Callable[[], Engine]) -> TableLocations[EngineTablesConfig]:
        """Return where dead letters and history are, through a pool of the caller."""
        from .records.location import TableLocations

        return TableLocations(self._settings.engine_tables, database, self._table_names, self.clock)

    def _table_names(self) -> EngineTablesConfig:
        """Return what the registry says about the tables; the standard's values when it says nothing."""
        from .engines.registry import EngineTablesConfig

        view = self.registry().read()
        return EngineTablesConfig() if view is None else view.tables

    def history(self) -> HistoryTable:
        """Return the history of every engine and workload."""
        return self.tables.of_all().history


def _checked_instance(given: str | None) -> str:
    """Return the instance that messages are about which name none."""
    if given is None:
        return PUBLISHER
    from .engines.messages import checked_instance

    return checked_instance(given)


def _check_retention(given: object) -> None:
    if given is not None and not (isinstance(given, timedelta) and given > timedelta()):
        raise ConfigurationError(f"outbox_retention={given!r} must be a time above 0, such as timedelta(days=30).")


def _config_from(url: str | None, db_config: DbConfig | None) -> ResolvedDbConfig:
    if url is None and db_config is None:
        url = os.environ.get("HOLDFAST_URL")
        if not url:
            raise ConfigurationError("No database was given. Pass a URL to Holdfast(…), or set HOLDFAST_URL.")
    config = resolve_db_config(url=url, db_config=db_config)
    parsed = parse_url(config.connection_url)
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigurationError(
            "An in-memory SQLite database cannot be shared between connections, so nothing kept there survives. Use a "
            "file, as in sqlite:///shop.db."
        )
    return config
