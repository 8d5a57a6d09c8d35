"""Issue 13, line 13: what the receivers of a relay answer, and the errors of their clients, hold canaries as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from anyio.from_thread import BlockingPortal
from azure.core.exceptions import HttpResponseError
from azure.eventhub.exceptions import EventDataSendError
from azure.servicebus.exceptions import ServiceBusServerBusyError
from azure.storage.queue import QueueClient
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as KafkaProducer

from holdfast import EngineProvider, Holdfast, RetryPolicy
from holdfast.outbox.sinks import EventHubsSink, KafkaSink, ServiceBusSink, Sink, StorageQueueSink, WebhookSink
from tests.api.clients import Office
from tests.cli.desk import Desk
from tests.outbox.sinks.receiver import Answer, receiving
from tests.runtime.workloads import failure_of
from tests.safety.told import (
    Canaries,
    Counted,
    RaisedError,
    Told,
    logged,
    telling,
    told_by_api,
    told_by_cells,
    told_by_commands,
)

CANARIES = Canaries("hunter2hunter2hunter2222", "Anneliese")
SAID = telling(CANARIES.secret, CANARIES.name)
SOURCE = "/shop"


class Refusing:
    """A client of a broker whose every call fails, in the client's own words or others."""

    entity_name = eventhub_name = "orders"
    fully_qualified_namespace = "shop.servicebus.windows.net"
    url = "https://shop.queue.core.windows.net/orders"
    queue_name, account_name = "orders", "shop"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _refuse(self, *_given: object, **_named: object) -> Any:
        raise self._error

    create_message_batch = create_batch = send_messages = send_batch = send_message = produce = flush = _refuse

    def purge(self, **_named: object) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def webhook(error: Exception) -> Iterator[Sink]:
    with receiving() as receiver:
        receiver.answer = lambda request: Answer(
            500, headers={"x-why": CANARIES.secret, "retry-after": CANARIES.name}, body=SAID.encode()
        )
        sink = WebhookSink(f"{receiver.url}?key={CANARIES.secret}", source=SOURCE)
        yield sink
        sink.close()


@contextmanager
def service_bus(error: Exception) -> Iterator[Sink]:
    yield ServiceBusSink(cast(Any, Refusing(error)), source=SOURCE)


@contextmanager
def event_hubs(error: Exception) -> Iterator[Sink]:
    yield EventHubsSink(cast(Any, Refusing(error)), source=SOURCE)


@contextmanager
def storage_queue(error: Exception) -> Iterator[Sink]:
    yield StorageQueueSink(cast(QueueClient, Refusing(error)), source=SOURCE)


@contextmanager
def kafka(error: Exception) -> Iterator[Sink]:
    yield KafkaSink("orders", {}, source=SOURCE, new_producer=lambda given: cast(KafkaProducer, Refusing(error)))


SINKS = [
    pytest.param(webhook, None, id="webhook"),
    pytest.param(service_bus, ServiceBusServerBusyError(message=SAID), id="service bus"),
    pytest.param(event_hubs, EventDataSendError(SAID), id="event hubs"),
    pytest.param(storage_queue, HttpResponseError(message=SAID), id="storage queue"),
    pytest.param(kafka, KafkaException(KafkaError(KafkaError._FAIL, SAID)), id="kafka"),
    pytest.param(kafka, RaisedError(SAID), id="an error of no client"),
]


@pytest.mark.parametrize("on_error", ["stop", "dead_letter"])
@pytest.mark.parametrize(("sink", "error"), SINKS)
def test_13_13_what_a_receiver_says_is_told_to_nobody_who_may_not_see_it(
    sink: Callable[..., Any],
    error: Exception,
    on_error: str,
    sqlite_url: str,
    provider: EngineProvider,
    desk: Desk,
    portal: BlockingPortal,
) -> None:
    with sink(error) as opened:
        told = told_of_relay(opened, on_error, sqlite_url, provider, desk, portal)
    assert "was not delivered" in str(told["log"]) or "orders" in str(told["log"])
    assert CANARIES.leaks(told) == set()


@pytest.mark.usefixtures("nothing_hidden")
@pytest.mark.parametrize(("sink", "error"), SINKS[1:])  # of a webhook's answer nothing but the status is kept
def test_13_13_planted_without_redaction_canaries_of_receivers_are_found(
    sink: Callable[..., Any],
    error: Exception,
    sqlite_url: str,
    provider: EngineProvider,
    desk: Desk,
    portal: BlockingPortal,
) -> None:
    with sink(error) as opened:
        told = told_of_relay(opened, "dead_letter", sqlite_url, provider, desk, portal)
    assert CANARIES.leaks(told) >= {
        "cell holdfast_history.error",
        "cell holdfast_dead_letters.error_message",
        "payload: /api/dlq/one",
        "payload: /api/history/one",
        "holdfast dlq show",
        "holdfast history show",
    }


def told_of_relay(
    sink: Sink, on_error: Any, url: str, provider: EngineProvider, desk: Desk, portal: BlockingPortal
) -> Told:
    """Return what is told of a relay that fails, by place."""
    metrics = Counted()
    hf = Holdfast(url, engine_provider=provider, metrics=metrics)
    hf.migrate()
    hf.registry.init()
    hf.relay("orders", sink, retry_policy=RetryPolicy(max_retries=0), on_error=on_error)
    with hf.database.begin() as connection:
        hf.outbox.append(connection, "OrderPlaced", {"order": 7})
    with logged() as log:
        raised = failure_of(lambda: hf.processors.run_until_caught_up("orders"))
    return {
        "log": log.getvalue().splitlines(),
        "read: error": [str(raised)],
        "metrics": metrics.told,
        **told_by_cells(hf.database),
        **told_by_api(Office(hf, portal), 2),
        **told_by_commands(desk, hf, 2),
    }
