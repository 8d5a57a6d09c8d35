"""The sources of an earlier commit beside this checkout's, and processes that work with either of them."""

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tests.components.postgres import PostgresServer

COMMIT = "3cf93b4"
"""The last one before the one runtime of all workloads."""
MISSING = f"commit {COMMIT} is not in this clone ('git fetch --unshallow' gets it), so nothing is compared with it"
NOW = Path(__file__).resolve().parents[1] / "src"
_TURN = Path(__file__).with_name("turn.py")
Gauge = Callable[[], float]


@contextmanager
def earlier_source() -> Iterator[Path | None]:
    """Give the ``src`` folder of the earlier commit for a while, None where this clone does not have it."""
    archive = _archive()
    if archive is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-earlier-") as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder) / "src"


def _archive() -> bytes | None:
    try:
        command = ["git", "archive", "--format=tar", COMMIT, "src"]
        done = subprocess.run(command, cwd=NOW.parent, capture_output=True, check=False)
    except OSError:  # there is no git
        return None
    return done.stdout if done.returncode == 0 else None


@dataclass(frozen=True, slots=True)
class Turn:
    """What the work of one turn took: the worker's CPU seconds, the time it lasted, and what a gauge has grown by."""

    worker_seconds: float
    seconds: float
    gauged: float


def take_turn(server: PostgresServer, source: Path, kind: str, count: int, gauge: Gauge = lambda: 0.0) -> Turn:
    """Have a process with these sources do so much work of a kind, in a database of its own."""
    database = server.create_database()
    process = subprocess.Popen(
        [sys.executable, str(_TURN), server.url(database), kind, str(count)],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    before = gauge()
    process.stdin.write("\n")
    process.stdin.flush()
    worker_seconds, seconds = map(float, process.stdout.readline().split())
    gauged = gauge() - before
    process.communicate("\n")
    server.drop_database(database)
    return Turn(worker_seconds, seconds, gauged)
