"""A part of a process that works under a lease: keeps it between polls, stands by for other workers, outlives errors.

What is wrong stops alone: it is logged as an error, once, and tried again slowly, because someone may mend the table.
Any other error of a step is logged by the work itself, which is tried again with growing pauses. Each failure is handed
to the work with the pause before the next try, so that people can be shown both.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..core.clock import Clock
from ..core.errors import (
    UNANSWERED,
    ConfigurationError,
    DbError,
    FingerprintMismatchError,
    LeaseConflictError,
    LostLeaseError,
    OtherApplicationError,
    RetiredError,
    SourceConfigurationError,
    StoppedError,
    UnreadableStateError,
)
from ..core.retry import RetryPolicy, doubling
from ..core.types import FencingToken

_log = logging.getLogger("holdfast.worker")
_RELEASE_SECONDS = 1.0
_LONGEST_STANDBY_SECONDS = 1.0
AFTER_ERRORS = RetryPolicy(max_retries=0, base_delay_seconds=0.5, max_delay_seconds=30.0)
WHILE_WRONG = RetryPolicy(max_retries=0, base_delay_seconds=2.0, max_delay_seconds=60.0)
_NO_FAULT = (LostLeaseError, *UNANSWERED)
WRONG = (ConfigurationError, SourceConfigurationError, FingerprintMismatchError, UnreadableStateError)


class Lease(Protocol):
    """What is needed of a lease here."""

    lost: threading.Event

    @property
    def fencing_token(self) -> FencingToken:
        """Return the token of this acquisition."""
        ...

    def release(self, *, wait_seconds: float) -> None:
        """Free it."""
        ...


_Lease = TypeVar("_Lease", bound=Lease)


class StepOutcome(Protocol):
    """What a step has done."""

    @property
    def delivered(self) -> int:
        """Return how much it has done."""
        ...

    @property
    def caught_up(self) -> bool:
        """Return whether there is nothing more to do now."""
        ...


class LeasedRunner(Protocol[_Lease]):
    """Work under one lease."""

    def leased(self) -> AbstractContextManager[_Lease]:
        """Hold the lease, kept alive beside whatever runs inside; ``LeaseConflictError`` when that cannot be."""
        ...

    def process_batch(self, lease: _Lease, /) -> StepOutcome:
        """Do one step under the lease."""
        ...


@dataclass(frozen=True, slots=True)
class LeasedWork:
    """Work as it is declared.

    Args:
        title: what people call it.
        make: returns what runs it; called when it first runs, for it may have to look at a database.
        check: looks whether it can run, and raises what is wrong; called again after it was wrong.
        poll_seconds: how long it rests when there is nothing to do.
        longest_rest_seconds: how long it rests when there was nothing to do for a while.
        wake_ups: has the function passed to it called while a block runs, whenever there may be something to do: with
            True when people have changed something.
        woken: tells its runner that it was woken, and whether by people who have changed something.
        is_held_back: tells of its runner whether something waits that comes without a wake-up.
        abandon: has its runner judge a handler that is left to itself, under the lease that it still holds.
        failed: has its runner keep, under the lease, why a step failed and in how many seconds the next try is.
        on_fault: keeps why it could not begin a step at all, and in how many seconds the next try is; no lease is held.
        fault: what is known to be wrong with it already.
    """

    title: str
    make: Callable[[], LeasedRunner[Any]]
    check: Callable[[], object]
    poll_seconds: float = 1.0
    longest_rest_seconds: float = 0.0
    wake_ups: Callable[[Callable[[bool], None]], AbstractContextManager[None]] | None = None
    woken: Callable[[Any, bool], None] | None = None
    is_held_back: Callable[[Any], bool] | None = None
    abandon: Callable[[Any, Any], None] | None = None
    failed: Callable[[Any, Any, Exception, float], None] | None = None
    on_fault: Callable[[Exception, float], None] | None = None
    fault: DbError | None = None

    def rest_seconds(self, idle_rounds: int) -> float:
        """Return how long to rest after so many rounds in a row that found nothing: twice as long after each."""
        return doubling(self.poll_seconds, self.longest_rest_seconds, idle_rounds)


class _NotReadyError(Exception):
    """What failed while a part was looked at or made; ``error`` is that."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def logged_step(title: str) -> Iterator[None]:
    """Log a step that failed, for work without telemetry of its own; a lease that someone else holds is no failure."""
    try:
        yield
    except LeaseConflictError:
        raise
    except Exception as error:
        _log.warning("%s did not complete a step and tries again: %s", title, error)
        raise


