"""Jobs: how fast no-op jobs are enqueued, processed and woken for, against other queues and the bare loop."""

import importlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.report import Section, Target
from bench.scale import Scale
from bench.wake_ups import latencies
from tests.components.postgres import PostgresServer

RAW, HOLDFAST, PGQUEUER, PROCRASTINATE = "raw", "holdfast", "pgqueuer", "procrastinate"
SHOWN = {RAW: "the raw loop", HOLDFAST: "Holdfast", PGQUEUER: "PgQueuer", PROCRASTINATE: "Procrastinate"}
SLOW_SHARE = 20  # Procrastinate gets a twentieth of the jobs, in one round
PROCESSES = (1, 2)
Rates = dict[str, list[float]]


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Race the queues."""
    jobs, rounds, wakes = (40_000, 3, 200) if scale.enforces_targets else (500, 1, 10)
    figures: dict[str, Any] = {}
    lines: list[str] = []
    targets: list[Target] = []
    for processes in PROCESSES:
        title = f"no-op jobs processed per second, {processes} process{'es' if processes > 1 else ''}"
        rates = _processing(server, jobs, rounds, processes)
        figures[title] = rates
        lines += _table(f"{title} ({jobs:,} jobs, history on)", rates)
        targets += _processing_targets(rates, processes)
    rates = _enqueueing(server, jobs, rounds)
    figures["jobs enqueued in bulk per second"] = rates
    lines += _table(f"jobs enqueued in bulk per second ({jobs:,} at once)", rates)
    targets.append(Target("bulk enqueue against raw COPY", _ratio(rates, RAW), at_least=0.5))
    waits = latencies(server, wakes)
    figures["milliseconds from enqueue to start"] = waits
    lines += [f"milliseconds from enqueue to start, {wakes} jobs one by one"]
    lines += [f"  {name:<28}{found['p50']:>8.2f} p50 {found['p99']:>8.2f} p99" for name, found in waits.items()]
    ours, bare = (found["p50"] for found in waits.values())
    targets.append(Target("enqueue to start against a bare NOTIFY and claim", ours / bare, at_most=2.0))
    return Section("Jobs", lines, figures, targets)


def _processing_targets(rates: Rates, processes: int) -> list[Target]:
    where = f"with {processes} process{'es' if processes > 1 else ''}"
    return [
        Target(f"processing against PgQueuer {where}", _ratio(rates, PGQUEUER), at_least=1.3),
        Target(f"processing against the raw loop {where}", _ratio(rates, RAW), at_least=0.5),
    ]


def _ratio(rates: Rates, other: str) -> float:
    """Return how many times as fast as the other Holdfast is: best round against best round."""
    return max(rates[HOLDFAST]) / max(rates[other])


def _table(title: str, rates: Rates) -> list[str]:
    rows = [f"  {SHOWN[queue]:<28}{max(found):>10,.0f}   rounds {_listed(found)}" for queue, found in rates.items()]
    return [title, *rows]


def _listed(found: Sequence[float]) -> str:
    return ", ".join(f"{rate:,.0f}" for rate in found)


def _processing(server: PostgresServer, jobs: int, rounds: int, processes: int) -> Rates:
    queues = [RAW, HOLDFAST, PGQUEUER]
    rates: Rates = {queue: [] for queue in queues}
    for number in range(rounds):
        for queue in queues if number % 2 == 0 else reversed(queues):
            rates[queue].append(_processed_per_second(server, queue, jobs, processes))
    rates[PROCRASTINATE] = [_processed_per_second(server, PROCRASTINATE, jobs // SLOW_SHARE, processes)]
    return rates


def _processed_per_second(server: PostgresServer, queue: str, jobs: int, processes: int) -> float:
    """Time the work alone: the clock starts once every process has said that it is ready."""
    with _database(server, queue) as dsn:
        importlib.import_module(f"bench.queues.{queue}").enqueue(dsn, jobs)
        workers = [_worker(queue, dsn, f"w{number}") for number in range(processes)]
        for worker in workers:
            _expect(worker, "ready")
        started = time.perf_counter()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for worker in workers:
            _expect(worker, "done")
        seconds = time.perf_counter() - started
        for worker in workers:
            worker.communicate()
    return jobs / seconds


def _enqueueing(server: PostgresServer, jobs: int, rounds: int) -> Rates:
    queues = [RAW, HOLDFAST, PGQUEUER]
    rates: Rates = {queue: [] for queue in queues}
    for number in range(rounds):
        for queue in queues if number % 2 == 0 else reversed(queues):
            with _database(server, queue) as dsn:
                started = time.perf_counter()
                importlib.import_module(f"bench.queues.{queue}").enqueue(dsn, jobs)
                rates[queue].append(jobs / (time.perf_counter() - started))
    return rates


@contextmanager
def _database(server: PostgresServer, queue: str) -> Iterator[str]:
    name = server.create_database()
    dsn = server.dsn(name)
    importlib.import_module(f"bench.queues.{queue}").prepare(dsn)
    yield dsn
    server.drop_database(name)


def _worker(queue: str, dsn: str, name: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench.queues.process", queue, dsn, name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _expect(worker: "subprocess.Popen[str]", word: str) -> None:
    assert worker.stdout is not None
    said = worker.stdout.readline().strip()
    assert said == word, f"a worker said {said!r} instead of {word!r}"
