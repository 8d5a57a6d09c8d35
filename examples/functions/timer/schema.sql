CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    item text NOT NULL,
    quantity integer NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX idx_orders_updated_at ON orders (updated_at, id);

CREATE FUNCTION order_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := now();
    RETURN NEW;
END
$$;
CREATE TRIGGER orders_changed BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION order_changed();

CREATE TABLE shipments (order_id bigint PRIMARY KEY, item text NOT NULL, quantity integer NOT NULL);
CREATE TABLE order_journal (event_id text PRIMARY KEY, customer text NOT NULL, item text NOT NULL);
