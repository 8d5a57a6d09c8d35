"""A worker over many jobs: does it slow down, does it grow?"""

import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.queues import holdfast
from bench.report import Section, Target
from bench.scale import Scale
from tests.components.postgres import PostgresServer

PARTS = 10
RUNS = 3  # one tenth of one run says little: on a shared machine it varies by a fifth
_LAST = "SELECT last_value FROM holdfast_history_id_seq"


@dataclass(frozen=True)
class Run:
    """How long each tenth took, and the worker's memory after it."""

    seconds: list[float]
    memory: list[float]


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Time each tenth of several runs, and look at the worker's memory after the first and the last."""
    jobs = 1_000_000 if scale.enforces_targets else 2_000
    runs = [_fresh_run(server, jobs) for _ in range(RUNS if scale.enforces_targets else 1)]
    seconds = [sum(run.seconds[part] for run in runs) for part in range(PARTS)]
    rates = [len(runs) * jobs / PARTS / each for each in seconds]
    memory = [run.memory for run in runs]
    lines = [
        f"{jobs:,} no-op jobs, one process, jobs per second in each tenth:",
        *("  " + ", ".join(f"{jobs / PARTS / each:,.0f}" for each in run.seconds) for run in runs),
        "  together: " + ", ".join(f"{rate:,.0f}" for rate in rates),
        f"  worker memory {memory[0][0]:.1f} MiB after the first tenth, {memory[0][-1]:.1f} MiB after the last",
    ]
    grown = max(each[-1] / each[0] for each in memory)
    targets = [
        Target("last tenth against the first, all runs together", rates[-1] / rates[0], at_least=0.9),
        Target("worker memory after the last tenth against the first", grown, at_most=1.1),
    ]
    return Section("A million jobs", lines, {"jobs per second": rates, "memory MiB": memory[0]}, targets)


def _fresh_run(server: PostgresServer, jobs: int) -> Run:
    database = server.create_database()
    dsn = server.dsn(database)
    holdfast.prepare(dsn)
    holdfast.enqueue(dsn, jobs)
    try:
        return _run(dsn, jobs)
    finally:
        server.drop_database(database)


def _run(dsn: str, jobs: int) -> Run:
    command = [sys.executable, "-m", "bench.queues.process", "holdfast", dsn, "w"]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdout.readline()
    worker.stdin.write("go\n")
    worker.stdin.flush()
    seconds, memory, before = [], [], time.perf_counter()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for part in range(1, PARTS + 1):
            _wait_for(connection, jobs * part // PARTS)
            now = time.perf_counter()
            seconds.append(now - before)
            memory.append(_resident_mebibytes(worker.pid))
            before = now
    worker.communicate()
    return Run(seconds, memory)


def _wait_for(connection: psycopg.Connection, done: int) -> None:
    """Wait until so many jobs are history; the sequence tells without counting rows."""
    pause = threading.Event()
    while True:
        row = connection.execute(_LAST).fetchone()
        if row is not None and row[0] >= done:
            return
        pause.wait(0.02)


def _resident_mebibytes(process: int) -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {process} has ended")
