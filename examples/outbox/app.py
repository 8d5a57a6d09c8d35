"""Consumes the messages of placed orders: daily totals, exactly once, and receipts, with dead letters.

Run it with ``holdfast run app:hf --migrate -v``.
"""

from __future__ import annotations

import logging

from sqlalchemy import text

from holdfast import Holdfast, Message, ProcessorContext, RetryPolicy

hf = Holdfast("sqlite:///outbox.db")
log = logging.getLogger("outbox")

ADD = text(
    "INSERT INTO daily_totals (day, orders, amount) VALUES (:day, 1, :amount) "
    "ON CONFLICT (day) DO UPDATE SET orders = orders + 1, amount = amount + :amount"
)


@hf.processor("daily-totals", types=["OrderPlaced"], lease_seconds=10)
def add_up(messages: list[Message], context: ProcessorContext) -> None:
    """Add in the checkpoint's own transaction: an order that comes again after a crash is not counted twice."""
    for message in messages:
        day = message.appended_at.date().isoformat()
        context.transaction.execute(ADD, {"day": day, "amount": message.data["amount"]})
    log.info("added %d orders to the totals, up to %s", len(messages), context.checkpoint)


@hf.processor(
    "receipts",
    types=["OrderPlaced"],
    lease_seconds=10,
    retry_policy=RetryPolicy(max_retries=1, base_delay_seconds=0.1),
    on_error="dead_letter",
)
def write_receipts(messages: list[Message], context: ProcessorContext) -> None:
    """Write a receipt for each order. One without an address becomes a dead letter, and the others go on."""
    for message in messages:
        order = {"id": message.data["order_id"]}
        address = context.transaction.execute(text("SELECT address FROM orders WHERE id = :id"), order).scalar_one()
        if "@" not in address:
            raise ValueError(f"{address!r} is no address")
        context.transaction.execute(text("INSERT INTO receipts (order_id) VALUES (:id)"), order)
    log.info("receipts for orders %s", [message.data["order_id"] for message in messages])
