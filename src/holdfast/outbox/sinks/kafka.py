"""Records of a Kafka topic.

Tested with the official client against the mock broker that its own library carries. It has not been run against a real
Kafka cluster here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.clock import Clock, SystemClock
from ...core.errors import ConfigurationError, DeliveryError
from ...core.extras import needed
from ..message import Message
from .cloud_events import CONTENT_TYPE, KAFKA_PREFIX, as_json, attributes_of, checked_source

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

REQUIRED: Mapping[str, Any] = {"enable.idempotence": True, "delivery.report.only.error": False}
"""Without these a send could return too early, or records could swap places when one is tried again."""
RECOMMENDED: Mapping[str, Any] = {
    "message.timeout.ms": 0,  # a record that gives up alone would be overtaken by the next one
    "enable.gapless.guarantee": True,  # the same for a record that the broker refuses
}
"""Settings the sink adds unless yours say otherwise."""

_DISCARD_SECONDS = 1.0
_TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD"})


class KafkaSink:
    """Sends messages to a Kafka topic, as CloudEvents JSON; the record's key is the message's key.

    Records of one key are in one partition, in order. Those without a key go to any. Kafka does not deduplicate what a
    relay sends again: readers do, by the header ``ce_id``, which is the message id. Every delivery report is checked
    before a send returns. After a failure the producer is thrown away with whatever it still holds, so that nothing of
    it arrives later and out of order; the next send makes a new one. If the process dies during a send, the messages
    come again.

    Args:
        topic: where to send to.
        configuration: settings of ``confluent_kafka.Producer``, such as ``{"bootstrap.servers": "kafka:9092"}``. The
            sink adds ``REQUIRED``, and ``RECOMMENDED`` unless yours say otherwise.
        source: who sends, a URI reference such as ``/shop``.
        timeout_seconds: how long a batch may take, the producer's retries included.
        clock: tells how much of that is left.
        new_producer: makes the producer from the settings; ``confluent_kafka.Producer`` when left out.

    Raises:
        ConfigurationError: the source is not a URI reference, or a required setting is set otherwise.
        MissingDependencyError: confluent-kafka is not installed.
    """

    def __init__(
        self,
        topic: str,
        configuration: Mapping[str, Any],
        *,
        source: str,
        timeout_seconds: float = 30.0,
        new_producer: Callable[[dict[str, Any]], Producer] | None = None,
        clock: Clock | None = None,
    ) -> None:
        with needed("KafkaSink needs confluent-kafka", "kafka"):
            from confluent_kafka import KafkaException, Producer
        self._errors = KafkaException
        self._new_producer = new_producer or Producer
        self._topic = topic
        self._configuration = _checked_configuration(configuration)
        self._source = checked_source(source)
        self._timeout_seconds = timeout_seconds
        self._clock = clock or SystemClock()
        self._producer: Producer | None = None
        self._turn = threading.Lock()

    def __repr__(self) -> str:
        return f"KafkaSink({self._topic!r})"

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages, those of each key in order, and return when every one is confirmed by all replicas in sync.

        Raises:
            DeliveryError: a record was refused, or not confirmed in time; says which ones were confirmed.
            ConfigurationError: the settings are none that a producer takes.
        """
        with self._turn:
            try:
                self._send_all(messages)
            except BaseException:
                self._discard()
                raise

    def close(self) -> None:
        """Let go of the producer; the next send makes a new one."""
        with self._turn:
            self._discard()

    def _send_all(self, messages: Sequence[Message]) -> None:
        producer, reports = self._opened(), _Reports()
        until = self._clock.monotonic() + self._timeout_seconds
        refused = self._produce_all(producer, messages, reports, until)
        self._flush(producer, until)
        failure = reports.failure or refused
        if failure is not None:
            raise self._refusal(failure, reports)
        missing = [message.message_id for message in messages if message.message_id not in reports.confirmed]
        if missing:
            late = f"{len(missing)} were not confirmed within {self._timeout_seconds:g} s"
            raise self._refusal(_Failure(missing, late), reports)

    def _produce_all(
        self, producer: Producer, messages: Sequence[Message], reports: _Reports, until: float
    ) -> _Failure | None:
        """Hand over messages in order, and stop at the first that the producer does not take; return why."""
        for message in messages:
            try:
                self._produce(producer, message, reports, until)
            except (self._errors, BufferError) as error:
                return _Failure([message.message_id], _reason(error), is_permanent=_is_too_large(error))
        return None

    def _produce(self, producer: Producer, message: Message, reports: _Reports, until: float) -> None:
        try:
            self._produce_one(producer, message, reports)
        except BufferError:  # the producer's queue is full
            self._flush(producer, until)
            self._produce_one(producer, message, reports)

    def _flush(self, producer: Producer, until: float) -> None:
        """Wait for reports as long as a batch may take in all."""
        producer.flush(max(0.0, until - self._clock.monotonic()))

    def _produce_one(self, producer: Producer, message: Message, reports: _Reports) -> None:
        attributes = attributes_of(message, self._source)
        headers: list[tuple[str, str | bytes | None]] = [("content-type", CONTENT_TYPE)]
        headers += [(KAFKA_PREFIX + name, _in_header(value)) for name, value in attributes.items()]
        producer.produce(
            self._topic,
            value=as_json(message, self._source),
            key=message.key,
            headers=headers,
            on_delivery=reports.of(message.message_id),
        )

    def _opened(self) -> Producer:
        if self._producer is None:
            try:
                self._producer = self._new_producer(dict(self._configuration))
            except self._errors as error:
                raise ConfigurationError(
                    f"No producer for Kafka topic '{self._topic}' can be made: {_reason(error)}. Correct its settings."
                ) from error
        return self._producer

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(in_queue=True, in_flight=True, blocking=False)
            producer.flush(_DISCARD_SECONDS)

    def _refusal(self, failure: _Failure, reports: _Reports) -> DeliveryError:
        return DeliveryError(
            f"Kafka topic '{self._topic}' did not confirm messages from '{failure.ids[0]}' on: {failure.reason}. They "
            "come again with the same ids; check the brokers, the topic and its largest record size.",
            is_permanent=failure.is_permanent,
            delivered=reports.confirmed,
            about=failure.ids,
        )


