"""The demo's course: orders come in, a worker dies in the middle of a batch, another takes over, all is counted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...core.clock import SystemClock
from ..exits import CommandError, ExitCode
from .database import Customers, Progress, Shop
from .ledger import Tally, tally
from .screen import Screen
from .worker import Worker

BATCH_SIZE = 20  # as in shop.py, which only a worker can import
LEASE_SECONDS = 3.0
_OPENING_ORDERS = 120
_PAUSE_SECONDS = 0.03
_COMMITTED_BEFORE_KILL = 2 * BATCH_SIZE
_IN_FLIGHT_AT_KILL = BATCH_SIZE // 3
_SHIPPED_AFTER_TAKEOVER = 4 * BATCH_SIZE
_LOOK_SECONDS = 0.01
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found."""

    own_connection: Tally
    transaction: Tally
    tokens: list[tuple[int, int]]
    in_flight_at_kill: int
    takeover_seconds: float
    exit_code_of_last_worker: int

    @property
    def is_good(self) -> bool:
        """Return whether every promise was kept."""
        nothing_lost = self.own_connection.lost == 0 and self.transaction.lost == 0
        return nothing_lost and self.transaction.duplicated == 0 and self.exit_code_of_last_worker == 0


class Story:
    """Tells the demo in ``directory``."""

    def __init__(self, directory: Path, screen: Screen) -> None:
        self._directory = directory
        self._screen = screen
        self._clock = SystemClock()
        self._shop = Shop(directory / "shop.db")
        self._customers = Customers(self._shop, _PAUSE_SECONDS)
        self._progress = Progress(self._shop)
        self._pause = threading.Event()

    def tell(self) -> Outcome:
        """Run the demo and count.

        Raises:
            CommandError: something did not happen in time.
        """
        self._customers.place(_OPENING_ORDERS)
        self._screen.say(f"a shop with {_OPENING_ORDERS} open orders; customers keep placing and changing more")
        self._customers.start()
        try:
            in_flight, killed_at = self._kill_a_worker()
            takeover_seconds, exit_code = self._take_over(killed_at)
        finally:
            self._customers.stop()
            self._progress.close()
        accepted = self._customers.accepted
        return Outcome(
            own_connection=tally(accepted, self._shop.records("deliveries")),
            transaction=tally(accepted, self._shop.records("shipments")),
            tokens=self._shop.tokens(),
            in_flight_at_kill=in_flight,
            takeover_seconds=takeover_seconds,
            exit_code_of_last_worker=exit_code,
        )

    def _kill_a_worker(self) -> tuple[int, float]:
        """Start a worker and kill it in the middle of a batch; return how much was in flight, and when it died."""
        progress = self._progress
        with Worker(self._shop.url, self._directory / "worker-1.log") as worker:
            self._screen.say(f"worker {worker.pid} starts")
            self._wait_for(
                lambda: (
                    progress.shipped >= _COMMITTED_BEFORE_KILL
                    and progress.delivered - progress.shipped >= _IN_FLIGHT_AT_KILL
                ),
                worker,
                "the first worker to be in the middle of a batch",
            )
            worker.kill()
            killed_at = self._clock.monotonic()
        progress.look()
        in_flight = progress.delivered - progress.shipped
        self._screen.say(
            f"worker {worker.pid} killed (SIGKILL) with {in_flight} orders of a batch handled, uncommitted"
        )
        return in_flight, killed_at

    def _take_over(self, killed_at: float) -> tuple[float, int]:
        """Let another worker finish everything; return how long the takeover took, and its exit code."""
        progress = self._progress
        with Worker(self._shop.url, self._directory / "worker-2.log") as worker:
            self._screen.say(
                f"worker {worker.pid} starts; the dead one's lease of {LEASE_SECONDS:g} s must run out first"
            )
            self._wait_for(lambda: progress.last_process == worker.pid, worker, "the takeover")
            takeover_seconds = self._clock.monotonic() - killed_at
            self._screen.say(f"worker {worker.pid} took over {takeover_seconds:.1f} s after the kill")
            enough = progress.shipped + _SHIPPED_AFTER_TAKEOVER
            self._wait_for(lambda: progress.shipped >= enough, worker, "the second worker to ship")
            self._customers.stop()
            self._screen.say(f"the shop closes after {len(self._customers.accepted)} changes; the worker catches up")
            self._wait_for(lambda: progress.open == 0, worker, "the last order to be shipped")
            exit_code = worker.stop(_PATIENCE_SECONDS)
            self._screen.say(f"worker {worker.pid} was asked to stop (SIGTERM), drained and ended with {exit_code}")
        return takeover_seconds, exit_code

    def _wait_for(self, condition: Callable[[], bool], worker: Worker, what: str) -> None:
        deadline = self._clock.monotonic() + _PATIENCE_SECONDS
        self._progress.look()
        while not condition():
            if worker.has_ended or self._clock.monotonic() > deadline:
                raise _did_not_happen(worker, what)
            self._clock.wait(self._pause, _LOOK_SECONDS)
            self._progress.look()
            self._screen.show(shipped=self._progress.shipped, accepted=len(self._customers.accepted))


def _did_not_happen(worker: Worker, what: str) -> CommandError:
    why = "the worker ended" if worker.has_ended else f"{_PATIENCE_SECONDS:g} s have passed"
    last_lines = worker.log.read_text(errors="replace").strip().splitlines()[-1:]
    return CommandError(
        f"The demo waited in vain for {what}: {why}. The worker's last words: {''.join(last_lines) or 'none'}",
        ExitCode.FAILED,
    )
