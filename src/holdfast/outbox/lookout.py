"""One look for all processors of a process that rest: is there anything for one of them?

Each would otherwise read, and look for what people have changed, by itself: statements that grow with the processors.
Those that were woken, or have just read something, read by themselves; what is seen here is at most a moment old.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy.engine import Engine, Row

from ..core.clock import Clock
from ..database.pools import autocommit
from ..records.database import translated
from .message import Checkpoint
from .statements import named
from .store import PartitionId, Place

_FRESH_SECONDS = 2.5


class Seen(NamedTuple):
    """What a look has shown of one partition."""

    role: str
    status: str
    fencing_token: int
    checkpoint: Checkpoint | None
    has_redelivery: bool
    last: Checkpoint | None

    def is_nothing_for(self, place: Place) -> bool:
        """Return whether one that believes to stand at a place would find nothing to do."""
        known = (place.role.value, place.status.value, place.fencing_token, place.checkpoint)
        if self.has_redelivery or self[:4] != known:
            return False
        return self.last is None or (place.checkpoint is not None and self.last <= place.checkpoint)


class Lookout:
    """Looks when what was last seen is too old, on whichever thread asks. PostgreSQL only, where wake-ups come."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: Mapping[PartitionId, Seen] = {}
        self._looked_at: float | None = None

    def shows_nothing_for(self, place: Place) -> bool:
        """Return whether there is nothing to read for a partition, and nobody has changed anything about it."""
        with self._lock:
            now = self._clock.monotonic()
            if self._looked_at is None or now - self._looked_at >= _FRESH_SECONDS:
                self._seen, self._looked_at = self._look(), now
            seen = self._seen.get(place.id)
        return seen is not None and seen.is_nothing_for(place)

    def _look(self) -> dict[PartitionId, Seen]:
        with translated(self._engine, writes=False), autocommit(self._engine) as connection:
            rows = connection.exec_driver_sql(named.statement("postgresql", "standing")).fetchall()
        return {PartitionId(row.processor_id, row.version, row.partition_number): _seen(row) for row in rows}


def _seen(row: Row[Any]) -> Seen:
    return Seen(
        row.role,
        row.status,
        row.fencing_token,
        _checkpoint(row.last_processed_transaction_id, row.last_processed_position),
        row.has_redelivery,
        _checkpoint(row.last_transaction_id, row.last_position),
    )


def _checkpoint(transaction_id: object, position: int | None) -> Checkpoint | None:
    return None if position is None else Checkpoint(int(str(transaction_id or 0)), position)
