"""The application that the demo's worker processes run, with ``holdfast run holdfast.cli.demo.shop:hf``.

``HOLDFAST_URL`` names the demo's database.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from sqlalchemy import text

from ... import Holdfast, PollContext, RowChange

BATCH_SIZE = 20
LEASE_SECONDS = 3.0
_WORK_SECONDS = 0.012

# Expected rows: one per execution.
_RECORD = (
    "INSERT INTO {table} (order_id, version, fencing_token, process_id) VALUES (:order, :version, :token, :process)"
)
_DELIVERED = text(_RECORD.format(table="deliveries"))
_SHIPPED = text(_RECORD.format(table="shipments"))

hf = Holdfast()


@hf.trigger(
    "orders", cursor="updated_at", key="id", batch_size=BATCH_SIZE, lease_seconds=LEASE_SECONDS, poll_seconds=0.1
)
def ship(changes: list[RowChange], context: PollContext) -> None:
    """Record every order twice: through a connection of its own, and in the checkpoint's transaction.

    If the process dies in here, the first kind of record is there already and comes again (at least once); the second
    kind was never committed (exactly once).
    """
    records = [_record(change.after or {}, context) for change in changes]
    for record in records:
        with hf.database.begin() as connection:
            connection.execute(_DELIVERED, record)
        context.lease_lost.wait(_WORK_SECONDS)
    context.transaction.execute(_SHIPPED, records)


def _record(order: dict[str, object], context: PollContext) -> dict[str, Any]:
    return {
        "order": order["id"],
        "version": order["version"],
        "token": context.fencing_token,
        "process": os.getpid(),
    }


def _end_with_the_demo() -> None:
    """Drain when the demo is gone: it holds the other end of our standard input, which ends with it."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if os.environ.get("HOLDFAST_DEMO_LEASH"):
    threading.Thread(target=_end_with_the_demo, name="demo-leash", daemon=True).start()
