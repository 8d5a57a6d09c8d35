"""CPU seconds of worker and server for the same jobs, with this checkout and with another one, in turns.

Not a part of ``make bench``, because it needs the other checkout: ``git worktree add /tmp/before <commit>``, then
``python -m bench.against /tmp/before/src``.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from bench.server import durable_postgres
from tests.components.postgres import PostgresServer

_HERE = Path(__file__).resolve().parents[1]
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.against", description=__doc__)
    parser.add_argument("before", type=Path, help="the src folder of the other checkout")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--noop", type=int, default=100_000, help="how many jobs that do nothing")
    parser.add_argument("--transaction", type=int, default=20_000, help="how many jobs that use context.transaction")
    options = parser.parse_args()
    with durable_postgres() as server:
        for kind, jobs in (("noop", options.noop), ("transaction", options.transaction)):
            found: dict[str, list[tuple[float, float]]] = {"before": [], "after": []}
            for _ in range(options.turns):
                for name, source in (("before", options.before), ("after", _HERE / "src")):
                    worker, spent = _cpu_seconds(server, source, kind, jobs)
                    found[name].append((worker * 100_000 / jobs, spent * 100_000 / jobs))
            print(f"{kind}, CPU seconds for 100,000 jobs, medians of {options.turns} turns", flush=True)
            for part, of in (("worker", _worker), ("server", _server), ("both", sum)):
                before, after = (statistics.median(map(of, found[name])) for name in ("before", "after"))
                print(f"  {part:<8}{before:>8.2f} before{after:>8.2f} after{after / before:>8.3f} x", flush=True)


def _worker(seconds: tuple[float, float]) -> float:
    return seconds[0]


def _server(seconds: tuple[float, float]) -> float:
    return seconds[1]


def _cpu_seconds(server: PostgresServer, source: Path, kind: str, jobs: int) -> tuple[float, float]:
    """Return what worker and server each took for the jobs of one turn, in a database of its own."""
    database = server.create_database()
    process = subprocess.Popen(
        [sys.executable, str(_HERE / "bench" / "turn.py"), server.url(database), kind, str(jobs)],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    before = _server_seconds(server)
    process.stdin.write("\n")
    process.stdin.flush()
    worker = float(process.stdout.readline())
    spent = _server_seconds(server) - before
    process.communicate("\n")
    server.drop_database(database)
    return worker, spent


def _server_seconds(server: PostgresServer) -> float:
    """Return the CPU time of the server's processes, those that have ended included."""
    root = server.pid
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) == root:
            total += sum(map(int, fields[11:15]))
        elif int(fields[1]) == root:
            total += sum(map(int, fields[11:13]))
    return total / _TICKS


if __name__ == "__main__":
    main()
