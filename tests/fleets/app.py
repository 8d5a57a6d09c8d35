"""One application with all four workloads: ``python -m tests.fleets.app work``, ``… feed`` or ``… migrate``.

Every accepted number is one transaction: an order, a job, a message of the outbox and one of an engine. Their handlers
write it into ``effects``, a table without a unique key, so that nothing but Holdfast keeps an effect from being written
twice. Only what releases before this one had is used: processes of theirs run the same code.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection

from holdfast import Holdfast, RowChange

WORKS = ("trigger", "job", "processor", "engine")
TABLES = {
    "postgresql": (
        "CREATE TABLE orders (n bigint PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT clock_timestamp())",
        "CREATE INDEX orders_updated ON orders (updated_at, n)",
        "CREATE TABLE effects (work text NOT NULL, n bigint NOT NULL)",
    ),
    "mysql": (
        "CREATE TABLE orders (n bigint PRIMARY KEY, updated_at timestamp(6) NOT NULL DEFAULT now(6))",
        "CREATE INDEX orders_updated ON orders (updated_at, n)",
        "CREATE TABLE effects (id bigint AUTO_INCREMENT PRIMARY KEY, work varchar(20) NOT NULL, n bigint NOT NULL)",
    ),
    "sqlite": (
        "CREATE TABLE orders (n INTEGER PRIMARY KEY, "
        "updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')))",
        "CREATE INDEX orders_updated ON orders (updated_at, n)",
        "CREATE TABLE effects (work TEXT NOT NULL, n INTEGER NOT NULL)",
    ),
}
_ORDER = text("INSERT INTO orders (n) VALUES (:n)")
_EFFECT = text("INSERT INTO effects (work, n) VALUES (:work, :n)")


class Fleet:
    """The application: its handlers, and how a number is accepted."""

    def __init__(self) -> None:
        folder, self.lease_seconds = os.environ.get("FLEET_STATE"), float(os.environ.get("FLEET_LEASE", "10"))
        state = None if folder is None else _files(folder)
        self.hf = Holdfast(os.environ["FLEET_URL"], app_name="fleet", state=state)
        self._is_apart = state is not None
        seconds, hf = self.lease_seconds, self.hf
        back = os.environ.get("FLEET_LOOKBACK")
        watching = hf.trigger(
            "orders",
            cursor="updated_at",
            poll_seconds=0.05,
            horizon_margin_seconds=0.1,
            lease_seconds=seconds,
            lookback=None if back is None else float(back),
        )
        watching(self._deliver)
        retried = hf.job(
            "fleet", max_attempts=None, retry_base_seconds=0.05, retry_max_seconds=1, lease_seconds=seconds
        )
        self.job = retried(self._run)
        hf.processor("fleet", poll_seconds=0.05, lease_seconds=seconds)(self._process)
        self.engine = hf.engine("fleet", max_retry_attempts=50, visibility_seconds=seconds)(self._execute)

    def _deliver(self, changes: list[RowChange], context: Any) -> None:
        numbers = [int(str(each.pk["n"])) for each in changes]
        if not self._is_apart:
            self._note(context.transaction, "trigger", numbers)
            return
        with self.hf.database.begin() as connection:
            self._note(connection, "trigger", numbers)

    def _run(self, context: Any, n: int) -> None:
        self._note(context.transaction, "job", [n])

    def _process(self, messages: list[Any], context: Any) -> None:
        self._note(context.transaction, "processor", [message.data["n"] for message in messages])

    def _execute(self, context: Any, message: Any) -> None:
        self._note(context.transaction, "engine", [message.payload["n"]])

    def _note(self, connection: Connection, work: str, numbers: Sequence[int]) -> None:
        connection.execute(_EFFECT, [{"work": work, "n": n} for n in numbers])

    def accept(self, n: int) -> None:
        """Write one number down for everybody, or for nobody."""
        with self.hf.database.begin() as connection:
            self._limit(connection)
            connection.execute(_ORDER, {"n": n})
            self.job.enqueue(connection=connection, n=n)
            self.hf.outbox.append(connection, "Placed", {"n": n})
            self.engine.send({"n": n}, connection=connection)

    def _limit(self, connection: Connection) -> None:
        """Wait for a server that hangs no longer than asked: what an application says itself has no other limit."""
        if seconds := os.environ.get("FLEET_PATIENCE"):
            from holdfast.database.deadlines import set_deadline

            set_deadline(connection, float(seconds))


def _wait_at_most(seconds: float) -> None:
    """Give servers up sooner, so that a test is short; 0 plants the bug that nobody gives one up."""
    from holdfast.database import deadlines

    really = deadlines._within

    def within(steps: Any, limit: float, connection: Any) -> Any:
        return really(steps, min(limit, seconds), connection) if seconds else steps

    setattr(deadlines, "_within", within)  # noqa: B010 - mypy would refuse the assignment


def _files(folder: str) -> Any:
    from holdfast.lease.stores.file import FileDocumentStore

    return FileDocumentStore(folder)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def work(fleet: Fleet) -> None:
    """Work until told to stop."""
    drain_seconds = fleet.lease_seconds
    fleet.hf.run(concurrency=4, drain_seconds=drain_seconds, on_started=lambda: say("starting"))


def feed(fleet: Fleet) -> None:
    """Accept a number after the other, and say which were; one whose answer does not come is not tried again."""
    pause = threading.Event()
    first, step = int(os.environ["FLEET_FIRST"]), int(os.environ["FLEET_STEP"])
    for n in itertools.count(first, step):
        say(f"accepting {n}")
        try:
            fleet.accept(n)
        except Exception as error:
            say(f"refused {n}: {str(error).splitlines()[0]}")
            pause.wait(0.1)
        else:
            say(f"accepted {n}")
        pause.wait(timedelta(milliseconds=20).total_seconds())


def migrate(fleet: Fleet) -> None:
    """Migrate when the file is there that lets everybody begin at once, to the next release if that has a number."""
    gate, pause = Path(os.environ["FLEET_GATE"]), threading.Event()
    number = os.environ.get("FLEET_NEXT")
    apply = fleet.hf.migrate if number is None else _next(fleet.hf, int(number))
    say("ready")
    while not gate.exists():
        pause.wait(0.001)
    say(f"applied {apply()}")


def _next(hf: Holdfast, number: int) -> Callable[[], list[str]]:
    from holdfast.database import migrations
    from holdfast.schema import MIGRATIONS
    from tests.fleets.releases import next_release

    return lambda: migrations.migrate(hf.database, (*MIGRATIONS, *next_release(number)))


MODES: dict[str, Callable[[Fleet], None]] = {"work": work, "feed": feed, "migrate": migrate}


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.Formatter.converter = time.gmtime
    if "FLEET_DEADLINE" in os.environ and sys.argv[1] == "work":
        _wait_at_most(float(os.environ["FLEET_DEADLINE"]))
    MODES[sys.argv[1]](Fleet())


if __name__ == "__main__":
    main()
