"""The Kafka sink: the real client against the mock broker in its own library, and stand-ins for what that cannot do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka import Message as Record

from holdfast.core.errors import ConfigurationError, MissingDependencyError, OutboxError
from holdfast.outbox.sinks import KafkaSink
from holdfast.outbox.sinks.cloud_events import cloud_event
from tests.components.ports import HOST, free_port
from tests.outbox.sinks.messages import SOURCE, message, messages
from tests.outbox.sinks.turns import Turns, at_once

QUIET = {"log_level": 0}
TOPIC = "orders"


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """The address of a mock broker that lives in a producer of its own."""
    host = Producer({**QUIET, "test.mock.num.brokers": 1})
    [found] = host.list_topics(timeout=10).brokers.values()
    yield f"{found.host}:{found.port}"
    del host


@pytest.fixture
def new_sink(broker: str) -> Iterator[Callable[..., KafkaSink]]:
    made: list[KafkaSink] = []

    def make(topic: str, configuration: dict[str, Any] | None = None, **options: Any) -> KafkaSink:
        settings = {**QUIET, "bootstrap.servers": broker, "linger.ms": 1, **(configuration or {})}
        made.append(KafkaSink(topic, settings, **{"source": SOURCE, "timeout_seconds": 10, **options}))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def records_in(broker: str, topic: str, count: int) -> list[Record]:
    """Return ``count`` records of a topic, those of one partition in order."""
    consumer = Consumer({**QUIET, "bootstrap.servers": broker, "group.id": "readers", "fetch.wait.max.ms": 10})
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    found: list[Record] = []
    while len(found) < count:
        some = consumer.consume(count - len(found), timeout=10)
        assert some, f"only {len(found)} of {count} records came"
        found += some
    consumer.close()
    return found


def headers_of(record: Record) -> dict[str, str]:
    return {name: bytes(value or b"").decode() for name, value in cast(Any, record.headers())}


# With the real client


class Watched(Producer):
    """The real producer, and what it reported of each record."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        super().__init__(configuration)
        self.reports: list[str] = []

    def produce(self, topic: str, **options: Any) -> None:  # type: ignore[override]  # as the sink calls it
        told = options.pop("on_delivery")

        def report(error: KafkaError | None, record: Any) -> None:
            self.reports.append("delivered" if error is None else error.name())
            told(error, record)

        super().produce(topic, on_delivery=report, **options)


def test_records_arrive_with_key_headers_and_event(broker: str, new_sink: Callable[..., KafkaSink]) -> None:
    given = message(1, key="customer-1", headers={"tenant": "blue", "final": True, "level": 3})
    new_sink("one").send([given])
    [record] = records_in(broker, "one", 1)
    assert record.key() == b"customer-1"
    assert json.loads(record.value() or b"") == cloud_event(given, SOURCE)
    headers = headers_of(record)
    assert headers["content-type"] == "application/cloudevents+json"
    assert (headers["ce_id"], headers["ce_type"], headers["ce_tenant"]) == ("m1", "OrderPlaced", "blue")
    assert (headers["ce_final"], headers["ce_level"]) == ("true", "3")


def test_records_of_one_key_are_in_one_partition_in_order(broker: str, new_sink: Callable[..., KafkaSink]) -> None:
    given = [message(number, key=f"key-{number % 3}") for number in range(300)]
    new_sink("ordered").send(given)
    records = records_in(broker, "ordered", 300)
    for key in ("key-0", "key-1", "key-2"):
        mine = [record for record in records if record.key() == key.encode()]
        assert len({record.partition() for record in mine}) == 1
        assert [headers_of(record)["ce_id"] for record in mine] == [
            each.message_id for each in given if each.key == key
        ]


def test_what_is_delivered_again_has_the_same_ids_and_bodies(broker: str, new_sink: Callable[..., KafkaSink]) -> None:
    sink = new_sink("again")
    for _ in range(2):
        sink.send(messages(3, key="a"))
    records = [(headers_of(record)["ce_id"], record.value()) for record in records_in(broker, "again", 6)]
    assert records[:3] == records[3:]


def test_a_full_queue_of_the_producer_is_waited_for(broker: str, new_sink: Callable[..., KafkaSink]) -> None:
    new_sink("narrow", {"queue.buffering.max.messages": 2}).send(messages(10, key="a"))
    records = records_in(broker, "narrow", 10)
    assert [headers_of(record)["ce_id"] for record in records] == [f"m{number}" for number in range(1, 11)]


def test_a_record_that_is_too_large_is_told_by_its_id(new_sink: Callable[..., KafkaSink]) -> None:
    with pytest.raises(OutboxError, match=r"from 'm2' on: .*too large"):
        new_sink("large", {"message.max.bytes": 2000}).send([message(1), message(2, data="x" * 3000), message(3)])


def test_brokers_that_do_not_answer_raise_and_leave_nothing_to_arrive_later() -> None:
    made: list[Watched] = []

    def new_producer(configuration: dict[str, Any]) -> Producer:
        made.append(Watched(configuration))
        return made[-1]

    settings = {**QUIET, "bootstrap.servers": f"{HOST}:{free_port()}"}
    sink = KafkaSink(TOPIC, settings, source=SOURCE, timeout_seconds=0.2, new_producer=new_producer)
    for _ in range(2):
        with pytest.raises(OutboxError, match=r"from 'm1' on: 3 were not confirmed within 0\.2 s"):
            sink.send(messages(3))
    assert [producer.reports for producer in made] == [["_PURGE_QUEUE"] * 3] * 2


