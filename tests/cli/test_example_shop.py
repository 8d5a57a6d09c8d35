"""The example in `examples/shop` works as its README says."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.components.processes import REPOSITORY, start_leashed, wait_until


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPOSITORY / "examples" / "shop", tmp_path / "shop"))


def place(example: Path, count: int) -> None:
    command = [sys.executable, "-W", "error", "place_orders.py", str(count)]
    subprocess.run(command, cwd=example, check=True, capture_output=True)


def shipped(example: Path) -> list[int]:
    with closing(sqlite3.connect(example / "shop.db", timeout=30)) as connection:
        return [row[0] for row in connection.execute("SELECT order_id FROM shipments ORDER BY rowid")]


def test_orders_are_shipped_once_each(example: Path) -> None:
    place(example, 5)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    command = [sys.executable, "-W", "error", "-m", "holdfast", "run", "app:hf", "--migrate", "-v"]
    process = start_leashed(command, example / "output", environment=environment, directory=example)
    try:
        wait_until(lambda: shipped(example) == [1, 2, 3, 4, 5], "the first orders to be shipped")
        place(example, 2)
        wait_until(lambda: shipped(example) == [1, 2, 3, 4, 5, 6, 7], "the later orders to be shipped")
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    told = (example / "output").read_text()
    assert "INFO shop: shipping orders [6" in told
    assert "updates proved" in told
    assert "WARNING" not in told
