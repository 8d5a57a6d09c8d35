"""Ships every order that is placed or changed, exactly once, whatever happens to this process.

Run it with ``holdfast run app:hf --migrate -v``.
"""

from __future__ import annotations

import logging

from holdfast import Holdfast, PollContext, RowChange

hf = Holdfast("sqlite:///shop.db")
log = logging.getLogger("shop")


@hf.trigger("orders", cursor="updated_at", lease_seconds=10)
def ship(changes: list[RowChange], context: PollContext) -> None:
    """Write shipments in the checkpoint's own transaction: both are kept, or neither is."""
    for change in changes:
        context.transaction.exec_driver_sql(
            "INSERT INTO shipments (order_id, item, quantity) SELECT id, item, quantity FROM orders WHERE id = ?",
            (change.pk["id"],),
        )
    log.info("shipping orders %s", [change.pk["id"] for change in changes])
