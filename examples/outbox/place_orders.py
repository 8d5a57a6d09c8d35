"""Creates the tables when there are none, and places orders: ``python place_orders.py 10``."""

from __future__ import annotations

import sys

from app import hf  # type: ignore[import-not-found] # app.py lies beside this file
from sqlalchemy import text

TABLES = (
    "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, address TEXT NOT NULL, amount INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS daily_totals (day TEXT PRIMARY KEY, orders INTEGER NOT NULL, amount INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS receipts (order_id INTEGER NOT NULL)",
)
PLACE = text("INSERT INTO orders (address, amount) VALUES (:address, :amount) RETURNING id")


def place(address: str, amount: int) -> None:
    """Write the order and its message in one transaction: both, or neither."""
    with hf.database.begin() as connection:
        order_id = connection.execute(PLACE, {"address": address, "amount": amount}).scalar_one()
        hf.outbox.append(
            connection,
            "OrderPlaced",
            {"order_id": order_id, "amount": amount},
            message_id=f"order-{order_id}",
            key=address,
        )


def main() -> None:
    """Place some orders; the second one has no address."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    hf.migrate()
    with hf.database.begin() as connection:
        for table in TABLES:
            connection.execute(text(table))
    for number in range(1, count + 1):
        place("nobody" if number == 2 else f"customer-{number}@example.com", amount=10 * number)
    sys.stdout.write(f"placed {count} orders\n")


if __name__ == "__main__":
    main()
