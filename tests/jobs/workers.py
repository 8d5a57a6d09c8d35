"""A worker under test, on threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.engine import Engine

from holdfast.core.config import DbConfig
from holdfast.database.pools import EngineProvider
from holdfast.jobs.definition import JobDefinition, JobSettings
from holdfast.jobs.settings import WorkerSettings
from holdfast.jobs.store import job_store
from holdfast.jobs.worker import JobWorker
from tests.components.processes import wait_until
from tests.jobs.queues import Queue

QUICK = WorkerSettings(concurrency=4, beat_seconds=0.2, watchdog_seconds=0.2, poll_seconds=0.05, drain_seconds=10)


class Work:
    """Handlers and the worker that runs them."""

    def __init__(
        self, queue: Queue, settings: WorkerSettings = QUICK, transaction_engine: Engine | None = None
    ) -> None:
        self.queue = queue
        self.settings = settings
        self.transaction_engine = transaction_engine
        self.definitions: list[JobDefinition] = []
        self.stop = threading.Event()

    def job(self, function: Callable[..., Any], topic: str = "email", **settings: Any) -> JobDefinition:
        defaults: dict[str, Any] = {"retry_base_seconds": 0.01, "retry_max_seconds": 0.02}
        definition = JobDefinition(
            function, topic=topic, store=lambda: self.queue.store, settings=JobSettings(**{**defaults, **settings})
        )
        self.definitions.append(definition)
        return definition

    @contextmanager
    def running(self, *, drains: bool = True) -> Iterator[JobWorker]:
        """Run the worker inside the block; at its end it must, or must not, drain in time."""
        provider = EngineProvider()
        keeper = provider.create_isolated_engine(DbConfig(connection_url=_url(self.queue.engine)))
        worker = JobWorker(
            self.queue.store,
            self.definitions,
            self.stop,
            keeper_store=job_store(keeper),
            transaction_engine=self.transaction_engine,
            settings=self.settings,
        )
        finished: list[bool] = []
        thread = threading.Thread(target=lambda: finished.append(worker.run()), name="worker under test")
        thread.start()
        try:
            yield worker
        finally:
            self.stop.set()
            thread.join()
            keeper.dispose()
        assert finished == [drains]

    def until_empty(self) -> None:
        """Wait until every job has ended."""
        active = "SELECT count(*) AS n FROM holdfast_jobs WHERE status IN ('ready', 'scheduled', 'suspect', 'running')"
        wait_until(lambda: self.queue.rows(active)[0]["n"] == 0, "every job to end")


def _url(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)
