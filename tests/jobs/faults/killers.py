"""Jobs that harm their worker, for tests with real processes: ``python -m tests.jobs.faults.killers`` is one worker.

The environment names the database, the most attempts of its jobs, the limits of their topic, and a bug to plant.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from typing import Any

from holdfast import Holdfast
from holdfast.core.clock import SystemClock
from holdfast.core.signals import StopSignals
from holdfast.database.statements import NamedSql
from holdfast.jobs.definition import JobDefinition
from holdfast.jobs.settings import WorkerSettings

TOPIC = "killers"
LEASE_SECONDS = 1.0
SLOW_SECONDS = 0.2
CHARGE_EVERYBODY = "charge everybody"
SETTINGS = WorkerSettings(
    concurrency=int(os.environ.get("CONCURRENCY", "4")),
    beat_seconds=0.3,
    watchdog_seconds=0.3,
    poll_seconds=float(os.environ.get("POLL", "0.2")),
    drain_seconds=2,
    ahead=200,
)
_for_ever = threading.Event()


def declare(hf: Holdfast, max_attempts: int | None, **limits: Any) -> dict[str, JobDefinition]:
    """Declare the jobs; return them by name."""
    settings = {"max_attempts": max_attempts, "retry_base_seconds": 0.01, "retry_max_seconds": 0.02}
    job = hf.job(TOPIC, lease_seconds=LEASE_SECONDS, **settings, **limits)  # type: ignore[arg-type] # each by its name
    declared = [job(quick), job(slow), job(kill)]
    other = hf.job("others", lease_seconds=LEASE_SECONDS, **settings)  # type: ignore[arg-type] # the same
    declared += [other(wait), other(turn), other(block), other(leave_from_task), other(starve), other(starve_async)]
    return {definition.operation: definition for definition in declared}


def quick(n: int) -> None:
    """Do nothing."""


def slow(n: int) -> None:
    """Take a moment."""
    _for_ever.wait(SLOW_SECONDS)


def kill() -> None:
    """Take the worker along."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait() -> None:
    """Run for as long as anyone waits."""
    say("waiting")
    _for_ever.wait(3600)


async def turn(n: int) -> None:
    """Give the loop back at once."""
    await asyncio.sleep(0)


async def block() -> None:
    """Keep the loop from turning."""
    say("blocking")
    _for_ever.wait(3600)


def starve() -> None:
    """Have the machine refuse every thread from now on: none has room for such a stack. This one goes on."""
    threading.stack_size(1 << 46)
    say("starved")


async def starve_async() -> None:
    """Do so on the event loop, before there is any thread for handlers."""
    starve()


async def leave_from_task() -> None:
    """End the process from a child task."""

    async def leave() -> None:
        sys.exit(3)

    await asyncio.gather(asyncio.create_task(leave()))


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def plant_charging() -> None:
    """Charge every job that a lost worker held, as if each had been what it died of."""
    as_written = NamedSql._text

    def charging(named: NamedSql, dialect: str, name: str) -> str:
        return "(job.id = job.id)" if name == "is_charged" else as_written(named, dialect, name)

    setattr(NamedSql, "_text", charging)  # noqa: B010 - mypy would refuse the assignment


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(levelname)s %(message)s")
    if os.environ.get("PLANTED_BUG") == CHARGE_EVERYBODY:
        plant_charging()
    hf = Holdfast(os.environ["WORKER_URL"], app_name="killers")
    declare(hf, int(os.environ.get("MAX_ATTEMPTS", "0")) or None, **json.loads(os.environ.get("LIMITS", "{}")))
    stop = threading.Event()
    with StopSignals(stop, SystemClock()):
        worker = hf.jobs.worker(stop, SETTINGS)
        say("starting")
        drained = worker.run()
    say("stopped" if drained else "stopped badly")
    sys.exit(0 if drained else 1)


if __name__ == "__main__":
    main()
