"""An application's triggers: what is declared, what is wrong with it, and what runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from ..core.clock import Clock
from ..core.config import DbConfig, resolve_db_config
from ..core.errors import ConfigurationError, DbError
from ..core.keywords import options_of, picked, require_known, takes
from ..core.names import checked_name
from ..core.telemetry import MetricsCollector
from ..database.budget import PoolConfig
from ..database.errors import connection_error
from ..database.pools import EngineProvider
from ..database.rights import FOR_LEASES, require_rights
from ..lease.store import StateStore
from ..records.protocol import HistoryTable
from ..runtime.leased_part import LeasedWork
from .definition import Delivery, RegisteredTrigger, RowSelection, check_declaration
from .failures import FailureRecord
from .operator import resume_audited
from .runner import PollRunner
from .sources.inspection import primary_key
from .sources.outbox import OutboxSource
from .sources.outbox_columns import OutboxDefinition
from .sources.protocol import SimpleSource, SourceAdapter
from .sources.settings import HorizonSettings, ReadingSettings, column_name, column_names, table_name
from .sources.sqlalchemy import SqlAlchemySource

if TYPE_CHECKING:
    from typing import Unpack

    from sqlalchemy import Table

    from .options import TriggerOptions

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class TriggerResources(Protocol):
    """What triggers need of their application. Nothing connects until it is asked for."""

    config: PoolConfig
    provider: EngineProvider
    clock: Clock
    metrics: MetricsCollector | None

    def database(self) -> Engine:
        """Return the application's database."""
        ...

    def state(self) -> StateStore:
        """Return where checkpoints and leases are."""
        ...

    @property
    def has_state(self) -> bool:
        """Return whether they are in the database."""
        ...

    def audited_in(self) -> Engine | None:
        """Return the database if it has a history and an audit."""
        ...

    def history(self) -> HistoryTable:
        """Return the history."""
        ...


