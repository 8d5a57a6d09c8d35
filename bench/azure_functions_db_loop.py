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

Handler = Callable[[list[Any]], None]


class MemoryState:
    """The five methods of its state store."""

    def __init__(self, checkpoint: dict[str, object] | None = None) -> None:
        self._checkpoint = checkpoint or {}

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


def source_of(orders: Orders) -> SqlAlchemySource:
    """Return its source on the table."""
    return SqlAlchemySource(url=orders.url, table=NAME, cursor_column=CURSOR, pk_columns=[KEY])


def runner(source: SqlAlchemySource, state: MemoryState, handler: Handler, batch_size: int, batches: int) -> PollRunner:
    """Return its runner, which delivers up to ``batches`` batches a tick."""
    return PollRunner(
        name="bench",
        source=source,
        state_store=state,
        normalizer=make_normalizer(cursor_column=CURSOR, pk_columns=[KEY]),
        handler=handler,
        batch_size=batch_size,
        max_batches_per_tick=batches,
    )


def after_loop(orders: Orders, batch_size: int) -> Callable[[], None]:
    """Return a catch-up whose handler reads ``after`` of every event."""
    source = source_of(orders)

    def run() -> None:
        total = 0

        def handle(events: list[Any]) -> None:
            nonlocal total
            for event in events:
                total += event.after["id"]

        runner(source, MemoryState(), handle, batch_size, batches=orders.rows).tick()
        assert total == orders.checksum

    return run
