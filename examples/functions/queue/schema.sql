CREATE TABLE order_lines (
    order_id bigint NOT NULL,
    line integer NOT NULL,
    item text NOT NULL,
    quantity integer NOT NULL CHECK (quantity > 0),
    PRIMARY KEY (order_id, line)
);
