CREATE TABLE orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    item TEXT NOT NULL,
    quantity INTEGER NOT NULL DEFAULT 1,
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
);
CREATE INDEX idx_orders_updated_at ON orders (updated_at, id);

CREATE TRIGGER orders_changed AFTER UPDATE OF item, quantity ON orders
BEGIN
    UPDATE orders SET updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE id = NEW.id;
END;

CREATE TABLE order_log (event_id TEXT PRIMARY KEY, order_id INTEGER NOT NULL, item TEXT NOT NULL);
