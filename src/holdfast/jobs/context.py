"""What a job's handler is told, and what it may do."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from threading import Event
from typing import Any

from ..core.clock import Clock
from ..core.errors import Ambiguous, LostLeaseError, Unavailable
from ..core.own_thread import on_own_thread
from ..core.types import JsonValue
from ..runtime.transaction import AsyncTransaction, HandlerTransaction
from .model import JobId
from .outcomes import JobCancelled
from .running import Running


class JobContext:
    """The context of one attempt.

    ``job_id`` and ``attempt`` together are the key to deduplicate effects on. Stop when convenient once ``lease_lost``
    is set: nothing this attempt reports will count any more.
    """

    __slots__ = ("_beat", "_clock", "_open", "_proxy", "_running")

    def __init__(
        self,
        running: Running,
        open_transaction: Callable[[Running], HandlerTransaction],
        beat: Callable[[Running, str | None], bool],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._running = running
        self._open = open_transaction
        self._proxy: AsyncTransaction | None = None
        self._beat = beat

    @property
    def job_id(self) -> JobId:
        """Return the job's id."""
        return self._running.job.id

    @property
    def topic(self) -> str:
        """Return the job's topic."""
        return self._running.job.topic

    @property
    def operation(self) -> str:
        """Return the name of the job's handler."""
        return self._running.job.operation

    @property
    def attempt(self) -> int:
        """Return the number of this claim: it only ever grows, over retries by hand too."""
        return self._running.job.attempt

    @property
    def fencing_token(self) -> int:
        """Return the attempt: pass it to systems that can refuse a lower one for the same job."""
        return self._running.job.attempt

    @property
    def failures(self) -> int:
        """Return how many attempts have failed before."""
        return self._running.job.failures

    @property
    def max_attempts(self) -> int | None:
        """Return how many failures send the job to the dead letters, None for no limit."""
        return self._running.job.max_attempts

    @property
    def correlation_id(self) -> str:
        """Return the id that ties together what belongs to one piece of business."""
        return self._running.job.correlation_id

    @property
    def instance_id(self) -> str | None:
        """Return the instance the job is for, if it said."""
        return self._running.job.instance_id

    @property
    def tags(self) -> list[str]:
        """Return the job's tags."""
        stored = self._running.job.tags
        tags: list[str] = json.loads(stored) if stored else []
        return tags

    @property
    def run_at(self) -> datetime | None:
        """Return when the job was to run; for a periodic job, the slot it stands for."""
        return self._running.job.run_at

    @property
    def created_at(self) -> datetime:
        """Return when the job was enqueued, by the database's clock."""
        return self._running.job.created_at

    @property
    def lease_lost(self) -> Event:
        """Return an event that is set once the lease is lost."""
        return self._running.lost_event

    @property
    def cancelled(self) -> Event:
        """Return an event that is set once someone cancelled the job."""
        return self._running.cancel_event

    def raise_if_stopped(self) -> None:
        """Leave the handler when its lease was lost or its job cancelled; cheap enough for every loop.

        Raises:
            LostLeaseError: the lease is lost.
            JobCancelled: the job was cancelled.
        """
        if self._running.is_lost:
            raise LostLeaseError(f"Job {self.job_id} is no longer this worker's: its lease was lost.")
        if self._running.cancel_reason is not None:
            raise JobCancelled(self._running.cancel_reason)

    def heartbeat(self, progress: JsonValue = None) -> Any:
        """Extend the lease now and say how far the work is; ``holdfast jobs show`` displays it.

        Beats are sent anyway while the handler runs: this is for telling progress. In ``async def`` handlers it is
        awaited. Nothing is told while the database does not answer, nor on SQLite while ``context.transaction`` is
        open: it holds the write lock.

        Raises:
            LostLeaseError: the lease is lost.
            JobCancelled: the job was cancelled.
        """
        told = json.dumps(progress, ensure_ascii=False)
        if self._running.handler.is_async:
            return self._tell_off_loop(told)
        return self._tell(told)

    async def _tell_off_loop(self, progress: str) -> None:
        await on_own_thread(partial(self._tell, progress))

    def _tell(self, progress: str) -> None:
        try:
            is_held = self._beat(self._running, progress)
        except (Unavailable, Ambiguous):  # telling progress is worth no attempt; the worker's own beats go on
            is_held = True
        if not is_held:
            self._running.lose(is_certain=True)
        self.raise_if_stopped()

    def progress(self, value: JsonValue) -> Any:
        """Say how far the work is, as ``heartbeat(progress=…)`` does; awaited in ``async def`` handlers."""
        return self.heartbeat(value)

    @property
    def deadline(self) -> datetime | None:
        """Return when the handler must have ended, None when it may take as long as it likes."""
        limit, begun_at = self._running.handler.max_seconds, self._running.begun_at
        if limit is None or begun_at is None:
            return None
        return self._clock.now() + timedelta(seconds=begun_at + limit - self._clock.monotonic())

    @property
    def transaction(self) -> Any:
        """Return a connection whose transaction commits together with the job's completion, opened on first use.

        In ``async def`` handlers its methods are awaited.
        """
        if not self._running.handler.is_async:
            return self._open(self._running).connection
        if self._proxy is None:
            self._proxy = AsyncTransaction(self._open(self._running))
        return self._proxy
