"""Waking processors on PostgreSQL: when messages are appended, and when people have changed something.

Elsewhere they poll. What nobody hears, because no one listens at that moment, is found by the next poll.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy.engine import Connection, Engine

from ..runtime.listener import listen

CHANNEL = "holdfast_outbox"
CHANGED = "changed"


def notify_of_changes(connection: Connection) -> None:
    """Have processors look, once this transaction commits, at what people have changed."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_notify(%s, %s)", (CHANNEL, CHANGED))


def wake_ups(engine: Engine) -> Callable[[Callable[[bool], None]], AbstractContextManager[None]] | None:
    """Return what wakes whoever is passed to it while a block runs; None where everybody must poll."""
    if engine.dialect.name != "postgresql":
        return None

    @contextmanager
    def waking(wake: Callable[[bool], None]) -> Iterator[None]:
        subscription = listen(engine, CHANNEL, lambda payload: wake(payload != ""))
        try:
            yield
        finally:
            subscription.close()

    return waking
