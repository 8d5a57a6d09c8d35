"""What a job's handler learns, and what it may do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

from ..core.errors import Ambiguous, LostLeaseError, Unavailable
from ..core.types import JsonValue
from ..runtime.context import HandlerContext, lent_to
from .model import JobId
from .outcomes import JobCancelled
from .running import Running

if TYPE_CHECKING:
    from .runner import Execution


class JobContext(HandlerContext):
    """The context of one attempt.

    ``job_id`` and ``attempt`` together are the key to deduplicate effects on. ``attempt`` is the number of this claim
    and the fencing token: it only ever grows, over retries by hand too.

    Made for every job, so it is light: what every context has is read from the job when it is first asked for.
    """

    __slots__ = ("_execution", "_running")
    _running: Running
    _execution: Execution

    def __init__(self, running: Running, execution: Execution) -> None:
        _set_running(self, running)
        _set_execution(self, execution)

    if not TYPE_CHECKING:  # who checks types knows the fields of every context, and that there are no others

        def __getattr__(self, name: str) -> Any:
            """Fill in a field of every context."""
            if name not in _FIELDS:
                raise AttributeError(f"'JobContext' object has no attribute '{name}'", name=name, obj=self)
            value = _FIELDS[name](self)
            object.__setattr__(self, name, value)
            return value

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
    def failures(self) -> int:
        """Return how many attempts have failed before."""
        return self._running.job.failures

    @property
    def max_attempts(self) -> int | None:
        """Return how many failures send the job to the dead letters, None for no limit."""
        return self._running.job.max_attempts

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

    def _report(self, progress: JsonValue) -> None:
        try:
            is_held = self._execution.report_progress(self._running, json.dumps(progress, ensure_ascii=False))
        except (Unavailable, Ambiguous):
            is_held = True
        if not is_held:
            self._running.lose(is_certain=True)
        self.raise_if_stopped()

    def _until(self) -> datetime | None:
        clock = self._execution.clock
        left = self._running.seconds_left(clock.monotonic())
        return None if left is None else clock.now() + timedelta(seconds=left)


_set_running = JobContext.__dict__["_running"].__set__  # past the guard of what is frozen
_set_execution = JobContext.__dict__["_execution"].__set__
_FIELDS: Mapping[str, Callable[[JobContext], Any]] = {
    "correlation_id": lambda own: own._running.job.correlation_id,
    "attempt": lambda own: own._running.job.attempt,
    "fencing_token": lambda own: own._running.job.attempt,
    "lease_lost": lambda own: own._running.lost_event,
    "deadline": JobContext._until,
    "_beat": lambda own: own._report,
    "_is_async": lambda own: own._running.handler.is_async,
    "_transaction": lambda own: lent_to(own._execution.open(own._running), is_async=own._is_async),
}