class LeasedPart:
    """Runs one kind of leased work in one process."""

    def __init__(self, work: LeasedWork, stop: threading.Event, *, clock: Clock, is_strict: bool = False) -> None:
        self._work = work
        self._stop = stop
        self._clock = clock
        self._is_strict = is_strict
        self._wake = threading.Event()
        self._runner: LeasedRunner[Any] | None = None
        self._lease: Lease | None = None
        self._fault: Exception | None = work.fault
        self._is_kept = False
        self._failures = 0
        self._idle_rounds = 0
        self._standby_seconds = 0.0
        self._is_stopped = False

    @property
    def title(self) -> str:
        """Return what people call it."""
        return self._work.title

    def run(self) -> bool:
        """Run until the process is to stop; no batch is begun after that.

        Raises:
            DbError: it is wrong, and whoever started it would rather have it end than wait to be mended.
        """
        with nullcontext() if self._work.wake_ups is None else self._work.wake_ups(self.wake):
            if self._fault is not None:
                pause = WHILE_WRONG.delay_for_attempt(0)
                self._keep_fault(self._fault, pause)
                self._rest(pause)
            self._keep_running()
        return True

    def _keep_running(self) -> None:
        while not self._stop.is_set():
            try:
                self._run_checked()
            except LeaseConflictError as held:
                self._stand_by(held)
            except WRONG as error:
                if self._is_strict:
                    raise
                self._wait_to_be_mended(error)
            except _NotReadyError as failed:
                self._wait_to_be_mended(failed.error)
            except BaseException as error:  # logged by the work itself, which outlives every error
                pause = self._pause_after_error()
                self._failures += 1
                self._standby_seconds = 0.0
                if isinstance(error, Exception) and not isinstance(error, _NO_FAULT):
                    self._keep_fault(error, pause)
                self._rest(pause)

    def wake(self, by_people: bool = False) -> None:
        """End a rest: there may be something to do, or people have changed something."""
        if self._runner is not None and self._work.woken is not None:
            self._work.woken(self._runner, by_people)
        self._idle_rounds = 0
        self._wake.set()

    def stopping(self) -> None:
        """End a rest: the process is to stop."""
        self._wake.set()

    def give_up(self) -> None:
        """Release the lease of a handler that did not finish; if that fails, the lease frees itself.

        A handler that had ended its transaction is not left to the next worker: that would repeat what it has kept.
        """
        lease = self._lease
        if lease is None:
            return
        try:
            if self._work.abandon is not None:
                self._work.abandon(self._runner, lease)
        except Exception:
            _log.exception("%s could not be given up as it should", self.title)
        finally:
            lease.release(wait_seconds=_RELEASE_SECONDS)

    def _run_checked(self) -> None:
        self._is_kept = False
        runner = self._ready()
        with runner.leased() as lease, self._remembered(lease):
            _log.info("%s holds its lease with token %d", self.title, lease.fencing_token)
            self._standby_seconds, self._is_stopped = 0.0, False
            while not self._stop.is_set() and not lease.lost.is_set():
                self._step(runner, lease)

    def _ready(self) -> LeasedRunner[Any]:
        """Return what runs it, looked at first where something was wrong.

        Raises:
            _NotReadyError: that failed in a way that nobody else logs.
        """
        try:
            if self._fault is not None:
                self._work.check()
                _log.info("%s can run again", self.title)
                self._fault, self._failures = None, 0
            self._runner = self._runner or self._work.make()
        except (LeaseConflictError, *WRONG):
            raise
        except Exception as error:
            raise _NotReadyError(error) from error
        return self._runner

    def _step(self, runner: LeasedRunner[Any], lease: Lease) -> None:
        self._wake.clear()
        outcome = self._tried(runner, lease)
        if outcome.delivered:
            self._failures = 0
        if outcome.delivered or not outcome.caught_up:
            self._idle_rounds = 0
        if outcome.caught_up:
            self._rest(self._work.rest_seconds(self._idle_rounds))
            self._idle_rounds += not (self._idle_rounds == 0 and self._waits_for_others(runner))

    def _tried(self, runner: LeasedRunner[Any], lease: Lease) -> StepOutcome:
        """Do one step. Why it failed is kept while the lease is held: then nobody else's success can be overwritten."""
        try:
            return runner.process_batch(lease)
        except LeaseConflictError:
            raise
        except Exception as error:
            if self._work.failed is not None:
                pause = self._pause_while_wrong() if isinstance(error, WRONG) else self._pause_after_error()
                self._work.failed(runner, lease, error, pause)
                self._is_kept = True
            raise

    def _waits_for_others(self, runner: LeasedRunner[Any]) -> bool:
        return self._work.is_held_back is not None and self._work.is_held_back(runner)

    def _stand_by(self, held: LeaseConflictError) -> None:
        """Wait for whoever holds the lease: less and less eagerly, since it may hold it for ever."""
        if self._is_strict and isinstance(held, (RetiredError, OtherApplicationError)):
            raise held
        self._log_why(held)
        longest = max(self._work.poll_seconds, _LONGEST_STANDBY_SECONDS)
        self._standby_seconds = min(longest, max(self._work.poll_seconds, 2 * self._standby_seconds))
        self._failures = 0
        self._rest(self._standby_seconds)

    def _log_why(self, held: LeaseConflictError) -> None:
        """Say once that it stands by, and once that it was stopped, though it was in another worker's charge."""
        is_stopped = isinstance(held, StoppedError)
        if is_stopped and not self._is_stopped:
            _log.error("%s does not run: %s", self.title, held)
        elif not is_stopped and self._stop.is_set():
            _log.info("%s", held)
        elif not is_stopped and not self._standby_seconds:
            _log.info("%s stands by. %s", self.title, held)
        self._is_stopped = is_stopped

    def _wait_to_be_mended(self, error: Exception) -> None:
        if self._fault is None or str(self._fault) != str(error):
            _log.error("%s does not run until that is mended: %s", self.title, error)
        pause = self._pause_while_wrong()
        self._failures = 0 if self._fault is None else self._failures + 1
        self._fault, self._standby_seconds, self._runner = error, 0.0, None
        self._keep_fault(error, pause)
        self._rest(pause)

    def _keep_fault(self, error: Exception, pause: float) -> None:
        """Hand on why it does not run, unless that was kept under the lease already."""
        if self._work.on_fault is None or self._is_kept:
            return
        try:
            self._work.on_fault(error, pause)
        except Exception as unwritten:  # that keeps nobody from trying again
            _log.warning("That %s does not run could not be recorded: %s", self.title, unwritten)

    def _pause_while_wrong(self) -> float:
        return WHILE_WRONG.delay_for_attempt(0 if self._fault is None else self._failures + 1)

    def _pause_after_error(self) -> float:
        return AFTER_ERRORS.delay_for_attempt(self._failures + 1)

    def _rest(self, seconds: float) -> None:
        if not self._stop.is_set():
            self._clock.wait(self._wake, seconds)
        self._wake.clear()

    @contextmanager
    def _remembered(self, lease: Lease) -> Iterator[None]:
        self._lease = lease
        try:
            yield
        finally:
            self._lease = None
