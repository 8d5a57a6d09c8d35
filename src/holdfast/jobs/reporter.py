"""Reports in groups: a few milliseconds' worth of ended jobs become one statement each kind.

A report is kept until the database has answered. When the answer was lost, the report is sent again; claims that are
then refused are looked up in the history, so a completion is neither lost nor taken for a stale one.

A database that takes no report at all holds all of them up. One report that it refuses holds up no other: it is put
aside and tried again, a success for as long as its lease can be kept, anything else a few times, because the watchdog
can tell of that as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from ..core.clock import Clock
from ..core.errors import Ambiguous, Unavailable
from ..core.retry import RetryPolicy
from .model import Claim, Failure, PutBack, Settled, Settler, Stopped, Success, WorkerId, failure_of
from .running import InFlight
from .stores.protocol import WorkerStore
from .telemetry import WorkerTelemetry

Report = Success | Failure | PutBack | Stopped | Settled
_log = logging.getLogger("holdfast.jobs")
_MOST_PER_FLUSH = 1000
_MOST_CHARACTERS_PER_FLUSH = 1_000_000  # a statement must fit what servers take
_GATHER_SECONDS = 0.004
_TRIES_OF_A_BAD_REPORT = 3
_AFTER_ERRORS = RetryPolicy(max_retries=0, base_delay_seconds=0.05, max_delay_seconds=5.0)
Send = Callable[[list[Report]], None]


@dataclass(slots=True)
class _Aside:
    """A report that the database has refused by itself, and when it is sent again."""

    send: Send
    report: Report
    failures: int
    due_at: float


class Reporter:
    """Sends reports from a thread of its own."""

    def __init__(
        self,
        store: WorkerStore,
        worker: WorkerId,
        in_flight: InFlight,
        telemetry: WorkerTelemetry,
        clock: Clock,
        on_freed: Callable[[], None],
        on_later: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._worker = worker
        self._in_flight = in_flight
        self._telemetry = telemetry
        self._clock = clock
        self._on_freed = on_freed
        self._on_later = on_later
        self._inbox: SimpleQueue[Report | None] = SimpleQueue()
        self._aside: dict[Claim, _Aside] = {}
        self._is_urgent = False
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-jobs-reports", daemon=True)
        self.put = self._inbox.put

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def put_now(self, report: Report) -> None:
        """Send a report without waiting for others to go with it: somebody waits for its answer."""
        self._is_urgent = True
        self._inbox.put(report)

    @property
    def is_alive(self) -> bool:
        """Return whether reports are still sent."""
        return self._thread.is_alive()

    def finish(self, seconds: float) -> bool:
        """Send what is left and end; return whether everything was answered in time."""
        self._inbox.put(None)
        self._thread.join(seconds)
        self._give_up.set()
        return not self._thread.is_alive()

    def _run(self) -> None:
        is_open = True
        while is_open:
            reports, is_open = self._gathered()
            if reports:
                self._send(reports)
            self._send_aside()
        while self._aside and not self._clock.wait(self._give_up, self._until_aside() or 0.0):
            self._send_aside()

    def _gathered(self) -> tuple[list[Report], bool]:
        """Return the next reports, waiting a moment for more while other jobs still run; False after the last.

        None when what was put aside is due first.
        """
        reports: list[Report] = []
        try:
            report = self._inbox.get(timeout=self._until_aside())
        except Empty:
            return reports, True
        deadline = self._clock.monotonic() + _GATHER_SECONDS
        characters = 0
        while report is not None:
            reports.append(report)
            characters += _weight(report)
            if len(reports) >= _MOST_PER_FLUSH or characters > _MOST_CHARACTERS_PER_FLUSH:
                return reports, True
            try:
                report = self._inbox.get_nowait()
            except Empty:
                patience = deadline - self._clock.monotonic() if len(reports) < len(self._in_flight) else 0.0
                if patience <= 0 or self._is_urgent:
                    self._is_urgent = False
                    return reports, True
                try:
                    report = self._inbox.get(timeout=patience)
                except Empty:
                    return reports, True
        return reports, False

    def _send(self, reports: Sequence[Report]) -> None:
        senders: dict[type[Report], Send] = {
            Success: self._send_successes,
            Failure: self._send_failures,
            PutBack: self._send_put_backs,
            Stopped: self._send_stopped,
        }
        kinds = set(map(type, reports))
        for kind in kinds & senders.keys():
            self._until_answered(senders[kind], [report for report in reports if type(report) is kind])
        settled = [report for report in reports if type(report) is Settled] if Settled in kinds else []
        for settler in dict.fromkeys(report.by for report in settled):
            batch: list[Report] = [report for report in settled if report.by is settler]
            self._until_answered(partial(self._send_settled, settler), batch)
        self._let_go([report for report in reports if report.claim not in self._aside])

    def _let_go(self, reports: Sequence[Report]) -> None:
        self._in_flight.remove([report.claim for report in reports])
        if set(map(type, reports)) != {Success} and any(map(_comes_again, reports)):
            self._on_later()
        self._on_freed()

    def _until_answered(self, send: Send, batch: list[Report]) -> None:
        failures = 0
        while not self._give_up.is_set():
            try:
                return send(batch)
            except (Unavailable, Ambiguous) as error:
                self._telemetry.unavailable("Reporting jobs", error)
            except Exception as error:
                self._telemetry.failing("Reporting jobs", error)
                return self._one_by_one(send, batch)
            self._clock.wait(self._give_up, _AFTER_ERRORS.delay_for_attempt(failures))
            failures += 1
        return None

    def _one_by_one(self, send: Send, batch: list[Report]) -> None:
        """Find the report that the database does not take: it must not hold up the others."""
        if len(batch) > 1:
            for report in batch:
                self._until_answered(send, [report])
        else:
            self._put_aside(_Aside(send, batch[0], 0, 0.0))

    # What was put aside

    def _put_aside(self, refused: _Aside) -> None:
        refused.due_at = self._clock.monotonic() + _AFTER_ERRORS.delay_for_attempt(refused.failures)
        self._aside[refused.report.claim] = refused

    def _until_aside(self) -> float | None:
        """Return how long until the first report that was put aside is to be sent again, None for nothing."""
        if not self._aside:
            return None
        return max(0.0, min(item.due_at for item in self._aside.values()) - self._clock.monotonic())

    def _send_aside(self) -> None:
        now = self._clock.monotonic()
        for refused in [item for item in self._aside.values() if item.due_at <= now]:
            if self._has_ended_aside(refused):
                del self._aside[refused.report.claim]
                self._let_go([refused.report])

    def _has_ended_aside(self, refused: _Aside) -> bool:
        try:
            refused.send([refused.report])
        except (Unavailable, Ambiguous) as error:
            self._telemetry.unavailable("Reporting jobs", error)
        except Exception as error:
            self._telemetry.failing("Reporting jobs", error)
            refused.failures += 1
            if refused.failures >= _TRIES_OF_A_BAD_REPORT and not _has_succeeded(refused.report):
                return True  # its lease runs out, and the watchdog reports it
            refused.report = _plainer(refused.report, refused.failures)
        else:
            return True
        self._put_aside(refused)
        return False

    def _send_successes(self, batch: list[Report]) -> None:
        successes = [report for report in batch if isinstance(report, Success)]
        accepted = self._store.complete(self._worker, successes)
        refused = [report.claim for report in successes if report.claim not in accepted]
        if refused:
            landed = self._landed(refused)
            self._telemetry.stale(claim for claim in refused if claim not in landed)
            accepted |= landed
        self._telemetry.succeeded(len(accepted))

    def _landed(self, refused: Sequence[Claim]) -> set[Claim]:
        """Return those whose success is in the history already: an earlier answer was lost on the way."""
        held = self._in_flight.get(refused)
        return {running.claim for running in held if self._store.has_landed(running.job)}

    def _send_failures(self, batch: list[Report]) -> None:
        failures = [report for report in batch if isinstance(report, Failure)]
        decided = self._store.fail(self._worker, failures)
        self._telemetry.failed(decided, {report.claim: report.error for report in failures})
        self._refused(batch, set(decided))

    def _send_put_backs(self, batch: list[Report]) -> None:
        reports = {report.claim: report for report in batch if isinstance(report, PutBack)}
        decided = self._store.put_back(self._worker, list(reports.values()))
        failed = {claim: status for claim, status in decided.items() if status is not None}
        self._telemetry.failed(failed, {claim: failure_of(reports[claim]).error for claim in failed})
        self._refused(batch, set(decided))

    def _send_stopped(self, batch: list[Report]) -> None:
        reports = [report for report in batch if isinstance(report, Stopped)]
        self._refused(batch, self._store.end_cancelled(self._worker, reports))

    def _send_settled(self, settler: Settler, batch: list[Report]) -> None:
        reports = [report for report in batch if isinstance(report, Settled)]
        self._refused(batch, settler.settle(self._worker, reports))

    def _refused(self, batch: Sequence[Report], accepted: set[Claim]) -> None:
        self._telemetry.stale(report.claim for report in batch if report.claim not in accepted)


def _has_succeeded(report: Report) -> bool:
    """Return whether a report is, or may be, that of a success: nobody else can tell of that."""
    return isinstance(report, Success | Settled)


def _plainer(report: Report, failures: int) -> Report:
    """Return a success without its result, once it was refused again and again: that may be what is refused."""
    if isinstance(report, Success) and report.output is not None and failures >= _TRIES_OF_A_BAD_REPORT:
        _log.error("The result of job %d is not kept: the database has refused it.", report.claim.id)
        return report._replace(output=None)
    return report


def _comes_again(report: Report) -> bool:
    """Return whether a job may be due soon because of this report: nobody else tells of that."""
    return isinstance(report, Failure | PutBack) or (isinstance(report, Settled) and report.comes_again)


def _weight(report: Report) -> int:
    if isinstance(report, Success):
        return len(report.output) if report.output else 0
    if isinstance(report, Settled):
        return report.characters
    return len(report.error) if isinstance(report, Failure) else 0
