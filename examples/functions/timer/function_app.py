"""Follows a table of orders: a timer polls it, and what changed is written elsewhere.

Two functions follow the same table, each with a checkpoint of its own, so neither waits for the other. However many
instances the host starts, one of them delivers at a time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import azure.functions as func
from azure.storage.blob import ContainerClient

from holdfast import (
    AsyncDbWriter,
    BlobCheckpointStore,
    DbBindings,
    DbOut,
    EngineProvider,
    ModelChange,
    RowChange,
    SqlAlchemySource,
)

STORAGE = "AzureWebJobsStorage"  # the setting that names the host's own storage account

app = func.FunctionApp()
db = DbBindings()
engines = EngineProvider()  # one connection pool for everything below, kept between invocations

orders = SqlAlchemySource(
    url="%DB_URL%",
    table="orders",
    cursor_column="updated_at",
    pk_columns=["id"],
    horizon="auto",  # refuses a cursor that could lose a row which commits late
    engine_provider=engines,
)
checkpoints = BlobCheckpointStore(
    container_client=ContainerClient.from_connection_string(os.environ[STORAGE], "holdfast-state"),
    source_fingerprint=orders.source_descriptor.fingerprint,
    create_container=True,  # on the first poll, not here: the host imports this module before anything may be up
)


@app.timer_trigger(arg_name="timer", schedule="%POLL_SCHEDULE%")
@db.trigger(arg_name="changes", source=orders, checkpoint_store=checkpoints, max_batches_per_tick=10)
@db.output(
    "shipments",
    url="%DB_URL%",
    table="shipments",
    action="upsert",
    conflict_columns=["order_id"],
    engine_provider=engines,
)
def ship_orders(timer: func.TimerRequest, changes: list[RowChange], shipments: DbOut) -> None:
    """Keep one shipment per order. A batch that comes again after a crash writes the same rows again."""
    rows = [change.after or {} for change in changes]
    shipments.set([{"order_id": row["id"], "item": row["item"], "quantity": row["quantity"]} for row in rows])


@dataclass(frozen=True)
class Order:
    """An order, as this app wants to see it; the table may have more columns."""

    id: int
    customer: str
    item: str


@app.timer_trigger(arg_name="timer", schedule="%POLL_SCHEDULE%")
@db.trigger(arg_name="changes", source=orders, checkpoint_store=checkpoints, model=Order)
@db.inject_writer("journal", url="%DB_URL%", table="order_journal", engine_provider=engines)
async def keep_journal(timer: func.TimerRequest, changes: list[ModelChange], journal: AsyncDbWriter) -> None:
    """Note every change once: an event that is delivered again has the same ``event_id``."""
    async with journal.transaction() as transaction:
        for change in changes:
            entry = {"event_id": change.event_id, "customer": change.row.customer, "item": change.row.item}
            await transaction.upsert(data=entry, conflict_columns=["event_id"])
