"""``Holdfast``: one application's triggers, jobs, outbox and engines, its database and its state, tied together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.engine import Engine

from .core.config import safe_url
from .core.errors import DbError
from .core.former_names import warn_of_former
from .core.keywords import picked, require_known, takes
from .core.signals import StopSignals
from .database.migrations import Difference, Migration, migrate, migrations_table, step_back
from .database.rights import FOR_JOBS, require_rights
from .database.server_roles import require_writable
from .lease.store import StateStore
from .lease.stores.sql import SqlDocumentStore, state_table
from .resources import ApplicationSettings, Resources
from .schema import compared_tables, has_records, require_tables
from .workloads import Workloads, together

if TYPE_CHECKING:
    from typing import Unpack

    from sqlalchemy import Table

    from .engines.definition import EngineDefinition
    from .engines.engines import Engines
    from .engines.options import EngineOptions
    from .engines.registry import Registry
    from .jobs.definition import BoundJob, JobDefinition
    from .jobs.jobs import Jobs
    from .jobs.options import JobOptions, PeriodicOptions
    from .jobs.periodic import Periodic
    from .jobs.settings import WorkerSettings
    from .outbox.append import Outbox
    from .outbox.options import ProcessorOptions
    from .outbox.processors import Processors
    from .outbox.sinks.protocol import Sink
    from .records.protocol import HistoryTable, LetterTable
    from .records.redrive import Redrives
    from .records.retention import Pruned
    from .resources import ApplicationOptions
    from .runtime.housekeeping import Chore
    from .trigger.options import TriggerOptions
    from .trigger.runner import PollRunner
    from .trigger.triggers import Triggers

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class Holdfast:
    """An application.

    Args:
        url: the database (``HOLDFAST_URL`` when left out). ``sqlite:///shop.db``, ``postgresql://…``, ``mysql://…``.
        app_name: keeps the state of several applications apart; ``WEBSITE_SITE_NAME``, else ``default``. Without
            either, the top-level package of the module that calls this tells applications apart: another one's
            trigger is refused while it runs.
        instance_id: the instance that engines' messages are about which name none; ``publisher`` when left out.
        max_connections: how many connections a process has to the database at most, for all of this; SQLite is exempt.
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

    @takes(ApplicationSettings)
    def __init__(self, url: str | None = None, **options: Unpack[ApplicationOptions]) -> None:
        require_known("Holdfast", options, ApplicationSettings)
        settings = picked(ApplicationSettings, options)
        self._resources = resources = Resources(url, settings, self._audited_in)
        self._config = resources.config
        self.app_name = resources.app_name
        self._provider, self._clock = resources.provider, resources.clock
        self._stop = threading.Event()
        self._workloads = Workloads(resources, settings)

    def __repr__(self) -> str:
        return f"Holdfast({safe_url(self._config.connection_url)!r}, app_name={self.app_name!r})"

    # Declaring

    def trigger(
        self, table: str | Table | None = None, **options: Unpack[TriggerOptions]
    ) -> Callable[[_Handler], _Handler]:
        """Deliver rows that changed to the decorated function, ``def`` or ``async def``: see ``Triggers.trigger``."""
        return self.triggers.trigger(table, **options)

    def job(
        self, topic: str = "default", **options: Unpack[JobOptions]
    ) -> Callable[[Callable[..., Any]], JobDefinition]:
        """Make the decorated function, ``def`` or ``async def``, a job: see ``Jobs.job``."""
        return self.jobs.job(topic, **options)

    def periodic(self, job: JobDefinition | BoundJob, cron: str, **options: Unpack[PeriodicOptions]) -> Periodic:
        """Enqueue a job at every slot of a cron expression, once across all workers: see ``Jobs.periodic``."""
        return self.jobs.periodic(job, cron, **options)

    def processor(self, processor_id: str, **options: Unpack[ProcessorOptions]) -> Callable[[_Handler], _Handler]:
        """Deliver the outbox's messages to the decorated function, in order: see ``Processors.processor``."""
        return self.processors.processor(processor_id, **options)

    def relay(self, processor_id: str, sink: Sink, **options: Unpack[ProcessorOptions]) -> None:
        """Send the outbox's messages to another system, in order: see ``Processors.relay``."""
        self.processors.relay(processor_id, sink, **options)

    def engine(self, name: str, **options: Unpack[EngineOptions]) -> Callable[[Callable[..., Any]], EngineDefinition]:
        """Make the decorated function, ``def op(context, message)``, an engine's operation: see ``Engines.engine``."""
        return self.engines.engine(name, **options)

    @property
    def triggers(self) -> Triggers:
        """Return the declared triggers by name."""
        return self._workloads.triggers

    @property
    def jobs(self) -> Jobs:
        """Return the declared jobs, and their queue."""
        return self._workloads.jobs

    @property
    def outbox(self) -> Outbox:
        """Return what takes messages, in your transaction."""
        return self._workloads.outbox

    @property
    def processors(self) -> Processors:
        """Return the declared processors, and where they stand."""
        return self._workloads.processors

    @property
    def engines(self) -> Engines:
        """Return the declared engines, and what sends them messages."""
        return self._workloads.engines

    # Where things are

    @property
    def database(self) -> Engine:
        """Return the engine of the application's database, for handlers and for ``context.transaction``."""
        return self._resources.database()

    @property
    def state(self) -> StateStore:
        """Return where checkpoints and leases are kept."""
        return self._resources.state()

    @property
    def registry(self) -> Registry:
        """Return what the application's engines share, and the lock under which it may be changed."""
        return self._resources.registry()

    @property
    def dead_letters(self) -> LetterTable:
        """Return the dead letters of every engine and workload."""
        return self._resources.tables.of_all().letters

    @property
    def history(self) -> HistoryTable:
        """Return the history of every engine and workload."""
        return self._resources.history()

    def prune(self) -> Pruned:
        """Forget what is past the registry's retention (90 days where it gives none, at least 7); return how much."""
        return self._workloads.prune()

    def seal_audit(self) -> None:
        """Seal what was changed by hand since the last time, as workers and ``holdfast serve`` do once a minute.

        Raises:
            DbConnectionError: the database does not answer; what is not sealed is sealed by the next call.
        """
        from .records.seals import seal

        seal(self.database)

    def runner(self, name: str) -> PollRunner:
        """Return what runs a declared trigger.

        Raises:
            ConfigurationError: there is no such trigger.
        """
        return self.triggers.runner(name, self._stop)

    def resume_trigger(self, name: str) -> bool:
        """Let a trigger that was stopped deliver again from its checkpoint; return whether it was stopped."""
        return self.triggers.resume(name)

    @property
    def redrive(self) -> Redrives:
        """Return what puts dead letters back where they came from."""
        return self._workloads.redrive()

    @property
    def putting_back(self) -> Redrives:
        """Return ``redrive``, under its former name."""
        warn_of_former("'Holdfast.putting_back'", "redrive")
        return self.redrive

    # Tables

    def migrate(self) -> list[str]:
        """Create or upgrade Holdfast's tables; return what was applied. Safe to call at every start.

        Engines' queues and tables that are in Azure are created, too.
        """
        applied = migrate(self.database, self._migrations())
        if self._workloads.has_engines:
            self.engines.make_queues()
        self._resources.tables.make()
        return applied

    def _migrations(self) -> tuple[Migration, ...]:
        return self._workloads.migrations()

    def _audited_in(self) -> Engine | None:
        return self.database if has_records(self._migrations()) else None

    def pending_migrations(self) -> list[str]:
        """Return the migrations that were not applied yet.

        Raises:
            ConfigurationError: the tables are those of a newer version, with which this one cannot work.
        """
        return self.compared_tables().missing

    def compared_tables(self) -> Difference:
        """Return how the tables differ from those that this version makes: what is missing, and what is newer.

        Raises:
            ConfigurationError: the tables are those of a newer version, with which this one cannot work.
        """
        return compared_tables(self.database, self._migrations())

    def step_back(self, to: int) -> list[str]:
        """Forget that migrations after number ``to`` were applied, for releases that refuse what they do not know.

        The tables stay as they are; ``migrate`` applies what was forgotten once more. Returns what was forgotten.

        Raises:
            ConfigurationError: there is no way back; nothing was changed.
        """
        return step_back(self.database, to)

    # Running

    def validate(self) -> None:
        """Check everything declared against the database and what is stored there, Holdfast's tables first.

        Raises:
            DbError: everything that is wrong; the message says what to do.
        """
        self._require_tables()
        if faults := self.faults():
            raise together(faults)

    def _require_tables(self) -> None:
        """Refuse what cannot work at all: nothing declared, no database, no tables, no right to use the queue."""
        self._workloads.require_any()
        require_tables(self.database, self._migrations())
        self._require_writable()
        if self._workloads.use_queue:
            require_rights(self.database, FOR_JOBS)

    def _require_writable(self) -> None:
        """Refuse a standby, or another server that takes no writes, where something is to be kept."""
        if self._migrations():
            require_writable(self.database, migrations_table)
        documents = None if self._resources.has_state else self._resources.documents()
        if isinstance(documents, SqlDocumentStore):  # it is in another database
            require_writable(documents.engine, state_table)

    def faults(self) -> dict[str, DbError]:
        """Return what is wrong with what is declared, by title: what ``run`` does not run until it is mended."""
        return self._workloads.faults()

    def trigger_faults(self) -> dict[str, DbError]:
        """Return what is wrong with declared triggers, by name."""
        return self.triggers.faults_by_name()

    def run(
        self,
        *,
        drain_seconds: float = 30.0,
        concurrency: int | None = None,
        topics: Collection[str] | None = None,
        strict: bool = False,
        handle_signals: bool = True,
        on_started: Callable[[], None] | None = None,
    ) -> bool:
        """Run everything declared until ``stop()`` or SIGTERM/SIGINT, then drain; return whether all finished in time.

        What does not fit the database does not run, is logged as an error and tried again now and then; everything else
        runs. With ``strict`` it ends the process instead.

        ``concurrency`` is how many jobs run at once, as many as handlers have connections when left out (10 on SQLite);
        of more, those wait that use ``context.transaction`` while no connection is free. ``topics`` runs the jobs of
        these topics only. ``on_started`` is called once everything was checked, right before the work begins.

        Raises:
            DbError: nothing that is declared can run, or with ``strict`` not all of it; nothing was started.
            WorkerDiedError: a part of the worker died; everything else was drained.
        """
        from .jobs.settings import WorkerSettings

        if concurrency is None:
            concurrency = self._resources.pools.budget.for_handlers or WorkerSettings().concurrency
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
        from .process import Process
        from .runtime.supervisor import Supervisor

        self._require_tables()
        process = Process(self._workloads, self._stop, self._clock, is_strict=strict)
        parts = process.parts(settings, topics)
        if on_started is not None:
            on_started()
        with self.engines.task_hub() if self._workloads.has_engines else nullcontext():
            return Supervisor(parts, self._stop, clock=self._clock, drain_seconds=settings.drain_seconds).run()

    @property
    def record_chores(self) -> list[Chore]:
        """Return the chores that seal the audit and forget what is past its retention: the one place for both."""
        return self._workloads.record_chores()

    def stop(self) -> None:
        """Make ``run`` drain and return."""
        self._stop.set()
