"""Messages as CloudEvents 1.0: the one form in which every sink sends them, so that a receiver learns it once.

An event holds nothing that changes between deliveries. A message that comes again has the same id and the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC
from typing import Any

from ...core.errors import ConfigurationError
from ..message import Message

CONTENT_TYPE = "application/cloudevents+json"
BATCH_CONTENT_TYPE = "application/cloudevents-batch+json"
AMQP_PREFIX = "cloudEvents_"
KAFKA_PREFIX = "ce_"
"""Before the names of attributes that are sent beside the event, for brokers to filter by."""
TAKEN_NAMES = frozenset(
    {
        *("specversion", "id", "source", "type", "time", "subject", "datacontenttype", "dataschema", "data"),
        *("correlationid", "causationid", "sequence"),
    }
)
"""Attributes that a message's headers cannot set."""

_EXTENSION_NAME = re.compile(r"[a-z0-9]+")
_URI_REFERENCE = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
_LARGEST_INTEGER = 2**31 - 1  # CloudEvents' integers have 32 bits


def cloud_event(message: Message, source: str) -> dict[str, Any]:
    """Return a message as a CloudEvents 1.0 JSON object.

    ``sequence`` sorts as text in the order of the outbox: transaction id, then position, both padded with zeros.
    Headers become extension attributes when CloudEvents can hold them: a name of lower-case letters and digits that is
    not taken, and a text, a boolean or a whole number of 32 bits. Other headers are left out: what receivers need
    belongs into the data.

    Args:
        message: what was read from the outbox.
        source: who sends it, a URI reference such as ``/shop``.
    """
    return {**attributes_of(message, source), "data": message.data}


def attributes_of(message: Message, source: str) -> dict[str, str | int | bool]:
    """Return a message's CloudEvents attributes, without the data."""
    attributes: dict[str, str | int | bool | None] = {
        "specversion": "1.0",
        "id": message.message_id,
        "source": source,
        "type": message.type,
        "time": message.appended_at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z",
        "subject": message.key,
        "datacontenttype": "application/json",
        "correlationid": message.correlation_id,
        "causationid": message.causation_id,
        "sequence": f"{message.transaction_id:020d}.{message.position:019d}",
    }
    attributes |= {name: value for name, value in message.headers.items() if _is_extension(name, value)}
    return {name: value for name, value in attributes.items() if value is not None}


def as_json(message: Message, source: str) -> bytes:
    """Return a message as the bytes of its CloudEvents JSON, the same at every delivery."""
    event = cloud_event(message, source)
    return json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def as_json_batch(events: Sequence[bytes]) -> bytes:
    """Return events that are JSON already as one CloudEvents JSON batch."""
    return b"[" + b",".join(events) + b"]"


def checked_source(source: object) -> str:
    """Return ``source`` when CloudEvents takes it.

    Raises:
        ConfigurationError: it is not a URI reference.
    """
    if not isinstance(source, str) or not _URI_REFERENCE.fullmatch(source):
        raise ConfigurationError(
            f"source={source!r:.80} is not a URI reference. Name who sends, such as source='/shop' or "
            "source='https://shop.example'."
        )
    return source


def _is_extension(name: str, value: object) -> bool:
    if name in TAKEN_NAMES or not _EXTENSION_NAME.fullmatch(name):
        return False
    if isinstance(value, int) and not isinstance(value, bool):
        return -_LARGEST_INTEGER - 1 <= value <= _LARGEST_INTEGER
    return isinstance(value, (str, bool))
