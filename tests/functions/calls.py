"""What the host sends to a worker when a timer, an HTTP request or a queue message fires a function.

The values are plain JSON, so that they travel to another process; each host in `hosts` decodes them in its own way.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from azure.storage.queue import QueueMessage


@dataclass(frozen=True, slots=True)
class Call:
    """One firing: the parameter that the trigger binds, its data, and the trigger's metadata."""

    binding: str
    parameter: str
    data: dict[str, Any]
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """What a function under an HTTP trigger answered."""

    status: int
    text: str
    headers: Mapping[str, str]

    @property
    def body(self) -> Any:
        """What the text says as JSON."""
        return json.loads(self.text)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an invocation ended, as the host is told."""

    succeeded: bool
    error: str | None
    response: Response | None = None


def timer() -> Call:
    schedule = {"Schedule": {"AdjustForDST": True}, "ScheduleStatus": None, "IsPastDue": False}
    return Call("timerTrigger", "timer", {"json": json.dumps(schedule)})


def http(
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    route: Mapping[str, str] | None = None,
    body: object = None,
) -> Call:
    text = body if isinstance(body, str) else "" if body is None else json.dumps(body)
    request = {
        "method": method,
        "url": f"https://shop.example/api/{path}",
        "headers": {"content-type": "application/json"},
        "query": dict(query or {}),
        "params": dict(route or {}),
        "body": text,
    }
    return Call("httpTrigger", "req", {"http": request})


def queue(message: QueueMessage) -> Call:
    def moment(value: datetime | None) -> dict[str, str]:
        return {"json": json.dumps(None if value is None else value.isoformat())}

    metadata: dict[str, dict[str, Any]] = {
        "Id": {"string": message.id},
        "DequeueCount": {"json": json.dumps(message.dequeue_count)},
        "PopReceipt": {"string": message.pop_receipt},
        "InsertionTime": moment(message.inserted_on),
        "ExpirationTime": moment(message.expires_on),
        "NextVisibleTime": moment(message.next_visible_on),
    }
    return Call("queueTrigger", "msg", {"string": message.content}, metadata)
