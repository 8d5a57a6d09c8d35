"""What one delivery of a message does about its orchestration: pure decisions, for every backend.

The backend's loop shows the instance, and gets what to do next. So a redelivery attaches to what is under way, takes
what has ended, and starts anew only what failed before this delivery.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.clock import Clock
from ...core.errors import AlreadyRunning, Unavailable
from .instances import Instance, Owner, Phase
from .protocol import OperationFailed, OperationTimedOut

_MOST_STARTS = 5  # each was answered neither with yes nor with no
_OUTAGE_SECONDS = 30.0  # a hub that restarts fails no delivery
_TERMINATION_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Start:
    """Start the instance; ``over`` is the ended one that it takes the place of, None when there must be none."""

    over: Instance | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the end of the instance, this long at most, and look again."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Terminate:
    """Terminate the instance: it has run too long."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The operation has succeeded."""

    output: object


Step = Start | Wait | Terminate | Done


class Delivery:
    """One delivery's view of its instance.

    Args:
        instance_id: the instance.
        owner: whom it must work for.
        timeout_seconds: how long it may run; None for as long as it likes.
        poll_seconds: how long one wait lasts at most.
    """

    def __init__(
        self, instance_id: str, owner: Owner, *, timeout_seconds: float | None, poll_seconds: float, clock: Clock
    ) -> None:
        self._id = instance_id
        self._owner = owner
        self._timeout = timeout_seconds
        self._poll = poll_seconds
        self._clock = clock
        self._starts = 0
        self._over: Instance | None = None
        self._start_error: Unavailable | None = None
        self._is_watching = False
        self._deadline: float | None = None
        self._terminated_at: float | None = None
        self._unreachable_since: float | None = None

    def next(self, found: Instance | None) -> Step:
        """Return what to do about the instance as it was just found.

        Raises:
            AlreadyRunning: it is busy with, or was taken over by, something else.
            OperationFailed: it failed while this delivery watched.
            Unavailable: it cannot be started.
        """
        self._unreachable_since = None
        if self._is_watching:
            return self._watched(found)
        if found is None:
            return self._start(None)
        if found.owner != self._owner:
            if found.phase is Phase.RUNNING:
                raise AlreadyRunning(
                    f"The orchestration '{self._id}' is at work for {_named(found.owner)}; one at a time."
                )
            return self._start(found)
        if self._starts and not self._is_over(found):
            self._begin_watching(age_seconds=0.0)  # the answer to our start was lost, and it was accepted
            return self._watched(found)
        match found.phase:
            case Phase.RUNNING:
                self._begin_watching(age_seconds=self._age(found))
                return self._watched(found)
            case Phase.COMPLETED:
                return Done(found.output)
            case Phase.FAILED | Phase.TERMINATED:
                return self._start(found)  # in an earlier delivery: this one tries again

    def started(self) -> None:
        """Take note that the backend has accepted the start: what it shows from now on is this delivery's."""
        self._begin_watching(age_seconds=0.0)

    def unanswered(self, error: Unavailable) -> None:
        """Take note that the answer to the start was lost. The next look tells whether it was accepted."""
        self._start_error = error

    def unreachable(self, error: Unavailable) -> Wait:
        """Return how long to wait before the backend is asked again. A backend that never answered is not waited for.

        Raises:
            Unavailable: it has not answered for too long, or nothing can be under way.
        """
        now = self._clock.monotonic()
        since = self._unreachable_since if self._unreachable_since is not None else now
        is_starting = self._start_error is not None and self._starts <= _MOST_STARTS
        if not (self._is_watching or is_starting) or now - since >= _OUTAGE_SECONDS:
            raise error
        self._unreachable_since = since
        return Wait(self._poll)

    # Starting

    def _start(self, over: Instance | None) -> Start:
        self._starts += 1
        if self._starts > _MOST_STARTS:
            raise self._start_error or AlreadyRunning(f"The orchestration '{self._id}' is started and ended by others.")
        self._over = over
        return Start(over)

    def _is_over(self, found: Instance) -> bool:
        """Return whether this is still the ended instance that the start was to take the place of."""
        return self._over is not None and self._over.created_at == found.created_at

    def _age(self, found: Instance) -> float:
        if found.created_at is None:
            return 0.0
        return max(0.0, (self._clock.now() - found.created_at).total_seconds())

    # Watching

    def _begin_watching(self, *, age_seconds: float) -> None:
        self._is_watching = True
        if self._timeout is not None:
            self._deadline = self._clock.monotonic() + self._timeout - age_seconds

    def _watched(self, found: Instance | None) -> Step:
        if found is None:
            raise OperationFailed(f"The orchestration '{self._id}' is gone: it was purged before its end was seen.")
        if found.owner != self._owner:
            raise AlreadyRunning(
                f"The orchestration '{self._id}' was taken over by {_named(found.owner)}; its end is unknown."
            )
        match found.phase:
            case Phase.RUNNING:
                return self._running()
            case Phase.COMPLETED:
                return Done(found.output)
            case Phase.FAILED:
                raise OperationFailed(f"The orchestration '{self._id}' failed: {found.error}")
            case Phase.TERMINATED:
                raise self._ended_by_termination(found)

    def _running(self) -> Step:
        now = self._clock.monotonic()
        if self._terminated_at is not None:
            if now - self._terminated_at >= _TERMINATION_SECONDS:
                raise OperationTimedOut(f"{self._too_long()} It was told to terminate and is still there.")
            return Wait(self._poll)
        if self._deadline is None:
            return Wait(self._poll)
        if now >= self._deadline:
            self._terminated_at = now
            return Terminate(self._too_long())
        return Wait(min(self._poll, self._deadline - now))

    def _ended_by_termination(self, found: Instance) -> OperationFailed:
        if self._terminated_at is not None:
            return OperationTimedOut(f"{self._too_long()} It was terminated.")
        return OperationFailed(f"The orchestration '{self._id}' was terminated: {found.error or 'no reason is told'}")

    def _too_long(self) -> str:
        return f"The orchestration '{self._id}' ran longer than its {self._timeout:g} s."


def _named(owner: Owner | None) -> str:
    if owner is None:
        return "something that is no message"
    return f"correlation id '{owner.correlation_id}' ({owner.engine}, {owner.operation})"
