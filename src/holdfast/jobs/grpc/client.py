"""The Python SDK of remote workers: run handlers, and enqueue jobs, in a process with no access to the database."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ...core.clock import Clock, SystemClock, new_id
from ...core.errors import ConfigurationError
from ...core.keywords import require_known, takes
from ...core.signals import StopSignals
from ...core.telemetry import MetricsCollector
from ..correlation import current_correlation_id
from ..definition import EnqueueSettings, JobDefinition
from ..model import Enqueued, JobId, WorkerId
from ..payload import MAX_PAYLOAD_BYTES
from ..running import JobHandler
from ..settings import JobSettings, WorkerSettings, checked_moment, checked_topic
from ..worker import JobWorker
from . import holdfast_jobs_pb2 as wire
from .connection import RemoteConnection
from .new_jobs import new_job_message
from .remote_store import RemoteJobStore
from .security import ClientTls

if TYPE_CHECKING:
    from typing import Unpack

    from ..options import RemoteEnqueueOptions

__all__ = ["ClientTls", "RemoteQueue", "RemoteWorker", "remote_job"]

_MOST_JOBS = 10_000
_MOST_BYTES = 4 * MAX_PAYLOAD_BYTES


def remote_job(
    topic: str = "default",
    *,
    name: str | None = None,
    max_seconds: float | None = None,
    max_payload_bytes: int = MAX_PAYLOAD_BYTES,
) -> Callable[[Callable[..., Any]], JobDefinition]:
    """Make the decorated function, ``def`` or ``async def``, a handler for a ``RemoteWorker``.

    A first parameter named ``context`` gets the ``JobContext``, whose ``transaction`` cannot be used here; the others
    are the payload. Its retries and leases are set where jobs are enqueued.

    Raises:
        ConfigurationError: the declaration is wrong.
    """

    def register(function: Callable[..., Any]) -> JobDefinition:
        return JobDefinition(
            function,
            topic=topic,
            store=_no_store,
            operation=name,
            settings=JobSettings(max_seconds=max_seconds),
            max_payload_bytes=max_payload_bytes,
        )

    return register


def _no_store() -> NoReturn:
    raise ConfigurationError("A remote job has no database to be enqueued in. Use RemoteQueue(…).enqueue(…).")


class RemoteWorker:
    """A worker whose jobs come from a server.

    Args:
        target: the server, as ``host:port``.
        handlers: what to run: functions decorated with ``remote_job``, or jobs declared elsewhere.
        token: what the server knows the hash of.
        tls: whom to trust; None talks in the clear.
        insecure: whether to send the token in the clear to another machine.
        name: unique to this process; one is made up when it is left out.

    Raises:
        ConfigurationError: there is nothing to run, or the connection would not be safe.
    """

    def __init__(
        self,
        target: str,
        handlers: Sequence[JobHandler],
        *,
        token: str | None = None,
        tls: ClientTls | None = None,
        insecure: bool = False,
        settings: WorkerSettings | None = None,
        metrics: MetricsCollector | None = None,
        clock: Clock | None = None,
        name: str | None = None,
    ) -> None:
        if not handlers:
            raise ConfigurationError("A remote worker needs handlers. Decorate functions with @remote_job(…).")
        self.id = WorkerId(checked_topic("Worker", name or f"{socket.gethostname()}-{os.getpid()}-{new_id(8)}"))
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._connection = RemoteConnection(target, token=token, tls=tls, is_insecure=insecure)
        self._store = RemoteJobStore(self._connection, self.id, self._stop)
        self._worker = JobWorker(
            self._store, handlers, self._stop, settings=settings, metrics=metrics, clock=self._clock, name=self.id
        )

    def run(self, *, handle_signals: bool = True) -> bool:
        """Work until ``stop()`` or SIGTERM/SIGINT, then let running handlers finish; return whether they all did.

        A worker runs once. When the server does not answer, it is tried again for as long as it takes.

        Raises:
            ConfigurationError: the server does not let this worker in.
        """
        signals: AbstractContextManager[None] = nullcontext()
        if handle_signals and threading.current_thread() is threading.main_thread():
            signals = StopSignals(self._stop, self._clock)
        try:
            self._store.check()
            with signals:
                return self._worker.run()
        finally:
            self._connection.close()

    def stop(self) -> None:
        """Make ``run`` drain and return."""
        self._stop.set()


class RemoteQueue:
    """Adds jobs through a server. Close it, or use it in a ``with`` block.

    Args:
        target: the server, as ``host:port``.
        token: what the server knows the hash of.
        tls: whom to trust; None talks in the clear.
        insecure: whether to send the token in the clear to another machine.

    Raises:
        ConfigurationError: the connection would not be safe.
    """

    def __init__(
        self, target: str, *, token: str | None = None, tls: ClientTls | None = None, insecure: bool = False
    ) -> None:
        self._connection = RemoteConnection(target, token=token, tls=tls, is_insecure=insecure, timeout_seconds=30.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    @takes(EnqueueSettings, max_attempts=None, lease_seconds=None)
    def enqueue(
        self,
        topic: str,
        operation: str,
        arguments: Mapping[str, object] | None = None,
        **options: Unpack[RemoteEnqueueOptions],
    ) -> Enqueued:
        """Add a job. What is left out is as the server's application declares it, else as for any job.

        ``max_attempts=0`` retries for ever. The other options are those of ``JobDefinition.options``.

        Raises:
            ConfigurationError: an option cannot be used, or the server does not let this client in.
            PayloadError: the arguments are not JSON, too large, or do not fit the handler.
            Ambiguous: the answer was lost; the job may or may not be there. A unique key makes a retry safe.
        """
        require_known("enqueue", options, EnqueueSettings, others=("lease_seconds",))
        given: dict[str, object] = {**options}
        run_at = given.get("run_at")
        if run_at is not None and given.get("delay_seconds") is not None:
            raise ConfigurationError("run_at and delay_seconds both say when a job is to run. Give one of them.")
        given |= {
            "run_at": None if run_at is None else checked_moment("run_at", run_at),
            "limit_key": given.pop("key", None),
            "correlation_id": options.get("correlation_id") or current_correlation_id.get(),
        }
        answer = self._send([new_job_message(topic, operation, arguments or {}, given)])
        return Enqueued(JobId(answer.job.job_id), answer.job.correlation_id, answer.job.is_new)

    def enqueue_many(self, topic: str, operation: str, arguments: Iterable[Mapping[str, object]]) -> int:
        """Add a job for each set of arguments; return how many. Each 10,000, or 4 MiB, of them are all or none.

        Raises:
            PayloadError: a set of arguments is not JSON, too large, or does not fit the handler.
            ConfigurationError: the server does not let this client in.
            Ambiguous: an answer was lost; some of the jobs may be there.
        """
        options = {"correlation_id": current_correlation_id.get()}
        batch: list[wire.NewJob] = []
        added = size = 0
        for given in arguments:
            message = new_job_message(topic, operation, given, options)
            if batch and (len(batch) >= _MOST_JOBS or size + message.ByteSize() > _MOST_BYTES):
                added += self._send(batch).added
                batch, size = [], 0
            batch.append(message)
            size += message.ByteSize()
        return added + (self._send(batch).added if batch else 0)

    def _send(self, jobs: Sequence[wire.NewJob]) -> wire.EnqueueResponse:
        answer: wire.EnqueueResponse = self._connection.call("Enqueue", wire.EnqueueRequest(jobs=jobs))
        return answer
