"""The benchmarks run to their end and print their ratios. How fast is no matter of a test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.component("postgres18")
def test_a_quick_run_completes_and_prints_its_ratios(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--json", str(figures)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in (
        "ratio Holdfast, reads after / psycopg dict rows",
        "ratio Holdfast, reads after / azure-functions-db 0.8.3",
        "slowest / fastest place",
        "writes of the state: 1.00",
        "connections of a process that is busy",
        "processing against PgQueuer with 2 processes",
        "claim with much behind a full key",
        "claim with much that others must run, in front",
        "claim with much that others must run, with keys",
        "engine messages with context.transaction against such jobs",
        "engine messages without it against jobs with it",
        "send to start against jobs",
        "last tenth against the first",
        "consume against bare psycopg",
        "slowest listing of the large table against the small",
    ):
        assert line in done.stdout
    for line in (
        "engine messages against those of 3cf93b4",
        "CPU seconds of jobs, no-op, against 3cf93b4",
        "CPU seconds of jobs, context.transaction, against 3cf93b4",
    ):
        assert line in done.stdout or "skipped: commit 3cf93b4 is not in this clone" in done.stdout
    assert len(json.loads(figures.read_text())["figures"]) == 12


@pytest.mark.component("postgres18")
def test_one_part_can_be_run_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--only", "trips"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Round trips per batch" in done.stdout
    assert "Catch-up" not in done.stdout
