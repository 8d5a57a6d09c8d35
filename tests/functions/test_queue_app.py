"""The queue app: a message is one transaction, and comes again until it succeeds.

The listener here does what the host's queue trigger does with a real queue: receive, invoke, then delete the message or
make it visible again.
"""

import json
import uuid
from collections.abc import Iterator

import pytest
from azure.storage.queue import QueueClient

from tests.components.processes import wait_until
from tests.functions import calls
from tests.functions.calls import Outcome
from tests.functions.conftest import EXAMPLES, Shop, StartHost
from tests.functions.hosts import Host, invoke

APP = EXAMPLES / "queue"


class Listener:
    """A queue, and the function that its messages fire."""

    def __init__(self, client: QueueClient, host: Host, function: str) -> None:
        self._client = client
        self._host = host
        self._function = function

    def send(self, message: object) -> None:
        self._client.send_message(message if isinstance(message, str) else json.dumps(message))

    def deliver(self) -> tuple[Outcome, int]:
        """Hand the next message over; return how that ended, and how often it has been handed over."""
        message = wait_until(self._client.receive_message, "a message to become visible")
        assert message is not None
        outcome = invoke(self._host, self._function, calls.queue(message))
        if outcome.succeeded:
            self._client.delete_message(message)
        else:
            self._client.update_message(message, visibility_timeout=0)
        return outcome, message.dequeue_count or 0

    def clear(self) -> None:
        self._client.clear_messages()

    def is_empty(self) -> bool:
        return self._client.get_queue_properties().approximate_message_count == 0


class QueueShop:
    """The app on its two queues."""

    def __init__(self, orders: Listener, cancellations: Listener) -> None:
        self.orders = orders
        self.cancellations = cancellations


@pytest.fixture
def queues(shop: Shop, start_host: StartHost) -> Iterator[QueueShop]:
    shop.create_tables(APP)
    names = {name: f"q{uuid.uuid4().hex}" for name in ("ORDERS_QUEUE", "CANCELLATIONS_QUEUE")}
    host = start_host(APP, shop.settings(APP) | names)
    storage = shop.azurite.connection_string
    with (
        QueueClient.from_connection_string(storage, names["ORDERS_QUEUE"]) as orders,
        QueueClient.from_connection_string(storage, names["CANCELLATIONS_QUEUE"]) as cancellations,
    ):
        orders.create_queue()
        cancellations.create_queue()
        yield QueueShop(Listener(orders, host, "record_order"), Listener(cancellations, host, "cancel_order"))


def lines(shop: Shop) -> list[tuple[object, ...]]:
    return shop.rows("SELECT order_id, line, item, quantity FROM order_lines ORDER BY order_id, line")


def line(number: int, item: str, quantity: int = 1) -> dict[str, object]:
    return {"line": number, "item": item, "quantity": quantity}


def test_orders_are_recorded_changed_and_cancelled(queues: QueueShop, shop: Shop) -> None:
    queues.orders.send({"order_id": 7, "lines": [line(1, "book"), line(2, "lamp")]})
    queues.orders.send({"order_id": 8, "lines": [line(1, "pen")]})
    assert [queues.orders.deliver()[0].succeeded for _ in range(2)] == [True, True]
    queues.orders.send({"order_id": 7, "lines": [line(1, "book", 5)], "dropped": [2]})
    assert queues.orders.deliver()[0].succeeded
    assert lines(shop) == [(7, 1, "book", 5), (8, 1, "pen", 1)]
    queues.cancellations.send({"order_id": 7})
    assert queues.cancellations.deliver()[0].succeeded
    assert lines(shop) == [(8, 1, "pen", 1)]
    assert queues.orders.is_empty()
    assert queues.cancellations.is_empty()


def test_a_message_that_comes_twice_changes_nothing(queues: QueueShop, shop: Shop) -> None:
    for _ in range(2):
        queues.orders.send({"order_id": 7, "lines": [line(1, "book")], "dropped": [2]})
        assert queues.orders.deliver()[0].succeeded
    assert lines(shop) == [(7, 1, "book", 1)]
    for _ in range(2):
        queues.cancellations.send({"order_id": 7})
        assert queues.cancellations.deliver()[0].succeeded
    assert lines(shop) == []


def test_a_message_is_recorded_whole_or_not_at_all_and_comes_again(queues: QueueShop, shop: Shop) -> None:
    shop.execute("INSERT INTO order_lines VALUES (7, 3, 'pen', 1)")
    shop.execute(
        "CREATE TABLE packed (order_id bigint, line integer, FOREIGN KEY (order_id, line) REFERENCES order_lines)"
    )
    shop.execute("INSERT INTO packed VALUES (7, 3)")
    queues.orders.send({"order_id": 7, "lines": [line(1, "book"), line(2, "lamp")], "dropped": [3]})
    for times in (1, 2):
        outcome, dequeue_count = queues.orders.deliver()
        assert (outcome.succeeded, dequeue_count) == (False, times)
        assert "WriteError" in (outcome.error or "")
        assert lines(shop) == [(7, 3, "pen", 1)]
    shop.execute("DELETE FROM packed")
    outcome, dequeue_count = queues.orders.deliver()
    assert (outcome.succeeded, dequeue_count) == (True, 3)
    assert lines(shop) == [(7, 1, "book", 1), (7, 2, "lamp", 1)]


def test_a_message_that_is_no_order_fails_and_writes_nothing(queues: QueueShop, shop: Shop) -> None:
    for message in ("no json", "{}", {"order_id": 7, "lines": [line(1, "book") | {"colour": "red"}]}):
        queues.orders.send(message)
        assert not queues.orders.deliver()[0].succeeded
        queues.orders.clear()
    assert lines(shop) == []
