"""The application under crash tests: ``python -m tests.outbox.faults.app`` is one instance of its processors.

Its handlers write what was delivered into ``effects``, a table without a unique key, so that nothing but the checkpoint
can keep an effect from being written twice; its numbers grow in the order of the writes. The environment names the
database, the processors, a bug to plant, and a point at which to say so and wait for a file.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection

from holdfast import Holdfast
from holdfast.core.clock import SystemClock
from holdfast.core.retry import RetryPolicy
from holdfast.lease.held_lease import HeldLease, Lease
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Message
from holdfast.outbox.runner import PartitionRunner
from holdfast.outbox.sequencer import Sequencer
from holdfast.outbox.store import CheckpointResult, CheckpointStore

LEASE_SECONDS = 2.0
EXACT = "exact"
REPEATED = "repeated"
BY_POSITION = "by-position"
BY_TRANSACTION = "by-transaction"
OPTIONS: dict[str, dict[str, Any]] = {
    EXACT: {},
    REPEATED: {"transactional": False},
    BY_POSITION: {"order": "position"},
    BY_TRANSACTION: {"order": "transaction"},
}

NO_ROLLBACK = "no rollback on mismatch"
LEASE_UNWATCHED = "lease unwatched"

BEFORE_CHECKPOINT = "before the checkpoint"
AFTER_CHECKPOINT = "after the checkpoint"
INSIDE_HANDLER = "inside the handler"
TAKING_OVER = "taking over"
NUMBERING = "numbering"

TABLES = {
    "postgresql": (
        "CREATE TABLE effects (number bigint GENERATED ALWAYS AS IDENTITY, processor_id text NOT NULL, "
        "message_id text NOT NULL, transaction_id bigint NOT NULL, position bigint NOT NULL, token bigint NOT NULL)",
        "CREATE INDEX effects_message ON effects (message_id)",
        "CREATE TABLE orders (message_id text NOT NULL)",
        "CREATE TABLE keys (name text PRIMARY KEY, n integer NOT NULL)",
    ),
    "mysql": (
        "CREATE TABLE effects (number bigint NOT NULL AUTO_INCREMENT, processor_id varchar(100) NOT NULL, "
        "message_id varchar(200) NOT NULL, transaction_id bigint NOT NULL, position bigint NOT NULL, "
        "token bigint NOT NULL, KEY (number), KEY (message_id)) COLLATE utf8mb4_nopad_bin",
        "CREATE TABLE orders (message_id varchar(200) NOT NULL) COLLATE utf8mb4_nopad_bin",
    ),
}
_EFFECT = text(
    "INSERT INTO effects (processor_id, message_id, transaction_id, position, token) "
    "VALUES (:processor_id, :message_id, :transaction_id, :position, :token)"
)
_RETRIES = RetryPolicy(max_retries=1000, base_delay_seconds=0.05, max_delay_seconds=0.5)
_PATIENCE_SECONDS = 120.0


def declare(hf: Holdfast, names: Sequence[str], work_seconds: float) -> None:
    """Declare processors: those whose name is in ``OPTIONS`` with these options, any other as an exact one."""
    for name in names:
        options = OPTIONS.get(name, {})
        effects = _Effects(hf, is_transactional=options.get("transactional", True), work_seconds=work_seconds)
        hf.processor(
            name, lease_seconds=LEASE_SECONDS, batch_size=5, poll_seconds=0.05, retry_policy=_RETRIES, **options
        )(effects.write)


class _Effects:
    """Writes effects through ``context.transaction``, or on a connection of its own."""

    def __init__(self, hf: Holdfast, *, is_transactional: bool, work_seconds: float) -> None:
        self._hf = hf
        self._is_transactional = is_transactional
        self._work_seconds = work_seconds

    def write(self, messages: list[Message], context: ProcessorContext) -> None:
        if self._is_transactional:
            self._write(context.transaction, messages, context)
        else:
            with self._hf.database.begin() as connection:
                self._write(connection, messages, context)
        wait_at(INSIDE_HANDLER, context.processor_id)
        context.lease_lost.wait(random.uniform(0, self._work_seconds))

    def _write(self, connection: Connection, messages: list[Message], context: ProcessorContext) -> None:
        rows = [
            {
                "processor_id": context.processor_id,
                "message_id": message.message_id,
                "transaction_id": message.transaction_id,
                "position": message.position,
                "token": context.fencing_token,
            }
            for message in messages
        ]
        connection.execute(_EFFECT, rows)


def wait_at(point: str, who: str) -> None:
    """Say that a point was reached, and go on when the test says so, if this is the point to wait at."""
    if os.environ.get("STAGED_AT") == point:
        say(f"{point}: {who}")
        flag, pause, clock = Path(os.environ["STAGE"]), threading.Event(), SystemClock()
        deadline = clock.monotonic() + _PATIENCE_SECONDS
        while not flag.exists() and clock.monotonic() < deadline:
            pause.wait(0.01)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def set_the_stage() -> None:
    """Put the points inside Holdfast where a test wants it to wait."""
    _around(PartitionRunner, "_attempt_in_transaction", BEFORE_CHECKPOINT, None)
    _around(CheckpointStore, "store", None, AFTER_CHECKPOINT)
    _around(CheckpointStore, "get", None, TAKING_OVER, least_arguments=3)  # with the connection of take_over
    _around(Sequencer, "_unnumbered", NUMBERING, None)


def _around(owner: type, name: str, before: str | None, after: str | None, *, least_arguments: int = 0) -> None:
    real: Callable[..., Any] = getattr(owner, name)

    @wraps(real)
    def staged(*arguments: Any, **options: Any) -> Any:
        is_staged = len(arguments) >= least_arguments
        if before is not None and is_staged:
            wait_at(before, name)
        answer = real(*arguments, **options)
        if after is not None and is_staged:
            wait_at(after, name)
        return answer

    setattr(owner, name, staged)


def hesitate(seconds: float) -> None:
    """Stretch the moment between reading and storing the checkpoint, which is too short to be hit by chance."""
    real = PartitionRunner._attempt

    @wraps(real)
    def hesitant(*arguments: Any) -> None:
        threading.Event().wait(random.uniform(0, seconds))
        real(*arguments)

    setattr(PartitionRunner, "_attempt", hesitant)  # noqa: B010 - mypy would refuse the assignment


def tell_mismatches(*, ignore: bool) -> None:
    """Say every mismatch; with the planted bug, go on as if there had been none."""
    real = PartitionRunner._require_stored

    def told(runner: PartitionRunner, result: CheckpointResult, lease: HeldLease) -> None:
        if result is not CheckpointResult.STORED:
            say(f"mismatch: {runner.id.processor_id}")
        if not ignore:
            real(runner, result, lease)

    setattr(PartitionRunner, "_require_stored", told)  # noqa: B010 - mypy would refuse the assignment


def leave_leases_unwatched() -> None:
    """Let nobody notice that a lease was lost, as if that happened just after the last look: only the fence is left."""
    setattr(Lease, "mark_lost", lambda lease: None)  # noqa: B010 - mypy would refuse the assignment


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(levelname)s %(message)s")
    bugs = os.environ.get("PLANTED_BUG", "").split(",")
    tell_mismatches(ignore=NO_ROLLBACK in bugs)
    if LEASE_UNWATCHED in bugs:
        leave_leases_unwatched()
    set_the_stage()
    hesitate(float(os.environ.get("HESITATE_SECONDS", "0")))
    hf = Holdfast(os.environ["WORKER_URL"], app_name="faults")
    declare(hf, os.environ["PROCESSORS"].split(","), float(os.environ.get("WORK_SECONDS", "0")))
    drained = hf.run(drain_seconds=10, on_started=lambda: say("starting"))
    say("stopped" if drained else "stopped before handlers finished")


if __name__ == "__main__":
    main()