@dataclass(frozen=True, slots=True)
class _Failure:
    """Which messages were not taken, and why."""

    ids: Sequence[str]
    reason: str
    is_permanent: bool = False


class _Reports:
    """The delivery reports of one send: which are good, and the first that is not."""

    def __init__(self) -> None:
        self.confirmed: set[str] = set()
        self.failure: _Failure | None = None

    def of(self, message_id: str) -> Callable[[KafkaError | None, Any], None]:
        """Return what the producer calls when it knows what became of a message."""

        def report(error: KafkaError | None, _record: Any) -> None:
            if error is None:
                self.confirmed.add(message_id)
            elif self.failure is None:
                self.failure = _Failure([message_id], error.str(), is_permanent=error.name() in _TOO_LARGE)

        return report


def _is_too_large(error: Exception) -> bool:
    cause = error.args[0] if error.args else error
    return hasattr(cause, "name") and cause.name() in _TOO_LARGE


def _reason(error: Exception) -> str:
    """Return what a client's error says, without its wrapping."""
    cause = error.args[0] if error.args else error
    return str(cause.str() if hasattr(cause, "str") else cause).rstrip(".")


def _in_header(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _checked_configuration(given: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in REQUIRED.items():
        if name in given and given[name] is not value:
            raise ConfigurationError(
                f"KafkaSink needs {name}={value}, and {given[name]!r} is set: messages could be lost or swap places. "
                "Leave it out."
            )
    return {**RECOMMENDED, **given, **REQUIRED}
