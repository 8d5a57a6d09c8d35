"""``Holdfast``: one application's triggers, its database and its state, tied together."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from .core.clock import Clock, SystemClock
from .core.config import DbConfig, parse_url, resolve_db_config, safe_url
from .core.driver_errors import connection_error
from .core.engine import EngineProvider, always_autocommit
from .core.errors import ConfigurationError, DbError
from .core.migrations import Migration, difference, migrate
from .core.named_sql import family
from .core.names import checked_name, default_app_name
from .core.normalizer import EventNormalizer
from .core.retry import RetryPolicy
from .core.signals import StopSignals
from .core.telemetry import MetricsCollector
from .engines.engines import DurableOperations, EnginePlaces, Engines
from .engines.queues.database import DatabaseQueues
from .engines.queues.protocol import EngineQueues
from .engines.registry import Registry
from .engines.tables.places import TableAccount, TablePlaces
from .jobs.by_hand import JobHome
from .jobs.queue import Jobs
from .jobs.schema import MIGRATIONS as JOB_MIGRATIONS
from .jobs.stores.choose import job_store
from .jobs.worker import WorkerSettings
from .outbox.append import Outbox
from .outbox.letters import ProcessorHome
from .outbox.processors import Processors
from .outbox.schema import MIGRATIONS as OUTBOX_MIGRATIONS
from .records.protocol import HistoryTable, LetterTable
from .records.putting_back import Home, PuttingBack
from .records.retention import Pruned
from .records.schema import MIGRATIONS as RECORD_MIGRATIONS
from .runtime.housekeeping import Chore, Housekeeping
from .runtime.keeper import checked_interval
from .runtime.leased_part import LeasedPart, LeasedWork
from .runtime.supervisor import Part, Supervisor, WorkerPart
from .state.documents import DocumentStore
from .state.reset import resume
from .state.schema import MIGRATIONS as STATE_MIGRATIONS
from .state.store import SourceChange, StateStore
from .state.stores.sql import SqlDocumentStore
from .trigger.runner import PollRunner
from .trigger.sources.inspection import primary_key
from .trigger.sources.outbox import OutboxSource, check_strategy
from .trigger.sources.outbox_columns import OutboxDefinition
from .trigger.sources.protocol import SimpleSource, SourceAdapter
from .trigger.sources.sqlalchemy import SqlAlchemySource

MIGRATIONS = (*STATE_MIGRATIONS, *RECORD_MIGRATIONS, *JOB_MIGRATIONS, *OUTBOX_MIGRATIONS)
_HAS_JOBS = ("postgresql", "mysql", "mariadb", "sqlite")
_Handler = TypeVar("_Handler", bound=Callable[..., Any])
_log = logging.getLogger("holdfast.worker")
_PRUNE_SECONDS = 3600.0
_STATE_POOL_SIZE = 4
_STATE_POOL_RECYCLE_SECONDS = 3599  # differs from the default, so that the pool is not shared


@dataclass(slots=True)
class RegisteredTrigger:
    """A trigger as it was declared. Its source is made when it is first needed, so declaring one never connects."""

    name: str
    handler: Callable[..., Any]
    make_source: Callable[[], SourceAdapter | SimpleSource]
    settings: dict[str, Any]
    poll_seconds: float
    made: SourceAdapter | SimpleSource | None = None

    @property
    def source(self) -> SourceAdapter | SimpleSource:
        """Return the source, the same each time."""
        if self.made is None:
            self.made = self.make_source()
        return self.made


class Holdfast:
    """An application.

    Args:
        url: the database (``HOLDFAST_URL`` when left out). ``sqlite:///shop.db``, ``postgresql://…``, ``mysql://…``.
        app_name: keeps the state of several applications apart; ``WEBSITE_SITE_NAME``, else ``default``.
        state: where checkpoints and leases are kept, when not in the same database.
        engine_provider: shares connection pools with other code.
        metrics: where metrics go.
        engine_queues: where engines' messages wait, when not in the same database: an ``AzureStorage``.
        engine_tables: where engines' dead letters and history are, when not in the same database: an ``AzureStorage``.
        durable: the task hub of engines whose operations are orchestrations: a ``DurableTasks``.
        outbox_retention: delete messages of the outbox that are older and that every processor has passed; left out,
            they are kept, so that a processor can be rebuilt from the beginning.

    Nothing connects until something runs.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        app_name: str | None = None,
        db_config: DbConfig | None = None,
        state: DocumentStore | None = None,
        engine_provider: EngineProvider | None = None,
        metrics: MetricsCollector | None = None,
        skew_margin_seconds: float | None = None,
        engine_queues: EngineQueues | None = None,
        engine_tables: TableAccount | None = None,
        durable: DurableOperations | None = None,
        outbox_retention: timedelta | None = None,
        clock: Clock | None = None,
    ) -> None:
        _check_retention(outbox_retention)
        self._config = _config_from(url, db_config)
        self.app_name = checked_name("The app name", app_name or default_app_name())
        self._provider = engine_provider or EngineProvider()
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._skew_margin_seconds = skew_margin_seconds
        self._documents = state
        self._state: StateStore | None = None
        self._triggers: dict[str, RegisteredTrigger] = {}
        self._stop = threading.Event()
        self.jobs = Jobs(
            self._provider,
            self._config,
            lambda: self.database,
            clock=self._clock,
            metrics=metrics,
        )
        self.job = self.jobs.job
        self.periodic = self.jobs.periodic
        self.outbox = Outbox(lambda: family(self.database.dialect.name))
        self.processors = Processors(
            self._provider,
            self._config,
            lambda: self.state.documents,
            clock=self._clock,
            metrics=metrics,
            retention=outbox_retention,
        )
        self.processor = self.processors.processor
        self.relay = self.processors.relay
        self._tables = TablePlaces(engine_tables, lambda: self.database, lambda: self.registry)
        self._tables_apart = TablePlaces(engine_tables, lambda: self.jobs.store.engine, lambda: self.registry)
        self.engines = Engines(
            EnginePlaces(
                database=lambda: self.jobs.store.engine,  # apart from the pool that handlers may use up
                queues=engine_queues or DatabaseQueues(lambda: self.jobs.store),
                tables=self._tables_apart,
                leases=self._engine_leases,
                registry=lambda: self.registry,
                durable=durable,
            ),
            clock=self._clock,
            metrics=metrics,
        )
        self.engine = self.engines.engine

    def __repr__(self) -> str:
        return f"Holdfast({safe_url(self._config.connection_url)!r}, app_name={self.app_name!r})"

    @property
    def database(self) -> Engine:
        """Return the engine of the application's database, for handlers and for ``context.transaction``."""
        return self._provider.get_engine(self._config)

    @property
    def state(self) -> StateStore:
        """Return where checkpoints and leases are kept."""
        if self._state is None:
            documents = self._documents or SqlDocumentStore(self._state_engine())
            self._state = StateStore(
                documents,
                app_name=self.app_name,
                skew_margin_seconds=self._skew_margin_seconds,
                clock=self._clock,
            )
        return self._state

    @property
    def registry(self) -> Registry:
        """Return what the application's engines share, and the lock under which it may be changed."""
        return Registry(
            self.state.documents,
            app_name=self.app_name,
            skew_margin_seconds=self._skew_margin_seconds,
            clock=self._clock,
        )

    @property
    def dead_letters(self) -> LetterTable:
        """Return the dead letters of every engine and workload."""
        return self._tables.of_all().letters

    @property
    def history(self) -> HistoryTable:
        """Return the history of every engine and workload."""
        return self._tables.of_all().history

    def prune(self) -> Pruned:
        """Forget what is past the retention that the registry gives (90 days where it gives none); return how much."""
        days, tables = self._tables_apart.config().retention_days, self._tables_apart.of_all()
        return Pruned(tables.history.prune(days), tables.letters.prune(days))

    def _engine_leases(self) -> StateStore:
        """Return the leases of singletons and timers, apart from those of triggers."""
        return StateStore(
            self.state.documents,
            app_name=f"{self.app_name}.engines",
            skew_margin_seconds=self._skew_margin_seconds,
            clock=self._clock,
        )

    def _state_engine(self) -> Engine:
        """Heartbeats have a pool of their own, so that handlers that use up theirs cannot lose a lease."""
        own_pool = replace(self._config, pool_size=_STATE_POOL_SIZE, pool_recycle=_STATE_POOL_RECYCLE_SECONDS)
        return self._provider.get_engine(always_autocommit(own_pool))

    @property
    def triggers(self) -> dict[str, RegisteredTrigger]:
        """Return the declared triggers by name."""
        return dict(self._triggers)

    def trigger(
        self,
        table: str | None = None,
        *,
        cursor: str | None = None,
        key: str | list[str] | None = None,
        name: str | None = None,
        schema: str | None = None,
        query: str | None = None,
        where: str | None = None,
        parameters: dict[str, object] | None = None,
        url: str | None = None,
        source: SourceAdapter | SimpleSource | None = None,
        normalizer: EventNormalizer | None = None,
        horizon: str = "auto",
        horizon_margin_seconds: float = 0.5,
        lookback: timedelta | float | None = None,
        lookback_limit: int = 5000,
        created_column: str | None = None,
        deleted_column: str | None = None,
        strategy: str = "cursor",
        position: str | None = None,
        transaction: str | None = None,
        message_id: str | None = None,
        message_type: str | None = None,
        data: str | None = None,
        types: Sequence[str] | None = None,
        batch_size: int = 100,
        max_batches_per_tick: int = 10,
        lease_seconds: float = 30,
        heartbeat_seconds: float | None = None,
        poll_seconds: float = 1.0,
        tick_deadline_seconds: float | None = None,
        retry_policy: RetryPolicy | None = None,
        on_source_change: SourceChange = "reject",
    ) -> Callable[[_Handler], _Handler]:
        """Deliver rows that changed to the decorated function, ``def`` or ``async def``.

        The function gets the events, or the events and a ``PollContext``. ``key`` defaults to the table's primary key,
        ``name`` to the table's name: the name is what the checkpoint is kept under, so it should not change. ``url``
        polls another database than the application's; ``source`` takes a source of your own.

        ``strategy="outbox"`` reads a table of messages, and takes the names of its columns instead of ``cursor`` and
        ``key``: ``position``, ``transaction`` (``transaction_id``), ``message_id``, ``message_type`` and ``data`` are
        used under these names where the table has them. ``types`` delivers only messages of these types.

        Raises:
            ConfigurationError: the declaration is wrong. What only the database can tell comes up when it runs.
        """
        poller_name = checked_name("The trigger name", name or table or "")
        if poller_name in self._triggers:
            raise ConfigurationError(f"There are two triggers named '{poller_name}'. Pass name=… to one of them.")
        _check_settings(
            poller_name,
            at_least_one={
                "batch_size": batch_size,
                "max_batches_per_tick": max_batches_per_tick,
                "lookback_limit": lookback_limit,
            },
            positive={"lease_seconds": lease_seconds, "poll_seconds": poll_seconds, "lookback": lookback},
        )
        checked_interval(heartbeat_seconds, lease_seconds)
        outbox = OutboxDefinition(position, transaction, message_id, message_type, data, types)
        check_strategy(
            poller_name,
            strategy,
            outbox,
            {
                "table": table,
                "cursor": cursor,
                "key": key,
                "query": query,
                "source": source,
                "created_column": created_column,
                "deleted_column": deleted_column,
                "horizon": horizon,
                "lookback": lookback,
            },
        )
        if strategy == "cursor" and source is None and cursor is None:
            raise ConfigurationError(
                f"Trigger '{poller_name}' needs cursor=…: the column that grows with every change."
            )

        def make_source() -> SourceAdapter | SimpleSource:
            config = self._config if url is None else resolve_db_config(url=url, db_config=None)
            if strategy == "outbox":
                return OutboxSource(
                    outbox,
                    table=table or "",
                    schema=schema,
                    db_config=config,
                    engine_provider=self._provider,
                    where=where,
                    parameters=parameters,
                    horizon=horizon,
                    horizon_margin_seconds=horizon_margin_seconds,
                    lookback=lookback,
                    lookback_limit=lookback_limit,
                    clock=self._clock,
                )
            return SqlAlchemySource(
                db_config=config,
                table=table,
                schema=schema,
                query=query,
                cursor_column=cursor or "",
                pk_columns=self._key_columns(key, config, table, schema),
                where=where,
                parameters=parameters,
                engine_provider=self._provider,
                horizon=horizon,
                horizon_margin_seconds=horizon_margin_seconds,
                lookback=lookback,
                lookback_limit=lookback_limit,
                created_column=created_column,
                deleted_column=deleted_column,
                clock=self._clock,
            )

        settings = {
            "normalizer": normalizer,
            "batch_size": batch_size,
            "max_batches_per_tick": max_batches_per_tick,
            "lease_ttl_seconds": lease_seconds,
            "heartbeat_interval_seconds": heartbeat_seconds,
            "tick_deadline_seconds": tick_deadline_seconds,
            "retry_policy": retry_policy,
            "on_source_change": on_source_change,
        }

        def register(handler: _Handler) -> _Handler:
            self._triggers[poller_name] = RegisteredTrigger(
                poller_name,
                handler,
                make_source if source is None else lambda: source,
                settings,
                poll_seconds,
            )
            return handler

        return register

    def _key_columns(
        self, key: str | list[str] | None, config: DbConfig, table: str | None, schema: str | None
    ) -> list[str]:
        if key is not None:
            return [key] if isinstance(key, str) else list(key)
        if table is None:
            raise ConfigurationError(
                "A trigger over a query needs key=…: the columns that tell rows with an equal cursor apart."
            )
        engine = self._provider.get_engine(config)
        try:
            return primary_key(engine, table, schema)
        except DBAPIError as error:
            raise connection_error(engine.url, error) from error

    def runner(self, name: str) -> PollRunner:
        """Return what runs a declared trigger.

        Raises:
            ConfigurationError: there is no such trigger.
        """
        registered = self._triggers.get(name)
        if registered is None:
            known = ", ".join(self._triggers) or "none"
            raise ConfigurationError(f"There is no trigger named '{name}'. Declared: {known}.")
        return PollRunner(
            name=name,
            source=registered.source,
            state_store=self.state,
            handler=registered.handler,
            metrics=self._metrics,
            transaction_engine=self.database if self._documents is None else None,
            clock=self._clock,
            stop=self._stop,
            **registered.settings,
        )

    def resume_trigger(self, name: str) -> bool:
        """Let a trigger that was stopped deliver again from its checkpoint; return whether it was stopped."""
        return resume(self.state, name) is not None

    @property
    def putting_back(self) -> PuttingBack:
        """Return what puts dead letters back where they came from."""
        homes: dict[str, Home] = {
            "jobs:": JobHome(job_store(self.database)),
            "processor:": ProcessorHome(self.database),
        }
        if self.engines.home is not None:
            homes[""] = self.engines.home
            return PuttingBack(self.database, homes)
        return PuttingBack(self.database, homes, stepped={"": self.engines.retries}, letters=self.dead_letters)

    def migrate(self) -> list[str]:
        """Create or upgrade Holdfast's tables; return what was applied. Safe to call at every start.

        Engines' queues and tables that are in Azure are created, too.
        """
        applied = migrate(self.database, self._migrations())
        self.engines.make_queues()
        self._tables.make()
        return applied

    def _migrations(self) -> tuple[Migration, ...]:
        """Return the migrations of what is kept in the application's database."""
        state = STATE_MIGRATIONS if self._documents is None else ()
        if self.database.dialect.name not in _HAS_JOBS:
            return state
        has_queue = bool(state or self.jobs.definitions or self.engines.declared)
        has_outbox = bool(state or self.processors.declared)
        return (
            *state,
            *(RECORD_MIGRATIONS if has_queue or has_outbox else ()),
            *(JOB_MIGRATIONS if has_queue else ()),
            *(OUTBOX_MIGRATIONS if has_outbox else ()),
        )

    def pending_migrations(self) -> list[str]:
        """Return the migrations that were not applied yet.

        Raises:
            ConfigurationError: the tables are those of a newer version.
        """
        wanted = self._migrations()
        if not wanted:
            return []
        path = self.database.url.database
        if (
            self.database.dialect.name == "sqlite"
            and path
            and not path.startswith("file:")
            and not os.path.exists(path)
        ):
            raise ConfigurationError(
                f"There is no SQLite file '{path}'. Check the path, or create it with 'holdfast migrate'."
            )
        found = difference(self.database, wanted, MIGRATIONS)
        if found.newer:
            raise ConfigurationError(
                f"The tables in {safe_url(self._config.connection_url)} are those of a newer Holdfast "
                f"({', '.join(found.newer)}). Upgrade this one."
            )
        return found.missing

    def validate(self) -> None:
        """Check everything declared against the database and what is stored there, Holdfast's tables first.

        Raises:
            DbError: the first thing that is wrong; the message says what to do.
        """
        self._require_tables()
        for fault in self.faults().values():
            raise fault

    def _require_tables(self) -> None:
        """Refuse what cannot work at all: nothing declared, no database, no tables."""
        if not (self._triggers or self.jobs.definitions or self.processors.declared or self.engines.declared):
            raise ConfigurationError(
                "Nothing is declared to run. Decorate a function with @hf.trigger(…), @hf.job(…), @hf.processor(…) or "
                "@hf.engine(…) first."
            )
        missing = self.pending_migrations()
        if missing:
            raise ConfigurationError(
                f"The tables of Holdfast are missing or out of date in {safe_url(self._config.connection_url)} "
                f"({', '.join(missing)}). Run 'holdfast migrate', or call hf.migrate()."
            )

    def faults(self) -> dict[str, DbError]:
        """Return what is wrong with what is declared, by title: what ``run`` does not run until it is mended."""
        triggers = {f"Trigger '{name}'": fault for name, fault in self.trigger_faults().items()}
        return {**triggers, **self.processors.faults(), **self.engines.faults()}

    def trigger_faults(self) -> dict[str, DbError]:
        """Return what is wrong with declared triggers, by name."""
        faults: dict[str, DbError] = {}
        for name in self._triggers:
            try:
                self._check_trigger(name)
            except DbError as error:
                faults[name] = error
        return faults

    def _check_trigger(self, name: str) -> None:
        source = self.runner(name).source
        source.validate()
        self.state.check(name, source.source_descriptor, self._triggers[name].settings["on_source_change"])

    def run(
        self,
        *,
        drain_seconds: float = 30.0,
        concurrency: int = 10,
        topics: Collection[str] | None = None,
        strict: bool = False,
        handle_signals: bool = True,
        on_started: Callable[[], None] | None = None,
    ) -> bool:
        """Run everything declared until ``stop()`` or SIGTERM/SIGINT, then drain; return whether all finished in time.

        What does not fit the database does not run, is logged as an error and tried again now and then; everything else
        runs. With ``strict`` it ends the process instead.

        ``concurrency`` is how many jobs run at once; ``topics`` runs the jobs of these topics only. ``on_started`` is
        called once everything was checked, right before the work begins.

        Raises:
            DbError: nothing that is declared can run, or with ``strict`` not all of it; nothing was started.
            WorkerDiedError: a part of the worker died; everything else was drained.
        """
        settings = WorkerSettings(concurrency=concurrency, drain_seconds=drain_seconds)
        try:
            if handle_signals and threading.current_thread() is threading.main_thread():
                with StopSignals(self._stop, self._clock):
                    return self._run(settings, topics, strict, on_started)
            return self._run(settings, topics, strict, on_started)
        finally:
            self._stop = threading.Event()  # a handler that outlived the drain keeps the old one, and so stays stopped

    def _run(
        self,
        settings: WorkerSettings,
        topics: Collection[str] | None,
        strict: bool,
        on_started: Callable[[], None] | None,
    ) -> bool:
        self._require_tables()
        faults = self.faults()
        faults |= self.processors.register_each()
        self._tell_faults(faults, strict)
        parts = self._parts(settings, topics, faults, strict)
        if on_started is not None:
            on_started()
        with self.engines.task_hub():
            return Supervisor(parts, self._stop, clock=self._clock, drain_seconds=settings.drain_seconds).run()

    def _tell_faults(self, faults: Mapping[str, DbError], strict: bool) -> None:
        """Say what does not run.

        Raises:
            DbError: the first of them, when nothing is left to run or everything is wanted.
        """
        declared = len(self._triggers) + len(self.processors.declared) + len(self.engines.declared)
        for title, fault in faults.items():
            if strict or (len(faults) >= declared and not self.jobs.definitions):
                raise fault
            _log.error("%s does not run until that is mended: %s", title, fault)

    def _parts(
        self, settings: WorkerSettings, topics: Collection[str] | None, faults: Mapping[str, DbError], strict: bool
    ) -> list[Part]:
        works = [
            LeasedWork(
                f"Trigger '{name}'",
                make=partial(self.runner, name),
                check=partial(self._check_trigger, name),
                poll_seconds=item.poll_seconds,
                fault=faults.get(f"Trigger '{name}'"),
            )
            for name, item in self._triggers.items()
        ]
        works += self.processors.works(stop=self._stop, faults=faults)
        works += self.engines.timers()
        parts: list[Part] = [LeasedPart(work, self._stop, clock=self._clock, is_strict=strict) for work in works]
        handlers = self.engines.handlers()
        if self.jobs.definitions or handlers:
            worker = self.jobs.worker(self._stop, settings, topics, others=handlers)
            parts.append(WorkerPart("The jobs' worker", worker.run, lambda: worker.dead_parts))
        if self.engines.declared and not self.engines.are_in_database:
            parts.append(self.engines.worker(self._stop))
        chores = self._chores()
        return [*parts, Housekeeping(chores, self._stop, clock=self._clock)] if chores else parts

    def _chores(self) -> list[Chore]:
        jobs = self.jobs.chores() if self.jobs.definitions else []
        found = [*jobs, *self.processors.chores(), *self.engines.chores()]
        return [*found, self.pruning] if found else []

    @property
    def pruning(self) -> Chore:
        """Return the chore that forgets what is past its retention: the one place where records are pruned."""
        return Chore("forgetting records past their retention", self.prune, _PRUNE_SECONDS)

    def stop(self) -> None:
        """Make ``run`` drain and return."""
        self._stop.set()


def _check_settings(name: str, *, at_least_one: dict[str, object], positive: dict[str, object]) -> None:
    """Refuse numbers that make no sense, when the trigger is declared.

    Raises:
        ConfigurationError: the first of them.
    """
    for setting, value in at_least_one.items():
        if not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"Trigger '{name}': {setting}={value!r} must be a whole number of at least 1.")
    for setting, value in positive.items():
        amount = value.total_seconds() if isinstance(value, timedelta) else value
        if value is not None and not (isinstance(amount, (int, float)) and amount > 0):
            raise ConfigurationError(f"Trigger '{name}': {setting}={value!r} must be a number above 0.")
    if positive.get("lease_seconds") is None:
        raise ConfigurationError(f"Trigger '{name}': lease_seconds must be a number above 0.")


def _check_retention(given: object) -> None:
    if given is not None and not (isinstance(given, timedelta) and given > timedelta()):
        raise ConfigurationError(f"outbox_retention={given!r} must be a time above 0, such as timedelta(days=30).")


def _config_from(url: str | None, db_config: DbConfig | None) -> DbConfig:
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
