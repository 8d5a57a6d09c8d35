-- The demo's shop. Readers do not wait for the writer in WAL mode, and the mode is kept in the file.
PRAGMA journal_mode = WAL;

CREATE TABLE customers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL
);

INSERT INTO customers (name) VALUES ('Ada'), ('Edsger'), ('Barbara'), ('Leslie'), ('Frances');

-- The database fills updated_at on every write, to the millisecond: that is what makes it a sound cursor.
CREATE TABLE orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    quantity INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 1,
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
);

CREATE INDEX idx_orders_updated_at ON orders (updated_at, id);

CREATE TRIGGER orders_changed AFTER UPDATE OF quantity, version ON orders
BEGIN
    UPDATE orders SET updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE id = NEW.id;
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
