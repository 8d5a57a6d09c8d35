CREATE TABLE orders (
    id bigint AUTO_INCREMENT PRIMARY KEY,
    item varchar(200) NOT NULL,
    quantity integer NOT NULL DEFAULT 1,
    updated_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
    INDEX idx_orders_updated_at (updated_at, id)
);

CREATE TABLE order_log (event_id varchar(100) PRIMARY KEY, order_id bigint NOT NULL, item varchar(200) NOT NULL);
