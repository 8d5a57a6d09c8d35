"""Workers of engines that are killed all the time: ``python -m tests.engines.crash_fleet`` is a fleet of them.

The process makes its workers by forking, which is much quicker than starting Python. It kills them at random moments,
and they kill themselves at boundaries of the flow, until enough have died; those that come then are left alone.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import text

from holdfast import Holdfast
from holdfast.core.clock import SystemClock
from holdfast.core.retry import RetryPolicy
from holdfast.engines.azure import AzureStorage
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.runner import EngineFlow
from holdfast.engines.singletons import Singletons
from holdfast.jobs.settings import WorkerSettings
from holdfast.runtime.housekeeping import Housekeeping
from holdfast.runtime.supervisor import Part, Supervisor, WorkerPart
from tests.engines.boundaries import CountsFirst, DropsFirst

PLAIN, SINGLETON = "plain", "alone"
ATTEMPTS = 6
EFFECTS = "CREATE TABLE effects (engine TEXT NOT NULL, n INTEGER NOT NULL, is_repeated INTEGER NOT NULL)"
_SETTINGS = WorkerSettings(concurrency=2, watchdog_seconds=0.3, poll_seconds=0.1)
_LEASE_SECONDS = 2.0
_AT_ANY_MOMENT = 0.02
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Setting:
    """Where the fleet works, and how it is killed: at any moment, or with some chance at one boundary only."""

    url: str
    app_name: str
    queue: str
    connection_string: str | None = None
    workers: int = 3
    kills: int = 20
    chance: float = 0.1
    seed: int = 1
    boundary: str | None = None
    bug: str | None = None  # counts first in Azure, drops before it records in a database

    def rendered(self) -> str:
        return json.dumps(asdict(self))


def application(setting: Setting) -> Holdfast:
    account = None
    if setting.connection_string is not None:
        account = AzureStorage.from_connection_string(setting.connection_string)
    hf = Holdfast(setting.url, app_name=setting.app_name, engine_queues=account, engine_tables=account)
    options: dict[str, Any] = {
        "max_retry_attempts": 2 if setting.bug else ATTEMPTS,
        "visibility_seconds": 1.0,
        "retry_policy": RetryPolicy(base_delay_seconds=0.01, max_delay_seconds=0.01),
        "conflict_seconds": 0.0,
        "concurrency": 2,
        "poll_seconds": 0.02,
        "operation": "work",
    }
    handler = _handler(hf)
    hf.engine(PLAIN, queue=f"{setting.queue}-plain", **options)(handler)
    hf.engine(SINGLETON, queue=f"{setting.queue}-alone", singleton=True, lock_seconds=3.0, **options)(handler)
    return hf


def _handler(hf: Holdfast) -> Callable[[EngineContext, EngineMessage], dict[str, int]]:
    def handle(context: EngineContext, message: EngineMessage) -> dict[str, int]:
        number, fails = message.payload["n"], message.payload["fails"]
        is_repeated = hf.engines._records().has_succeeded(message)
        with hf.database.begin() as connection:
            values = {"engine": context.engine, "n": number, "is_repeated": int(is_repeated)}
            connection.execute(text("INSERT INTO effects VALUES (:engine, :n, :is_repeated)"), values)
        if context.registry is not None:
            context.registry.change({"last": number})
        if context.attempt <= fails:
            raise ValueError(f"not yet, at attempt {context.attempt}")
        return {"n": number}

    return handle


def _work(setting: Setting, number: int, chance: float) -> None:
    """Be a worker, in a process of its own."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    random_number = random.Random(setting.seed * 10_000 + number)
    lock = threading.Lock()

    def reached(boundary: str) -> None:
        with lock:
            is_over = random_number.random() < chance
        if is_over and setting.boundary in (None, boundary):
            os.kill(os.getpid(), signal.SIGKILL)

    hf, stop = application(setting), threading.Event()
    parts: list[Part] = [Housekeeping(hf.engines.chores(), stop, clock=SystemClock())]
    if hf.engines.are_in_database:
        handlers = hf.engines.handlers()
        for handler in handlers:
            _arm(handler.delivering.flow, reached)
            if setting.bug is not None:
                handler.delivering.drops.__class__ = DropsFirst
        parts.append(WorkerPart("worker", hf.jobs.worker(stop, _SETTINGS, others=handlers).run))
    else:
        worker = hf.engines.worker(stop)
        for work in worker._works:
            _arm(work.flow, reached)
            if setting.bug is not None:
                work.flow.__class__ = CountsFirst
                work.flow._records = work.records
        parts.append(worker)
    Supervisor(parts, stop).run()


def _arm(flow: EngineFlow, reached: Callable[[str], None]) -> None:
    """Let a flow die, with leases that end soon after."""
    flow._reached = reached
    exclusive = flow._exclusive
    assert isinstance(exclusive, Singletons)
    exclusive._lease_seconds = _LEASE_SECONDS


def main() -> None:
    logging.basicConfig(level=logging.CRITICAL)
    setting = Setting(**json.loads(sys.argv[1]))
    chance, pause, clock = random.Random(setting.seed), threading.Event(), SystemClock()
    alive: dict[int, bool] = {}
    started = kills = 0
    is_told = False
    signal.signal(signal.SIGTERM, lambda *given: pause.set())
    while not clock.wait(pause, 0.02):
        while len(alive) < setting.workers:
            started += 1
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                try:
                    _work(setting, started, setting.chance if kills < setting.kills else 0.0)
                except BaseException as error:
                    os.write(1, f"surprise: {error!r}\n".encode())
                os._exit(1)
            alive[pid] = kills < setting.kills
        if kills < setting.kills and setting.boundary is None and chance.random() < _AT_ANY_MOMENT:
            os.kill(chance.choice(list(alive)), signal.SIGKILL)
        if kills >= setting.kills and not is_told:
            is_told = True
            for victim in [pid for pid, is_mortal in alive.items() if is_mortal]:
                os.kill(victim, signal.SIGKILL)
        while (ended := _ended(alive)) is not None:
            del alive[ended]
            kills += 1
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.write(1, f"kills {kills}\n".encode())


def _ended(alive: dict[int, bool]) -> int | None:
    pid, _ = os.waitpid(-1, os.WNOHANG) if alive else (0, 0)
    return pid or None


if __name__ == "__main__":
    main()
