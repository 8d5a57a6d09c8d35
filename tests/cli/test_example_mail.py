"""The example in `examples/mail` works as its README says."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.components.processes import REPOSITORY, start_leashed, wait_until

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPOSITORY / "examples" / "mail", tmp_path / "mail"))


def run(example: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", *arguments]
    environment = {**ENVIRONMENT, "HOLDFAST_APP": "app:hf"}
    return subprocess.run(command, cwd=example, env=environment, check=True, capture_output=True, text=True).stdout


def count(example: Path, sql: str) -> int:
    with closing(sqlite3.connect(example / "mail.db", timeout=30)) as connection:
        return int(connection.execute(sql).fetchone()[0])


def test_receipts_are_sent_retried_and_buried(example: Path) -> None:
    assert run(example, "order.py", "5") == "enqueued 10 jobs for 5 orders\n"
    command = [sys.executable, "-W", "error", "-m", "holdfast", "run", "app:hf", "--migrate", "-v"]
    process = start_leashed(command, example / "output", environment=ENVIRONMENT, directory=example)
    done = "SELECT count(*) FROM holdfast_history WHERE status = 'Succeeded' AND operation IN ('send', 'add_points')"
    try:
        wait_until(lambda: count(example, done) == 9, "every job but the one without an address")
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert count(example, "SELECT count(*) FROM points") == 5
    output = (example / "output").read_text()
    assert "Topic mail: runs remind, send" in output
    assert "receipt for order 1 to flaky@example.com, attempt 2" in output
    [letter] = json.loads(run(example, "-m", "holdfast", "dlq", "list", "--json"))["items"]
    assert letter["error_message"] == "'nobody' is no address"
    first = json.loads(run(example, "-m", "holdfast", "history", "list", "--correlation-id", "order-1", "--json"))
    assert sorted(item["status"] for item in first["items"]) == ["Failed", "Succeeded", "Succeeded"]
    assert "mail" in run(example, "-m", "holdfast", "jobs", "stats")
