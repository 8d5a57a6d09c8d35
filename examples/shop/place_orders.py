"""Creates the shop when there is none, and places orders: ``python place_orders.py 10``."""

from __future__ import annotations

import sqlite3
import sys

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    item TEXT NOT NULL,
    quantity INTEGER NOT NULL,
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
);
CREATE INDEX IF NOT EXISTS idx_orders_updated_at ON orders (updated_at, id);
-- What 'holdfast trigger install-cursor orders' writes: the database sets updated_at on every insert and update.
CREATE TRIGGER IF NOT EXISTS "zz_holdfast_cursor_566ee9e2d61e_insert" AFTER INSERT ON "orders" FOR EACH ROW
WHEN NEW."updated_at" IS NOT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
BEGIN
    UPDATE "orders" SET "updated_at" = (strftime('%Y-%m-%d %H:%M:%f', 'now')) WHERE "rowid" = NEW."rowid";
END;
CREATE TRIGGER IF NOT EXISTS "zz_holdfast_cursor_566ee9e2d61e_update" AFTER UPDATE ON "orders" FOR EACH ROW
WHEN NEW."updated_at" IS NOT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
BEGIN
    UPDATE "orders" SET "updated_at" = (strftime('%Y-%m-%d %H:%M:%f', 'now')) WHERE "rowid" = NEW."rowid";
END;
CREATE TABLE IF NOT EXISTS shipments (order_id INTEGER NOT NULL, item TEXT NOT NULL, quantity INTEGER NOT NULL);
"""
ITEMS = ("book", "lamp", "pen")


def place(count: int) -> None:
    """Place ``count`` orders, each in its own transaction."""
    connection = sqlite3.connect("shop.db", timeout=10, isolation_level=None)
    connection.executescript(SCHEMA)
    for number in range(count):
        connection.execute("INSERT INTO orders (item, quantity) VALUES (?, 1)", (ITEMS[number % len(ITEMS)],))
    connection.close()
    sys.stdout.write(f"placed {count} orders\n")


if __name__ == "__main__":
    place(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
