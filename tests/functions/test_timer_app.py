"""The timer app: changed rows reach another table, once, whoever fails and however many instances there are."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from azure.storage.blob import ContainerClient

from tests.components.processes import wait_until
from tests.functions import calls
from tests.functions.conftest import EXAMPLES, Shop, StartHost
from tests.functions.hosts import Host, invoke

APP = EXAMPLES / "timer"
WRITE_LOG = """
CREATE TABLE write_log (order_id bigint NOT NULL, session_id integer NOT NULL DEFAULT pg_backend_pid());
CREATE FUNCTION log_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO write_log (order_id) VALUES (NEW.order_id);
    RETURN NEW;
END
$$;
CREATE TRIGGER writes AFTER INSERT OR UPDATE ON shipments FOR EACH ROW EXECUTE FUNCTION log_write();
"""


class OrderShop:
    """The shop with the timer app's tables, and a log of every write to ``shipments``."""

    def __init__(self, shop: Shop, start: StartHost) -> None:
        self._shop = shop
        self._start = start
        shop.create_tables(APP)
        shop.execute(WRITE_LOG)
        self.execute, self.rows = shop.execute, shop.rows

    def instance(self) -> Host:
        return self._start(APP, self._shop.settings(APP))

    def place(self, *items: str, quantity: int = 1) -> None:
        """Place orders that are old enough to be read at once, past the trigger that would set their time."""
        self.execute("SET session_replication_role = replica")
        for item in items:
            self.execute(
                "INSERT INTO orders (customer, item, quantity, updated_at) "
                "VALUES ('ada', %s, %s, clock_timestamp() - interval '1 minute')",
                item,
                quantity,
            )
        self.execute("SET session_replication_role = DEFAULT")

    def shipped(self) -> list[object]:
        return [row[0] for row in self.rows("SELECT item FROM shipments ORDER BY order_id")]

    def journal(self) -> list[object]:
        return [row[0] for row in self.rows("SELECT item FROM order_journal ORDER BY item")]

    def writes_per_order(self) -> list[object]:
        return [row[0] for row in self.rows("SELECT count(*) FROM write_log GROUP BY order_id")]

    @contextmanager
    def holding(self, table: str) -> Iterator[None]:
        """Let nobody write the table while the block runs."""
        with self._shop.connection.transaction():
            self.execute(f"LOCK TABLE {table} IN SHARE MODE")
            yield

    def waiting_writers(self, table: str) -> int:
        """Return how many sessions wait to write the table."""
        return len(self.rows(f"SELECT 1 FROM pg_locks WHERE relation = '{table}'::regclass AND NOT granted"))

    def container(self) -> ContainerClient:
        return ContainerClient.from_connection_string(self._shop.azurite.connection_string, "holdfast-state")


@pytest.fixture
def orders(shop: Shop, start_host: StartHost) -> OrderShop:
    return OrderShop(shop, start_host)


def ship(host: Host) -> None:
    outcome = invoke(host, "ship_orders", calls.timer())
    assert outcome.succeeded, outcome.error


def test_changes_are_delivered_once_to_each_function(orders: OrderShop) -> None:
    host = orders.instance()
    orders.place("book", "lamp")
    ship(host)
    assert orders.shipped() == ["book", "lamp"]
    assert invoke(host, "keep_journal", calls.timer()).succeeded
    assert orders.journal() == ["book", "lamp"]
    orders.place("pen")
    ship(host)
    ship(host)
    assert orders.shipped() == ["book", "lamp", "pen"]
    assert orders.writes_per_order() == [1, 1, 1]


def test_an_update_made_just_now_is_delivered_when_the_horizon_has_passed_it(orders: OrderShop) -> None:
    host = orders.instance()
    orders.place("book")
    ship(host)
    orders.execute("UPDATE orders SET quantity = 7")

    def is_updated() -> bool:
        ship(host)
        return orders.rows("SELECT quantity FROM shipments") == [(7,)]

    wait_until(is_updated, "the update to be shipped")


def test_a_new_instance_goes_on_where_the_last_one_stopped(orders: OrderShop) -> None:
    orders.place("book")
    ship(orders.instance())
    orders.place("lamp")
    ship(orders.instance())
    assert orders.shipped() == ["book", "lamp"]
    assert orders.writes_per_order() == [1, 1]


def test_the_state_container_is_made_on_the_first_poll(orders: OrderShop) -> None:
    with orders.container() as container:
        if container.exists():
            container.delete_container()
        host = orders.instance()
        assert not container.exists()
        orders.place("book")
        ship(host)
        assert container.exists()
    assert orders.shipped() == ["book"]


def test_a_failing_handler_is_a_failed_invocation_and_its_batch_comes_again(orders: OrderShop) -> None:
    host = orders.instance()
    orders.execute("ALTER TABLE shipments ADD CONSTRAINT small CHECK (quantity < 100)")
    orders.place("book")
    orders.place("lamp", quantity=1000)
    for _ in range(2):
        outcome = invoke(host, "ship_orders", calls.timer())
        assert not outcome.succeeded
        assert outcome.error is not None
        assert "HandlerError" in outcome.error
        assert orders.shipped() == []
    orders.execute("ALTER TABLE shipments DROP CONSTRAINT small")
    ship(host)
    assert orders.shipped() == ["book", "lamp"]


def test_a_failing_async_handler_is_a_failed_invocation_and_its_batch_comes_again(orders: OrderShop) -> None:
    host = orders.instance()
    orders.place("book", "lamp")
    orders.execute("ALTER TABLE order_journal ADD CONSTRAINT no_lamps CHECK (item <> 'lamp')")
    outcome = invoke(host, "keep_journal", calls.timer())
    assert not outcome.succeeded
    assert outcome.error is not None
    assert "HandlerError" in outcome.error
    assert orders.journal() == []
    orders.execute("ALTER TABLE order_journal DROP CONSTRAINT no_lamps")
    assert invoke(host, "keep_journal", calls.timer()).succeeded
    assert orders.journal() == ["book", "lamp"]


def test_an_async_handler_that_waits_for_the_database_keeps_nobody_waiting(orders: OrderShop) -> None:
    host = orders.instance()
    orders.place("book")
    with orders.holding("order_journal"):
        running = host.start("keep_journal", calls.timer())
        wait_until(lambda: orders.waiting_writers("order_journal"), "the handler to wait for the database")
        ship(host)
        assert not running.is_done()
    assert running.outcome().succeeded
    assert orders.shipped() == orders.journal() == ["book"]


def test_while_one_instance_delivers_another_does_nothing(orders: OrderShop) -> None:
    first, second = orders.instance(), orders.instance()
    orders.place("book", "lamp")
    with orders.holding("shipments"):
        running = first.start("ship_orders", calls.timer())
        wait_until(lambda: orders.waiting_writers("shipments"), "the first instance to be inside its handler")
        ship(second)
        assert not running.is_done()
        assert orders.waiting_writers("shipments") == 1
    assert running.outcome().succeeded
    ship(second)
    assert orders.shipped() == ["book", "lamp"]
    assert orders.writes_per_order() == [1, 1]


def test_two_instances_racing_on_the_timer_never_both_deliver(orders: OrderShop) -> None:
    instances = [orders.instance(), orders.instance()]
    for number in range(15):
        orders.place(f"item {number}", f"other {number}")
        running = [instance.start("ship_orders", calls.timer()) for instance in instances]
        assert [one.outcome().error for one in running] == [None, None]
    ship(instances[0])
    assert orders.writes_per_order() == [1] * 30
