"""A shop in a directory of its own, and the command line run there as a real process."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast import EngineProvider, Holdfast
from holdfast.lease.reset import reset_to_beginning
from holdfast.schema import MIGRATIONS
from tests.cli.forked import PATIENCE_SECONDS, run_forked

ORDERS = """
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    item TEXT NOT NULL,
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
);
CREATE INDEX idx_orders_updated_at ON orders (updated_at, id);
"""
APP = """
from holdfast import Holdfast

hf = Holdfast()

@hf.trigger("orders", cursor="updated_at", key="id")
def ship(changes):
    pass
"""
EVERY_MIGRATION = sorted(f"{step.number:04d} {step.name}" for step in MIGRATIONS)


class Shop:
    """A directory with an application module and a SQLite database."""

    def __init__(self, directory: Path, provider: EngineProvider) -> None:
        self.directory = directory
        self.file = directory / "shop.db"
        self.url = f"sqlite:///{self.file}"
        self._provider = provider
        self.write_app(APP)

    def write_app(self, source: str, name: str = "app.py") -> None:
        (self.directory / name).write_text(source)

    def sql(self, script: str) -> None:
        with closing(sqlite3.connect(self.file)) as connection:
            connection.executescript(script)

    def rows(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.file, timeout=30)) as connection:
            return connection.execute(query).fetchall()

    def place(self, *items: str) -> None:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            connection.executemany("INSERT INTO orders (item) VALUES (?)", [(item,) for item in items])

    def holdfast(self, url: str | None = None) -> Holdfast:
        """The application as `APP` declares it, in this process."""
        as_in_app = {"__name__": "app", "make": Holdfast, "url": url or self.url, "provider": self._provider}
        hf: Holdfast = eval("make(url, engine_provider=provider)", as_in_app)
        hf.trigger("orders", cursor="updated_at", key="id")(lambda changes: None)
        return hf

    def deliver(self, *items: str) -> Holdfast:
        """Create everything, place orders and deliver them all."""
        hf = self.holdfast()
        hf.migrate()
        self.sql(ORDERS)
        self.place(*items)
        runner = hf.runner("orders")
        delivered = 0
        while delivered < len(items):
            delivered += runner.tick()
        return hf

    def documents(self) -> list[Any]:
        """Everything in the state table, byte for byte; empty when there is no such table."""
        if not self.rows("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_state'"):
            return []
        return self.rows("SELECT name, etag, content FROM holdfast_state ORDER BY name")

    def state(self) -> Any:
        """The state document of `orders`."""
        found = self.rows("SELECT content FROM holdfast_state WHERE name = 'state/default/orders.json'")
        return json.loads(found[0][0])

    def cursor(self) -> Any:
        """Where `orders` stands; None at the beginning."""
        return self.state()["checkpoint"].get("cursor")

    def reset(self) -> None:
        """Move `orders` to the beginning by hand."""
        reset_to_beginning(self.holdfast().state, "orders", None)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        return {**kept, "HOLDFAST_URL": self.url, "HOLDFAST_APP": "app:hf", **(more or {})}

    def cli(self, *arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in the shop's directory, as a process without a terminal."""
        return run_forked(arguments, self.directory, self.environment(environment))

    def start_cli(self, *arguments: str, stdin: int) -> subprocess.CompletedProcess[str]:
        """Run a command as a new interpreter, with something at its standard input."""
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "holdfast", *arguments],
            cwd=self.directory,
            env=self.environment(),
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )


def assert_one_sentence(result: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """The command ended with `code` and one line on stderr that holds every part; no traceback anywhere."""
    assert result.returncode == code, result.stdout + result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, result.stderr
    assert result.stderr.splitlines()[-1] == errors[0]
    assert "Traceback" not in result.stdout + result.stderr
    for part in parts:
        assert part in errors[0]
