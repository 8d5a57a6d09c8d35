"""azure-functions-db 0.8.3: its runner and source as they are, its state in this process's memory.

Keeping the state in memory is in its favour: with the blob store it would make six more round trips a batch.
"""

import copy
from collections.abc import Callable
from typing import Any

from azure_functions_db import SqlAlchemySource
from azure_functions_db.trigger.normalizers import make_normalizer
from azure_functions_db.trigger.runner import PollRunner

from bench.orders import CURSOR, KEY, NAME, Orders


class MemoryState:
    """The five methods of its state store."""

    def __init__(self) -> None:
        self._checkpoint: dict[str, object] = {}

    def acquire_lease(self, poller_name: str, ttl_seconds: int) -> str:
        return f"{poller_name} for {ttl_seconds} s"

    def renew_lease(self, poller_name: str, lease_id: str, ttl_seconds: int) -> None:
        """Nobody else can have it."""

    def release_lease(self, poller_name: str, lease_id: str) -> None:
        """Nobody else wants it."""

    def load_checkpoint(self, poller_name: str) -> dict[str, object]:
        return copy.deepcopy(self._checkpoint)

    def commit_checkpoint(self, poller_name: str, checkpoint: dict[str, object], lease_id: str) -> None:
        self._checkpoint = copy.deepcopy(checkpoint)


def after_loop(orders: Orders, batch_size: int) -> Callable[[], None]:
    """Return a catch-up whose handler reads ``after`` of every event."""
    source = SqlAlchemySource(url=orders.url, table=NAME, cursor_column=CURSOR, pk_columns=[KEY])

    def run() -> None:
        total = 0

        def handle(events: list[Any]) -> None:
            nonlocal total
            for event in events:
                total += event.after["id"]

        PollRunner(
            name="bench",
            source=source,
            state_store=MemoryState(),
            normalizer=make_normalizer(cursor_column=CURSOR, pk_columns=[KEY]),
            handler=handle,
            batch_size=batch_size,
            max_batches_per_tick=orders.rows,
        ).tick()
        assert total == orders.checksum

    return run
