CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    item text NOT NULL,
    quantity integer NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX idx_orders_updated_at ON orders (updated_at, id);

-- What 'holdfast trigger install-cursor orders' writes: the database sets updated_at on every insert and update.
CREATE FUNCTION "zz_holdfast_cursor_566ee9e2d61e"() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $holdfast$BEGIN NEW."updated_at" := now(); RETURN NEW; END$holdfast$;
CREATE TRIGGER "zz_holdfast_cursor_566ee9e2d61e" BEFORE INSERT OR UPDATE ON "orders"
    FOR EACH ROW EXECUTE FUNCTION "zz_holdfast_cursor_566ee9e2d61e"();

CREATE TABLE shipments (order_id bigint PRIMARY KEY, item text NOT NULL, quantity integer NOT NULL);
CREATE TABLE order_journal (event_id text PRIMARY KEY, customer text NOT NULL, item text NOT NULL);
