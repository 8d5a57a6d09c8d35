"""The application under crash tests: ``python -m tests.jobs.faults.app`` is one worker.

Its jobs write what they did into ``effects``, a table without a unique key, so that nothing but the queue can keep an
effect from being written twice. The environment names the database, and a bug to plant.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import text

from holdfast import Holdfast
from holdfast.core.clock import SystemClock
from holdfast.core.signals import StopSignals
from holdfast.database.statements import NamedSql
from holdfast.jobs.context import JobContext
from holdfast.jobs.definition import JobDefinition
from holdfast.jobs.outcomes import Snooze
from holdfast.jobs.settings import WorkerSettings

TOPIC = "faults"
LEASE_SECONDS = 2.0
HELD_SECONDS = 60.0  # for jobs that must not lose their lease by themselves, however busy the machine is
DOOMED_ATTEMPTS = 3
POISON_ATTEMPTS = 3
NO_ATTEMPT_GUARD = "no attempt guard"
NO_FENCE = "no fence"
SETTINGS = WorkerSettings(
    concurrency=6, ahead=20, beat_seconds=0.5, watchdog_seconds=0.5, poll_seconds=0.2, drain_seconds=10
)
EFFECTS_TABLE = "CREATE TABLE effects (n INTEGER NOT NULL, attempt INTEGER NOT NULL)"
_EFFECT = text("INSERT INTO effects (n, attempt) VALUES (:n, :attempt)")
_PATIENCE_SECONDS = 120.0


def declare(hf: Holdfast) -> dict[str, JobDefinition]:
    """Declare every kind of job the crash run has; return them by name."""
    jobs = _Jobs(hf)
    retried = {"max_attempts": None, "lease_seconds": LEASE_SECONDS, "retry_base_seconds": 0.05, "retry_max_seconds": 1}
    quick = {**retried, "max_attempts": DOOMED_ATTEMPTS}
    endless: tuple[Callable[..., Any], ...] = (
        *(jobs.own, jobs.own_async, jobs.together, jobs.together_async, jobs.flaky, jobs.snoozing, jobs.slow),
        *(jobs.slow_together, jobs.waiting, jobs.dies_inside, jobs.staged),
    )
    declared = [hf.job(TOPIC, **retried)(function) for function in endless]  # type: ignore[arg-type] # each by its name
    declared += [hf.job(TOPIC, **quick)(function) for function in (jobs.doomed, jobs.poison)]  # type: ignore[arg-type] # the same
    held = {**retried, "lease_seconds": HELD_SECONDS, "name": "held"}
    declared.append(hf.job(TOPIC, **held)(jobs.staged))  # type: ignore[arg-type] # the same
    return {definition.operation: definition for definition in declared}


class _Jobs:
    """The handlers. Those named ``…together`` write in ``context.transaction``, the others on their own connection."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf

    def _write(self, n: int, attempt: int) -> None:
        with self._hf.database.begin() as connection:
            connection.execute(_EFFECT, {"n": n, "attempt": attempt})

    def own(self, context: JobContext, n: int, note: str) -> None:
        self._write(n, context.attempt)

    async def own_async(self, context: JobContext, n: int, note: str) -> None:
        await asyncio.to_thread(self._write, n, context.attempt)

    def together(self, context: JobContext, n: int, note: str) -> None:
        context.transaction.execute(_EFFECT, {"n": n, "attempt": context.attempt})

    async def together_async(self, context: JobContext, n: int, note: str) -> None:
        await context.transaction.execute(_EFFECT, {"n": n, "attempt": context.attempt})
        await asyncio.sleep(0.01)

    def flaky(self, context: JobContext, n: int, note: str) -> None:
        self._write(n, context.attempt)
        if context.failures < 2:
            raise RuntimeError(f"not yet: {note}")

    def snoozing(self, context: JobContext, n: int, note: str) -> None:
        if context.attempt < 3:
            raise Snooze(in_seconds=0.1)
        self._write(n, context.attempt)

    def slow(self, context: JobContext, n: int, note: str) -> None:
        self._write(n, context.attempt)
        context.lease_lost.wait(1.3 * LEASE_SECONDS)

    def slow_together(self, context: JobContext, n: int, note: str) -> None:
        """Write first and wait then, except on SQLite, where that would keep everyone else from writing."""
        is_sqlite = self._hf.database.dialect.name == "sqlite"
        if is_sqlite:
            context.lease_lost.wait(1.3 * LEASE_SECONDS)
        context.transaction.execute(_EFFECT, {"n": n, "attempt": context.attempt})
        if not is_sqlite:
            context.lease_lost.wait(1.3 * LEASE_SECONDS)

    def doomed(self, context: JobContext, n: int, note: str) -> None:
        with suppress(Exception):  # its own error is the one to find in the dead letters
            context.transaction.execute(_EFFECT, {"n": n, "attempt": context.attempt})
        raise ValueError(note)

    def poison(self, context: JobContext, n: int, note: str) -> None:
        with suppress(Exception):
            context.transaction.execute(_EFFECT, {"n": n, "attempt": context.attempt})
        os.kill(os.getpid(), signal.SIGKILL)

    def dies_inside(self, context: JobContext, n: int, note: str) -> None:
        """Die once inside the write transaction; ``note`` is the file that tells that it did."""
        context.transaction.execute(_EFFECT, {"n": n, "attempt": context.attempt})
        if not Path(note).exists():
            Path(note).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def waiting(self, context: JobContext, n: int, note: str) -> None:
        raise AssertionError("it is due in an hour and cancelled before")

    def staged(self, context: JobContext, n: int, note: str) -> None:
        """Go on when the test says so, by a file in the folder ``note``: before the write, or after it."""
        stage = Path(note)
        say(f"begun attempt {context.attempt}")
        _wait_for(stage / f"write-{context.attempt}")
        context.transaction.execute(_EFFECT, {"n": n, "attempt": context.attempt})
        say(f"inside attempt {context.attempt}")
        _wait_for(stage / f"leave-{context.attempt}")
        say(f"leaving attempt {context.attempt}")


