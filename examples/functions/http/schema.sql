CREATE TABLE orders (
    id uuid PRIMARY KEY,
    customer text NOT NULL,
    item text NOT NULL,
    quantity integer NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX idx_orders_customer ON orders (customer, placed_at DESC, id);