class Triggers(Mapping[str, RegisteredTrigger]):
    """The triggers of one application, by name. Declaring one never connects."""

    def __init__(self, resources: TriggerResources) -> None:
        self._resources = resources
        self._declared: dict[str, RegisteredTrigger] = {}

    def __getitem__(self, name: str) -> RegisteredTrigger:
        return self._declared[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    # Declaring

    @takes(RowSelection, ReadingSettings, OutboxDefinition, Delivery, name=None, horizon="auto")
    def trigger(
        self, table: str | Table | None = None, **options: Unpack[TriggerOptions]
    ) -> Callable[[_Handler], _Handler]:
        """Deliver rows that changed to the decorated function, ``def`` or ``async def``.

        Table and columns are given by name, or as the ``Table`` and ``Column`` of SQLAlchemy.

        The function gets the events, or the events and a ``PollContext``. ``key`` defaults to the table's primary key,
        ``name`` to the table's name: the name is what the checkpoint is kept under, so it should not change. ``url``
        polls another database than the application's; ``source`` takes a source of your own.

        ``updates="trusted"`` says that every update sets the cursor to the database's clock where the database cannot
        prove it (``holdfast trigger show`` says what is proved). ``cursor_timezone`` is the zone in which a column
        without a zone is written, which the database cannot tell.

        ``strategy="outbox"`` reads a table of messages, and takes the names of its columns instead of ``cursor`` and
        ``key``: ``position``, ``transaction`` (``transaction_id``), ``message_id``, ``message_type`` and ``data`` are
        used under these names where the table has them. ``types`` delivers only messages of these types.

        Raises:
            ConfigurationError: the declaration is wrong. What only the database can tell comes up when it runs.
        """
        require_known("trigger", options, RowSelection, ReadingSettings, OutboxDefinition, Delivery, others=("name",))
        rows = _named(table, options)
        name = checked_name("The trigger name", options.get("name") or rows.table or "")
        if name in self._declared:
            raise ConfigurationError(f"There are two triggers named '{name}'. Pass name=… to one of them.")
        reading = picked(ReadingSettings, {"horizon": "auto", **options})
        outbox, delivery = picked(OutboxDefinition, options), picked(Delivery, options)
        check_declaration(name, rows, reading, outbox, delivery)
        make_source = partial(self._source, rows, reading, outbox)

        def register(handler: _Handler) -> _Handler:
            self._declared[name] = RegisteredTrigger(name, handler, make_source, delivery)
            return handler

        return register

    def _source(
        self, rows: RowSelection, reading: ReadingSettings, outbox: OutboxDefinition
    ) -> SourceAdapter | SimpleSource:
        if rows.source is not None:
            return rows.source
        resources = self._resources
        config: DbConfig = resources.config
        if rows.url is not None:
            other = resolve_db_config(url=rows.url, db_config=None)
            config = config if other.connection_url == config.connection_url else other
        if rows.strategy == "outbox":
            return OutboxSource(
                outbox,
                table=rows.table or "",
                schema=rows.schema,
                where=rows.where,
                parameters=rows.parameters,
                db_config=config,
                engine_provider=resources.provider,
                clock=resources.clock,
                **options_of(HorizonSettings, reading),
            )
        return SqlAlchemySource(
            table=rows.table,
            schema=rows.schema,
            query=rows.query,
            where=rows.where,
            parameters=rows.parameters,
            cursor_column=rows.cursor or "",
            pk_columns=self._key_columns(rows, config),
            db_config=config,
            engine_provider=resources.provider,
            clock=resources.clock,
            **options_of(ReadingSettings, reading),
        )

    def _key_columns(self, rows: RowSelection, config: DbConfig) -> list[str]:
        if rows.key is not None:
            return [rows.key] if isinstance(rows.key, str) else list(column_names(rows.key))
        if rows.table is None:
            raise ConfigurationError(
                "A trigger over a query needs key=…: the columns that tell rows with an equal cursor apart."
            )
        engine = self._resources.provider.get_engine(config)
        try:
            return primary_key(engine, rows.table, rows.schema)
        except DBAPIError as error:
            raise connection_error(engine.url, error) from error

    # Running

    def runner(self, name: str, stop: threading.Event | None = None) -> PollRunner:
        """Return what runs a declared trigger; ``stop`` is what ends its worker.

        Raises:
            ConfigurationError: there is no such trigger.
        """
        registered, resources = self._declared.get(name), self._resources
        if registered is None:
            known = ", ".join(self._declared) or "none"
            raise ConfigurationError(f"There is no trigger named '{name}'. Declared: {known}.")
        delivery = registered.delivery
        runner = PollRunner(
            name=name,
            source=registered.source,
            state_store=resources.state(),
            handler=registered.handler,
            normalizer=delivery.normalizer,
            batch_size=delivery.batch_size,
            max_batches_per_tick=delivery.max_batches_per_tick,
            lease_ttl_seconds=delivery.lease_seconds,
            retry_policy=delivery.retry_policy,
            metrics=resources.metrics,
            heartbeat_interval_seconds=delivery.heartbeat_seconds,
            tick_deadline_seconds=delivery.tick_deadline_seconds,
            on_source_change=delivery.on_source_change,
            transaction_engine=resources.database() if resources.has_state else None,
            clock=resources.clock,
            stop=stop,
            history=self._history(),
            telemetry=registered.telemetry,
        )
        registered.telemetry = runner.telemetry
        return runner

    def _history(self) -> Callable[[], HistoryTable] | None:
        return None if self._resources.audited_in() is None else self._resources.history

    def resume(self, name: str) -> bool:
        """Let a trigger that was stopped deliver again from its checkpoint; return whether it was stopped."""
        return resume_audited(self._resources.state(), self._resources.audited_in(), name) is not None

    def faults(self) -> dict[str, DbError]:
        """Return what is wrong with declared triggers, by title."""
        return {_title(name): fault for name, fault in self.faults_by_name().items()}

    def faults_by_name(self) -> dict[str, DbError]:
        """Return what is wrong with declared triggers, by name."""
        faults: dict[str, DbError] = {}
        for name in self._declared:
            try:
                self._check(name)
            except DbError as error:
                faults[name] = error
        return faults

    def _check(self, name: str) -> None:
        resources = self._resources
        if resources.has_state:
            require_rights(resources.database(), FOR_LEASES)
        source = self.runner(name).source
        source.validate()
        resources.state().check(name, source.source_descriptor, self._declared[name].delivery.on_source_change)

    def works(self, stop: threading.Event, faults: Mapping[str, DbError]) -> list[LeasedWork]:
        """Return what a worker runs; ``faults`` is what is known to be wrong, by title."""
        return [
            LeasedWork(
                _title(name),
                make=partial(self.runner, name, stop),
                check=partial(self._check, name),
                poll_seconds=item.delivery.poll_seconds,
                abandon=PollRunner.abandon,
                failed=PollRunner.record_failure,
                on_fault=partial(self._keep_fault, name),
                fault=faults.get(_title(name)),
            )
            for name, item in self._declared.items()
        ]

    def _keep_fault(self, name: str, error: Exception, retry_seconds: float) -> None:
        """Keep what keeps a trigger from being run."""
        failures = FailureRecord(name, self._history())
        failures.add_fault(self._resources.state(), self._declared[name].telemetry, error, retry_seconds)


def _title(name: str) -> str:
    return f"Trigger '{name}'"


def _named(table: object, options: TriggerOptions) -> RowSelection:
    """Return which rows are meant, with table and columns by their names."""
    rows = picked(RowSelection, options)
    name, schema = table_name(table, rows.schema)
    key = rows.key if isinstance(rows.key, (list, tuple)) else column_name(rows.key)
    return replace(rows, table=name, schema=schema, cursor=column_name(rows.cursor), key=key)
