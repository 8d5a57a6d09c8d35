"""The example in `examples/outbox` works as its README says."""

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
TOTALS = "SELECT orders, amount FROM daily_totals"
RECEIPTS = "SELECT order_id FROM receipts ORDER BY order_id"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPOSITORY / "examples" / "outbox", tmp_path / "outbox"))


def run(example: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", *arguments]
    environment = {**ENVIRONMENT, "HOLDFAST_APP": "app:hf"}
    return subprocess.run(command, cwd=example, env=environment, check=True, capture_output=True, text=True).stdout


def rows(example: Path, sql: str) -> list[tuple[int, ...]]:
    with closing(sqlite3.connect(example / "outbox.db", timeout=30)) as connection:
        return connection.execute(sql).fetchall()


def totals(example: Path) -> tuple[int, int]:
    """Return how many orders were added up, and to what: over all days, should it be midnight."""
    found = rows(example, TOTALS)
    return sum(row[0] for row in found), sum(row[1] for row in found)


def letters(example: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(run(example, "-m", "holdfast", "dlq", "list", "--json"))["items"]
    return found


def test_orders_are_added_up_and_receipts_written_buried_and_put_back(example: Path) -> None:
    assert run(example, "place_orders.py", "5") == "placed 5 orders\n"
    command = [sys.executable, "-W", "error", "-m", "holdfast", "run", "app:hf", "--migrate", "-v"]
    process = start_leashed(command, example / "output", environment=ENVIRONMENT, directory=example)
    try:
        wait_until(lambda: totals(example) == (5, 150), "the totals of five orders")
        wait_until(lambda: rows(example, RECEIPTS) == [(1,), (3,), (4,), (5,)], "the receipts of four orders")
        [letter] = letters(example)
        assert (letter["engine"], letter["correlation_id"]) == ("processor:receipts", "order-2")
        assert letter["error_message"] == "ValueError: 'nobody' is no address"
        assert run(example, "give_addresses.py") == "addresses given: 1\n"
        run(example, "-m", "holdfast", "dlq", "retry", "--engine", "processor:receipts", "--yes")
        wait_until(lambda: len(rows(example, RECEIPTS)) == 5, "the receipt of the mended order")
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert rows(example, RECEIPTS) == [(1,), (2,), (3,), (4,), (5,)]
    assert totals(example) == (5, 150)
    output = (example / "output").read_text()
    assert "Processor daily-totals: version 1, messages of type OrderPlaced" in output
    assert "could not handle message order-2" in output


def test_everything_is_counted_anew(example: Path) -> None:
    run(example, "place_orders.py", "5")
    arguments = ("processor", "rebuild", "daily-totals", "--truncate", "daily_totals", "--yes")
    assert run(example, "-m", "holdfast", *arguments) == "Rebuilt: 5 messages.\n"
    assert run(example, "-m", "holdfast", *arguments) == "Rebuilt: 5 messages.\n"
    assert totals(example) == (5, 150)
    assert "daily-totals v1 partition 0" in run(example, "-m", "holdfast", "processor", "list")
