"""Orders from a queue: every message is one transaction, and a message that comes twice changes nothing.

A storage queue delivers at least once. When a function raises, nothing of its transaction is kept and the message comes
again; after ``maxDequeueCount`` failures (host.json) the host moves it to ``<queue>-poison``.
"""

from __future__ import annotations

import json

import azure.functions as func

from holdfast import AsyncDbReader, AsyncDbWriter, DbBindings, DbWriter, EngineProvider

app = func.FunctionApp()
db = DbBindings()
engines = EngineProvider()  # one connection pool for everything below, kept between invocations


@app.queue_trigger(arg_name="msg", queue_name="%ORDERS_QUEUE%", connection="AzureWebJobsStorage")
@db.inject_writer("lines", url="%DB_URL%", table="order_lines", engine_provider=engines)
def record_order(msg: func.QueueMessage, lines: DbWriter) -> None:
    """Record an order's lines and remove those that were dropped, all or nothing.

    A message is ``{"order_id": 7, "lines": [{"line": 1, "item": "book", "quantity": 2}], "dropped": [3]}``.
    """
    order = json.loads(msg.get_body())
    rows = [{"order_id": order["order_id"], **line} for line in order["lines"]]
    dropped = [{"order_id": order["order_id"], "line": number} for number in order.get("dropped", [])]
    with lines.transaction() as tx:
        tx.upsert_many(rows=rows, conflict_columns=["order_id", "line"])
        tx.delete_many(pks=dropped)


@app.queue_trigger(arg_name="msg", queue_name="%CANCELLATIONS_QUEUE%", connection="AzureWebJobsStorage")
@db.inject_reader("reader", url="%DB_URL%", engine_provider=engines)
@db.inject_writer("lines", url="%DB_URL%", table="order_lines", engine_provider=engines)
async def cancel_order(msg: func.QueueMessage, reader: AsyncDbReader, lines: AsyncDbWriter) -> None:
    """Remove all lines of an order; a message is ``{"order_id": 7}``."""
    order = json.loads(msg.get_body())
    query = "SELECT order_id, line FROM order_lines WHERE order_id = :order_id"
    found = await reader.query(query, params={"order_id": order["order_id"]})
    async with lines.transaction() as transaction:
        await transaction.delete_many(pks=found)