def _wait_for(flag: Path) -> None:
    pause, clock = threading.Event(), SystemClock()
    deadline = clock.monotonic() + _PATIENCE_SECONDS
    while not flag.exists() and clock.monotonic() < deadline:
        pause.wait(0.01)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def plant(bug: str) -> None:
    """Compare claims by job and worker only, as if no worker ever got a job a second time; or by job only."""
    guarded = NamedSql._text

    def unguarded(named: NamedSql, dialect: str, name: str) -> str:
        sql = re.sub(r"\s+AND job\.attempt = (report|held)\.attempt", "", guarded(named, dialect, name))
        sql = sql.replace(" AND attempt = :attempt", "")
        if bug == NO_FENCE:
            sql = re.sub(r"\s+AND (job\.)?locked_by = :worker", "", sql)
        sql = sql.replace("(job.id, job.attempt) IN (:claims)", "job.id IN (:ids)")
        by_claim = "(job.id, job.attempt) IN (SELECT report.id, report.attempt"
        return sql.replace(by_claim, "(job.id, job.id) IN (SELECT report.id, report.id")

    setattr(NamedSql, "_text", unguarded)  # noqa: B010 - mypy would refuse the assignment


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(levelname)s %(message)s")
    if "PLANTED_BUG" in os.environ:
        plant(os.environ["PLANTED_BUG"])
    hf = Holdfast(os.environ["WORKER_URL"], app_name="faults")
    declare(hf)
    stop = threading.Event()
    with StopSignals(stop, SystemClock()):
        worker = hf.jobs.worker(stop, SETTINGS)
        say("starting")
        drained = worker.run()
    say("stopped" if drained else "stopped before handlers finished")


if __name__ == "__main__":
    main()
