CREATE TABLE orders (
    id bigint IDENTITY PRIMARY KEY,
    item nvarchar(200) NOT NULL,
    quantity integer NOT NULL DEFAULT 1,
    updated_at datetime2(6) NOT NULL DEFAULT SYSUTCDATETIME()
);
CREATE INDEX idx_orders_updated_at ON orders (updated_at, id);
GO

CREATE TRIGGER orders_changed ON orders AFTER UPDATE AS
UPDATE orders SET updated_at = SYSUTCDATETIME() FROM orders JOIN inserted ON inserted.id = orders.id;
GO

CREATE TABLE order_log (event_id varchar(100) PRIMARY KEY, order_id bigint NOT NULL, item nvarchar(200) NOT NULL);
GO