def test_settings_that_no_producer_takes_are_told(new_sink: Callable[..., KafkaSink]) -> None:
    with pytest.raises(ConfigurationError, match="No such configuration property"):
        new_sink(TOPIC, {"no.such.setting": 1}).send(messages(1))


# With a stand-in, for answers the mock broker does not give


class Scripted:
    """A producer whose delivery reports a test decides: an error, None for a good one, or ``LOST`` for no report."""

    LOST = object()

    def __init__(self, outcomes: dict[str, Any]) -> None:
        self.outcomes = outcomes
        self.waiting: list[tuple[str, Callable[[Any, Any], None]]] = []
        self.produced: list[str] = []
        self.is_purged = False
        self.turns = Turns()

    def produce(self, topic: str, *, value: bytes, on_delivery: Callable[[Any, Any], None], **_options: Any) -> None:
        name = json.loads(value)["id"]
        self.produced.append(name)
        self.waiting.append((name, on_delivery))

    def flush(self, timeout: float) -> int:
        with self.turns.inside():
            waiting, self.waiting = self.waiting, []
        for name, report in waiting:
            outcome = self.outcomes.get(name)
            if outcome is not self.LOST:
                report(outcome, None)
        return 0

    def purge(self, *, in_queue: bool, in_flight: bool, blocking: bool) -> None:
        self.is_purged = in_queue and in_flight


def scripted_sink(*producers: Scripted) -> KafkaSink:
    coming = iter(producers)
    return KafkaSink(TOPIC, {}, source=SOURCE, new_producer=lambda _configuration: cast(Producer, next(coming)))


def test_one_bad_delivery_report_among_good_ones_raises() -> None:
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    sink = scripted_sink(Scripted({"m2": refused}))
    with pytest.raises(OutboxError, match="from 'm2' on: Broker: Topic authorization failed"):
        sink.send(messages(3))


def test_a_delivery_report_that_never_comes_raises() -> None:
    sink = scripted_sink(Scripted({"m3": Scripted.LOST}))
    with pytest.raises(OutboxError, match="1 were not confirmed"):
        sink.send(messages(3))


def test_after_a_failure_the_old_producer_is_emptied_and_a_new_one_sends_everything_again() -> None:
    broken, good = Scripted({"m2": Scripted.LOST}), Scripted({})
    sink = scripted_sink(broken, good)
    with pytest.raises(OutboxError):
        sink.send(messages(3))
    assert broken.is_purged
    sink.send(messages(3))
    assert good.produced == ["m1", "m2", "m3"]


def test_a_good_producer_is_kept() -> None:
    good = Scripted({})
    sink = scripted_sink(good)  # there is no second one
    sink.send(messages(2))
    sink.send(messages(2))
    assert len(good.produced) == 4
    assert not good.is_purged


def test_several_partitions_of_a_relay_take_turns_so_that_one_failure_throws_away_nothing_of_another() -> None:
    good = Scripted({})
    good.turns.waits = True
    sink = scripted_sink(good)
    at_once(lambda: sink.send(messages(1)))
    assert good.turns.most_inside == 1
    assert good.produced == ["m1", "m1"]


def test_nothing_to_send_is_no_error() -> None:
    nothing = Scripted({})
    scripted_sink(nothing).send([])
    assert nothing.produced == []


# Settings


def settings_of(configuration: dict[str, Any]) -> dict[str, Any]:
    """Return what the producer is made with."""
    used: list[dict[str, Any]] = []

    def new_producer(given: dict[str, Any]) -> Producer:
        used.append(given)
        return cast(Producer, Scripted({}))

    KafkaSink(TOPIC, configuration, source=SOURCE, new_producer=new_producer).send([])
    return used[0]


def test_the_producer_is_idempotent_and_lets_no_record_overtake_another() -> None:
    assert settings_of({"client.id": "shop"}) == {
        "client.id": "shop",
        "enable.idempotence": True,
        "delivery.report.only.error": False,
        "enable.gapless.guarantee": True,
        "message.timeout.ms": 0,
    }


def test_recommended_settings_can_be_changed_and_required_ones_cannot() -> None:
    assert settings_of({"enable.gapless.guarantee": False})["enable.gapless.guarantee"] is False
    for setting in ({"enable.idempotence": False}, {"delivery.report.only.error": True}):
        with pytest.raises(ConfigurationError, match="KafkaSink needs"):
            KafkaSink(TOPIC, setting, source=SOURCE)


def test_weaker_acknowledgements_are_refused_by_the_client_itself() -> None:
    sink = KafkaSink(TOPIC, {**QUIET, "acks": 1}, source=SOURCE)
    with pytest.raises(ConfigurationError, match="acks"):
        sink.send(messages(1))


def test_a_source_is_checked_and_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="URI reference"):
        KafkaSink(TOPIC, {}, source="my shop")
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'holdfast\[kafka\]'"):
        KafkaSink(TOPIC, {}, source=SOURCE)


def test_the_repr_shows_no_setting() -> None:
    assert repr(KafkaSink(TOPIC, {"sasl.password": "hunter2"}, source=SOURCE)) == "KafkaSink('orders')"
