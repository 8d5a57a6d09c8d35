"""The workloads of one application: each is loaded when it is first asked for, and what holds for all is asked here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING

from .core.errors import ConfigurationError, DbError
from .database.budget import PoolName
from .database.migrations import Migration
from .database.rights import FOR_LEASES, FOR_PROCESSORS
from .resources import ApplicationSettings, Resources
from .schema import has_records, wanted_migrations

if TYPE_CHECKING:
    from .engines.engines import Engines
    from .jobs.jobs import Jobs
    from .outbox.append import Outbox
    from .outbox.processors import Processors
    from .records.redrive import Redrive, Redrives
    from .records.retention import Pruned
    from .runtime.housekeeping import Chore
    from .trigger.triggers import Triggers

_PRUNE_SECONDS = 3600.0


class Workloads:
    """What an application declares.

    The code of a workload, and of the libraries that it needs, is not loaded by applications without it.
    """

    def __init__(self, resources: Resources, settings: ApplicationSettings) -> None:
        self._resources = resources
        self._settings = settings

    # What there is

    @cached_property
    def triggers(self) -> Triggers:
        """Return the declared triggers."""
        from .trigger.triggers import Triggers

        return Triggers(self._resources)

    @cached_property
    def jobs(self) -> Jobs:
        """Return the declared jobs, and their queue."""
        from .jobs.jobs import Jobs

        resources = self._resources
        return Jobs(
            resources.pools,
            clock=resources.clock,
            metrics=resources.metrics,
            application=resources.application,
        )

    @cached_property
    def outbox(self) -> Outbox:
        """Return what takes messages."""
        from .outbox.append import Outbox

        return Outbox(self._resources.dialect)

    @cached_property
    def processors(self) -> Processors:
        """Return the declared processors."""
        from .outbox.processors import Processors

        resources = self._resources
        return Processors(
            resources.pools,
            resources.documents,
            clock=resources.clock,
            metrics=resources.metrics,
            retention=self._settings.outbox_retention,
            rights={**FOR_PROCESSORS, **(FOR_LEASES if resources.has_state else {})},
        )

    @cached_property
    def engines(self) -> Engines:
        """Return the declared engines."""
        from .engines.engines import EngineResources, Engines
        from .engines.queues.embedded import DatabaseQueues

        resources, jobs = self._resources, self.jobs
        return Engines(
            EngineResources(
                database=jobs.database,  # apart from the pool that handlers may use up
                queues=self._settings.engine_queues or DatabaseQueues(jobs, resources.app_name),
                tables=resources.tables_in(jobs.database),
                leases=resources.engine_leases,
                registry=resources.registry,
                durable=self._settings.durable,
                default_instance_id=resources.instance_id,
                app_name=resources.app_name,
                has_state=resources.has_state,
            ),
            clock=resources.clock,
            metrics=resources.metrics,
        )

    # What is declared

    @property
    def has_triggers(self) -> bool:
        """Return whether there is one."""
        return "triggers" in vars(self) and bool(self.triggers)

    @property
    def has_jobs(self) -> bool:
        """Return whether there is one."""
        return "jobs" in vars(self) and bool(self.jobs.definitions)

    @property
    def has_processors(self) -> bool:
        """Return whether there is one."""
        return "processors" in vars(self) and bool(self.processors.declared)

    @property
    def has_engines(self) -> bool:
        """Return whether there is one."""
        return "engines" in vars(self) and bool(self.engines.declared)

    def require_any(self) -> None:
        """Refuse to run nothing.

        Raises:
            ConfigurationError: nothing is declared.
        """
        if not (self.has_triggers or self.has_jobs or self.has_processors or self.has_engines):
            raise ConfigurationError(
                "Nothing is declared to run. Decorate a function with @hf.trigger(…), @hf.job(…), @hf.processor(…) or "
                "@hf.engine(…) first."
            )

    @property
    def use_queue(self) -> bool:
        """Return whether something declared waits in the database's queue."""
        return self.has_jobs or (self.has_engines and self.engines.are_in_database)

    def migrations(self) -> tuple[Migration, ...]:
        """Return the migrations of what is kept in the application's database."""
        return wanted_migrations(
            self._resources.database().dialect.name,
            has_state=self._resources.has_state,
            has_queue=self.has_jobs or self.has_engines,
            has_outbox=self.has_processors,
        )

    def faults(self) -> dict[str, DbError]:
        """Return what is wrong with what is declared, by title."""
        found = self.triggers.faults() if self.has_triggers else {}
        found |= self.processors.faults() if self.has_processors else {}
        return found | (self.engines.faults() if self.has_engines else {})

    def chores(self) -> list[Chore]:
        """Return what some process must do now and then for what is declared."""
        found = self.jobs.chores() if self.has_jobs else []
        found += self.processors.chores() if self.has_processors else []
        found += self.engines.chores() if self.has_engines else []
        has_failures = self.has_triggers and has_records(self.migrations())
        return [*found, *self.record_chores()] if found or has_failures else []

    # Whatever is declared

    def prune(self) -> Pruned:
        """Forget what is past the registry's retention, on the queue's connections; return how much."""
        from .records.retention import Pruned, effective_days

        found = self._resources.tables_in(self.jobs.database)
        days, tables = effective_days(found.config().retention_days), found.of_all()
        return Pruned(tables.history.prune(days), tables.letters.prune(days))

    def record_chores(self) -> list[Chore]:
        """Return the chores that seal the audit and forget what is past its retention: the one place for both."""
        from .records.seals import SEAL_SECONDS, seal
        from .runtime.housekeeping import Chore

        return [
            Chore("sealing the audit", partial(seal, self._resources.pools.engine(PoolName.WORK)), SEAL_SECONDS),
            Chore("forgetting records past their retention", self.prune, _PRUNE_SECONDS, may_take_long=True),
        ]

    def redrive(self) -> Redrives:
        """Return what puts dead letters of every workload back where they came from."""
        from .jobs.operator import JobRedrive
        from .jobs.store import job_store
        from .outbox.letters import ProcessorRedrive
        from .records.redrive import Redrives

        database, engines = self._resources.database(), self.engines
        redrives: dict[str, Redrive] = {
            "jobs:": JobRedrive(job_store(database)),
            "processor:": ProcessorRedrive(database),
        }
        if engines.redrive is not None:
            return Redrives(database, {**redrives, "": engines.redrive})
        letters = self._resources.tables.of_all().letters
        return Redrives(database, redrives, stepped={"": engines.retries}, letters=letters)


def together(faults: Mapping[str, DbError]) -> DbError:
    """Return one error that names all that is wrong."""
    if len(faults) == 1:
        return next(iter(faults.values()))
    each = " ".join(f"{title} does not run: {fault}" for title, fault in faults.items())
    return ConfigurationError(f"{len(faults)} of what is declared cannot run. {each}")
