"""One process of an application: what it runs, and what it refuses to run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping

from .core.clock import Clock
from .core.errors import DbError
from .jobs.settings import WorkerSettings
from .runtime.housekeeping import Housekeeping
from .runtime.leased_part import LeasedPart, LeasedWork
from .runtime.supervisor import Part, WorkerPart
from .schema import has_queue
from .workloads import Workloads, together

_log = logging.getLogger("holdfast.worker")


class Process:
    """What one process runs of an application.

    Args:
        workloads: what is declared.
        stop: what ends the process.
        is_strict: whether something that is wrong ends it.
    """

    def __init__(self, workloads: Workloads, stop: threading.Event, clock: Clock, *, is_strict: bool) -> None:
        self._workloads = workloads
        self._stop = stop
        self._clock = clock
        self._is_strict = is_strict

    def parts(self, settings: WorkerSettings, topics: Collection[str] | None) -> list[Part]:
        """Return the parts.

        Raises:
            DbError: nothing that is declared can run, or not all of it where all is wanted.
        """
        found = self._workloads
        faults = found.faults() | (found.processors.register_each() if found.has_processors else {})
        self._log_faults(faults)
        parts: list[Part] = [*self._leased(faults), *self._jobs_worker(settings, topics)]
        if found.has_engines and not found.engines.are_in_database:
            parts.append(found.engines.worker(self._stop, faults))
            if has_queue(found.migrations()):
                parts.append(self._announcement())
        if chores := found.chores():
            parts.append(Housekeeping(chores, self._stop, clock=self._clock))
        return parts

    def _announcement(self) -> Part:
        """Return what shows this process among the live workers, although it takes no jobs."""
        from .jobs.announcement import Listed

        jobs, engines = self._workloads.jobs, self._workloads.engines
        return Listed(jobs.store, engines.operations_by_queue, self._stop, self._clock)

    def _log_faults(self, faults: Mapping[str, DbError]) -> None:
        """Say what does not run.

        Raises:
            DbError: all of them, when nothing is left to run or everything is wanted.
        """
        found = self._workloads
        declared = len(found.triggers) if found.has_triggers else 0
        declared += len(found.processors.declared) if found.has_processors else 0
        declared += len(found.engines.declared) if found.has_engines else 0
        if faults and (self._is_strict or (len(faults) >= declared and not found.has_jobs)):
            raise together(faults)
        for title, fault in faults.items():
            _log.error("%s does not run until that is mended: %s", title, fault)

    def _leased(self, faults: Mapping[str, DbError]) -> list[LeasedPart]:
        found = self._workloads
        works: list[LeasedWork] = []
        works += found.triggers.works(self._stop, faults) if found.has_triggers else []
        works += found.processors.works(stop=self._stop, faults=faults) if found.has_processors else []
        works += found.engines.timers(faults) if found.has_engines else []
        return [LeasedPart(work, self._stop, clock=self._clock, is_strict=self._is_strict) for work in works]

    def _jobs_worker(self, settings: WorkerSettings, topics: Collection[str] | None) -> list[WorkerPart]:
        handlers = self._workloads.engines.handlers() if self._workloads.has_engines else []
        if not (self._workloads.has_jobs or handlers):
            return []
        worker = self._workloads.jobs.worker(self._stop, settings, topics, others=handlers)
        return [WorkerPart("The jobs' worker", worker.run, worker.dead_parts)]
