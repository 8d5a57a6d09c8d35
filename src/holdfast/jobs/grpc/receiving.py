"""The worker's end of its stream: grants credit for free places, keeps what arrives until the worker takes it.

When the stream breaks, another is opened, and the worker goes on with what it has meanwhile: beats and reports are
other calls. What arrived and was not taken yet is the worker's as well, so it is beaten for, and put back at the end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from ...core.clock import Clock
from ...core.retry import RetryPolicy
from ..model import Claim, ClaimedJob, JobId, Wanted, WorkerId
from . import holdfast_jobs_pb2 as wire
from .assignments import RemoteJob, job_of
from .connection import RemoteConnection, error_of

_LOOK_AROUND_SECONDS = 0.2
_END_SECONDS = 2.0
_AFTER_ERRORS = RetryPolicy(max_retries=0, base_delay_seconds=0.05, max_delay_seconds=5.0)
_log = logging.getLogger("holdfast.jobs")


class Receiving:
    """Keeps a stream open from a thread of its own.

    Args:
        stop: when set, no more jobs are asked for, and the stream is closed.
        on_jobs: called when jobs have arrived, or may be asked for again.
        on_cancel: called when running jobs were cancelled.
        give_back: puts jobs back that arrived too late.
    """

    def __init__(
        self,
        connection: RemoteConnection,
        worker: WorkerId,
        wanted: Wanted,
        clock: Clock,
        stop: threading.Event,
        *,
        on_jobs: Callable[[], None],
        on_cancel: Callable[[], None],
        give_back: Callable[[list[RemoteJob]], None],
    ) -> None:
        self._connection = connection
        operations = [wire.Operations(topic=topic, names=names) for topic, names in wanted.items()]
        self._start = wire.Start(worker=worker, topics=wanted, operations=operations, tests_suspects=True)
        self._clock = clock
        self._stop = stop
        self._on_jobs = on_jobs
        self._on_cancel = on_cancel
        self._give_back = give_back
        self._lock = threading.Lock()
        self._arrived: dict[Claim, RemoteJob] = {}
        self._suspects: dict[Claim, RemoteJob] = {}
        self._is_asked = True  # the start of a stream asks for the first suspect
        self._grants: SimpleQueue[wire.Grant] = SimpleQueue()
        self._outstanding = 0
        self._is_over = False
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="holdfast-jobs-stream", daemon=True)

    def start(self) -> None:
        """Open the stream."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether the stream is still kept open, or opened again."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Close the stream; jobs that arrived meanwhile are put back."""
        self._stop.set()
        self._thread.join(_END_SECONDS)
        if self._call is not None:
            self._call.cancel()
        self._thread.join()

    def take(self, capacity: int) -> list[ClaimedJob]:
        """Return what has arrived, all of it, and ask for as much as there is room for besides."""
        with self._lock:
            jobs: list[ClaimedJob] = list(self._arrived.values())
            self._arrived.clear()
            wanted = capacity - len(jobs) - self._outstanding
            if wanted > 0 and not self._stop.is_set():
                self._outstanding += wanted
                self._grants.put(wire.Grant(credit=wanted))
        return jobs

    @property
    def wants_suspect(self) -> bool:
        """Return whether a suspect has arrived, or another is to be asked for."""
        return bool(self._suspects) or not self._is_asked

    def next_suspect(self) -> RemoteJob | None:
        """Return the suspect that has arrived; when there is none, the last test is over, and another is asked for."""
        with self._lock:
            if self._suspects:
                return next(iter(self._suspects.values()))
            if not self._is_asked and not self._stop.is_set():
                self._is_asked = True
                self._grants.put(wire.Grant(tests_suspects=True))
        return None

    def take_suspect(self, job_id: JobId) -> RemoteJob | None:
        """Take a suspect that has arrived; None when it was lost meanwhile."""
        with self._lock:
            claim = next((claim for claim in self._suspects if claim.id == job_id), None)
            if claim is None:
                return None
            self._is_asked = False
            return self._suspects.pop(claim)

    def take_all(self) -> list[RemoteJob]:
        """Return everything that has arrived, and ask for nothing."""
        with self._lock:
            taken = [*self._arrived.values(), *self._suspects.values()]
            self._arrived.clear()
            self._suspects.clear()
        return taken

    def waiting(self) -> list[Claim]:
        """Return the claims that have arrived and were not taken."""
        with self._lock:
            return [*self._arrived, *self._suspects]

    def drop(self, claim: Claim) -> None:
        """Forget a job that was lost before it was taken."""
        with self._lock:
            self._arrived.pop(claim, None)
            self._suspects.pop(claim, None)

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            has_received = self._receive()
            failures = 0 if has_received else failures + 1
            self._clock.wait(self._stop, _AFTER_ERRORS.delay_for_attempt(failures))
        late = self.take_all()
        if late:
            self._give_back(late)

    def _receive(self) -> bool:
        """Keep one stream until it ends; return whether anything came through it."""
        grants: SimpleQueue[wire.Grant] = SimpleQueue()
        with self._lock:
            self._grants, self._outstanding = grants, 0  # credit belongs to a stream and ends with it
            self._is_asked = True
        has_received = False
        self._call = self._connection.stub.StreamJobs(self._messages(grants), metadata=self._connection.metadata)
        self._on_jobs()
        try:
            for message in self._call:
                has_received = True
                self._took(message)
        except grpc.RpcError as error:
            if not self._stop.is_set():
                _log.warning(
                    "The stream of jobs ended and is opened again: %s", error_of(self._connection.target, error)
                )
        return has_received

    def _took(self, message: wire.ServerMessage) -> None:
        match message.WhichOneof("message"):
            case "assignment":
                job = job_of(message.assignment)
                with self._lock:
                    if job.suspicions:
                        self._suspects[job.claim] = job
                    else:
                        self._arrived[job.claim] = job
                        self._outstanding -= 1
                self._on_jobs()
            case "beat_now":
                self._on_cancel()

    def _messages(self, grants: SimpleQueue[wire.Grant]) -> Iterator[wire.WorkerMessage]:
        """Yield what to send on one stream, as long as it is the one in use. Runs on a thread of gRPC."""
        yield wire.WorkerMessage(start=self._start)
        while not self._stop.is_set() and grants is self._grants:
            try:
                grant = grants.get(timeout=_LOOK_AROUND_SECONDS)
            except Empty:
                continue
            yield wire.WorkerMessage(grant=grant)
