"""A worker process for crash tests: ``python -m tests.faults.worker``, told by the environment what to run.

Each trigger named ``tx-…`` records its effects through ``context.transaction``; every other one writes them on a
connection of its own, before the checkpoint is committed.
"""

from __future__ import annotations

import os

from sqlalchemy import text
from sqlalchemy.engine import Connection

from holdfast import Holdfast, PollContext, RowChange
from holdfast.lease.documents import ETag, Written
from holdfast.lease.stores.sql import SqlDocumentStore
from holdfast.runtime.keeper import Kept

EFFECT = text("INSERT INTO effects (trigger_name, order_id, token) VALUES (:trigger_name, :order_id, :token)")


def declare(hf: Holdfast, name: str, *, lease_seconds: float, batch_size: int) -> None:
    """Declare one trigger over the orders."""

    @hf.trigger(
        "orders",
        name=name,
        cursor="updated_at",
        lease_seconds=lease_seconds,
        batch_size=batch_size,
        poll_seconds=0.05,
        horizon_margin_seconds=0.2,
    )
    def ship(changes: list[RowChange], context: PollContext) -> None:
        rows = [
            {"trigger_name": name, "order_id": change.pk["id"], "token": context.fencing_token} for change in changes
        ]
        if name.startswith("tx-"):
            context.transaction.execute(EFFECT, rows)
        else:
            with hf.database.begin() as connection:
                connection.execute(EFFECT, rows)
        say(f"handled {name} {len(rows)} token {context.fencing_token}")
        pause_if_asked(name, context)


def pause_if_asked(name: str, context: PollContext) -> None:
    """Stay inside the handler for as long as the test asks, unless the lease is lost."""
    context.lease_lost.wait(float(os.environ.get("WORK_SECONDS", "0")))
    seconds = float(os.environ.get("PAUSE_SECONDS", "0"))
    if seconds:
        say(f"inside {name}")
        context.lease_lost.wait(seconds)
        say(f"leaving {name}")


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def remove_the_fence() -> None:
    """Planted bug: the document is overwritten whoever holds it, and nobody looks whose lease it is."""

    def unguarded(self: SqlDocumentStore, connection: Connection, name: str, content: bytes, if_match: ETag) -> Written:
        connection.execute(
            text("UPDATE holdfast_state SET content = :content WHERE name = :name"), {"content": content, "name": name}
        )
        return Written(if_match, None)

    setattr(SqlDocumentStore, "_replace_with", unguarded)  # noqa: B010 - mypy would refuse the assignment
    setattr(Kept, "lose_if_over", lambda self: None)  # noqa: B010 - nor does it notice that its time is over


def main() -> None:
    if os.environ.get("PLANTED_BUG") == "no fence":
        remove_the_fence()
    hf = Holdfast(os.environ["WORKER_URL"], app_name="faults")
    for name in os.environ["WORKER_TRIGGERS"].split(","):
        declare(
            hf,
            name,
            lease_seconds=float(os.environ.get("LEASE_SECONDS", "2")),
            batch_size=int(os.environ.get("BATCH_SIZE", "20")),
        )
    say("starting")
    drained = hf.run(on_started=lambda: say("running"))
    say("stopped" if drained else "stopped before handlers finished")


if __name__ == "__main__":
    main()
