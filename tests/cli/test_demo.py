"""`holdfast demo` keeps its promises, cleans up after itself, and would notice if a promise were broken."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.demo.ledger import Tally, tally
from tests.components.processes import PythonWorker, wait_until

DEMO_SECONDS = 120


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def figures(output: str, way: str) -> list[int]:
    line = next(line for line in output.splitlines() if way in line and "once)" in line)
    return [int(cell) for cell in line.rpartition("once)")[2].split()]


def test_demo_loses_nothing_and_cleans_up(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "holdfast", "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    accepted, delivered, overtaken, _, lost = figures(result.stdout, "connection of its own")
    assert (accepted, lost) == (delivered + overtaken, 0)
    accepted, delivered, overtaken, duplicated, lost = figures(result.stdout, "context.transaction")
    assert (accepted, duplicated, lost) == (delivered + overtaken, 0, 0)
    killed, successor = (int(process) for process in re.findall(r"worker (\d+) starts", result.stdout))
    assert f"Fencing tokens seen: 1 (worker {killed}), 2 (worker {successor})" in result.stdout
    assert "What to try next" in result.stdout
    assert list(tmp_path.iterdir()) == []
    assert not is_running(killed)
    assert not is_running(successor)


def test_worker_does_not_outlive_a_demo_that_was_killed(tmp_path: Path) -> None:
    with PythonWorker("-m", "holdfast", "demo", environment={"TMPDIR": str(tmp_path)}) as demo:
        line = demo.wait_for_line("starts")
        child = int(line.partition("worker ")[2].split()[0])
        assert is_running(child)
        demo.kill()
        wait_until(lambda: not is_running(child), "the demo's worker to end by itself")


@pytest.mark.parametrize(
    ("recorded", "found"),
    [
        ([(1, 1), (2, 1), (1, 2)], Tally(accepted=3, delivered=3, overtaken=0, duplicated=0, lost=0)),
        ([(1, 2), (2, 1)], Tally(accepted=3, delivered=2, overtaken=1, duplicated=0, lost=0)),
        ([(1, 1), (2, 1), (2, 1), (1, 2)], Tally(accepted=3, delivered=3, overtaken=0, duplicated=1, lost=0)),
        ([(1, 1), (2, 1)], Tally(accepted=3, delivered=2, overtaken=0, duplicated=0, lost=1)),
        ([], Tally(accepted=3, delivered=0, overtaken=0, duplicated=0, lost=3)),
    ],
    ids=["all", "overtaken", "twice", "newest lost", "nothing"],
)
def test_ledger_tells_lost_duplicated_and_overtaken_apart(recorded: list[tuple[int, int]], found: Tally) -> None:
    assert tally([(1, 1), (2, 1), (1, 2)], recorded) == found
