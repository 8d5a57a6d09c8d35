CREATE TABLE orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    item TEXT NOT NULL,
    quantity INTEGER NOT NULL DEFAULT 1,
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
);
CREATE INDEX idx_orders_updated_at ON orders (updated_at, id);

-- What 'holdfast trigger install-cursor orders' writes: the database sets updated_at on every insert and update.
CREATE TRIGGER "zz_holdfast_cursor_566ee9e2d61e_insert" AFTER INSERT ON "orders" FOR EACH ROW
WHEN NEW."updated_at" IS NOT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
BEGIN
    UPDATE "orders" SET "updated_at" = (strftime('%Y-%m-%d %H:%M:%f', 'now')) WHERE "rowid" = NEW."rowid";
END;
CREATE TRIGGER "zz_holdfast_cursor_566ee9e2d61e_update" AFTER UPDATE ON "orders" FOR EACH ROW
WHEN NEW."updated_at" IS NOT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
BEGIN
    UPDATE "orders" SET "updated_at" = (strftime('%Y-%m-%d %H:%M:%f', 'now')) WHERE "rowid" = NEW."rowid";
END;

CREATE TABLE order_log (event_id TEXT PRIMARY KEY, order_id INTEGER NOT NULL, item TEXT NOT NULL);
