"""Where a relay sends messages: one small protocol, and an adapter for each system.

A client library is imported when its sink is made, so this package can be imported without any of them.
"""

from ...core.errors import DeliveryError
from .cloud_events import cloud_event
from .event_hubs import EventHubsSink
from .kafka import KafkaSink
from .protocol import Sink
from .service_bus import ServiceBusSink
from .signature import SignatureError, new_secret, verify
from .storage_queue import StorageQueueSink
from .webhook import WebhookSink

__all__ = [
    "Sink",
    "WebhookSink",
    "StorageQueueSink",
    "ServiceBusSink",
    "EventHubsSink",
    "KafkaSink",
    "verify",
    "new_secret",
    "SignatureError",
    "DeliveryError",
    "cloud_event",
]
