"""A worker over many jobs: does it slow down, does it grow?"""

import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg

from bench.queues import holdfast
from bench.report import Section, Target
from bench.scale import Scale
from tests.components.postgres import PostgresServer

PARTS = 10
_LAST = "SELECT last_value FROM holdfast_history_id_seq"


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Time each tenth of the run, and look at the worker's memory after the first and the last."""
    jobs = 1_000_000 if scale.enforces_targets else 2_000
    dsn = server.dsn(server.create_database())
    holdfast.prepare(dsn)
    holdfast.enqueue(dsn, jobs)
    rates, memory = _run(dsn, jobs)
    lines = [
        f"{jobs:,} no-op jobs, one process, jobs per second in each tenth:",
        "  " + ", ".join(f"{rate:,.0f}" for rate in rates),
        f"  worker memory {memory[0]:.1f} MiB after the first tenth, {memory[-1]:.1f} MiB after the last",
    ]
    targets = [
        Target("last tenth against the first", rates[-1] / rates[0], at_least=0.9),
        Target("worker memory after the last tenth against the first", memory[-1] / memory[0], at_most=1.1),
    ]
    return Section("A million jobs", lines, {"jobs per second": rates, "memory MiB": memory}, targets)


def _run(dsn: str, jobs: int) -> tuple[list[float], list[float]]:
    command = [sys.executable, "-m", "bench.queues.process", "holdfast", dsn, "w"]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdout.readline()
    worker.stdin.write("go\n")
    worker.stdin.flush()
    rates, memory, before = [], [], time.perf_counter()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for part in range(1, PARTS + 1):
            _wait_for(connection, jobs * part // PARTS)
            now = time.perf_counter()
            rates.append(jobs / PARTS / (now - before))
            memory.append(_resident_mebibytes(worker.pid))
            before = now
    worker.communicate()
    return rates, memory


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
