-- The demo's shop. Readers do not wait for the writer in WAL mode, and the mode is kept in the file.
PRAGMA journal_mode = WAL;

CREATE TABLE customers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL
);

INSERT INTO customers (name) VALUES ('Ada'), ('Edsger'), ('Barbara'), ('Leslie'), ('Frances');

CREATE TABLE orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    quantity INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 1,
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

-- Neither table has a unique key on (order_id, version): a duplicate would be kept, and counted.
CREATE TABLE deliveries (
    order_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    fencing_token INTEGER NOT NULL,
    process_id INTEGER NOT NULL
);

CREATE TABLE shipments (
    order_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    fencing_token INTEGER NOT NULL,
    process_id INTEGER NOT NULL
);
