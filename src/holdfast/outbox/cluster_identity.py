"""Which PostgreSQL cluster a checkpoint belongs to: transaction ids mean nothing in another one.

A dump restored elsewhere brings ids of its old cluster along. Fail-over and point-in-time recovery keep the cluster's
identifier and start a new timeline; a checkpoint that came from a time that never was is then further than the server.
"""

from __future__ import annotations

import logging

from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine

from ..core.errors import ForeignCheckpointError
from ..database.history import cluster_of, session_count
from ..database.postgres_writers import require_primary
from ..records.database import changing
from .store import CheckpointStore, Place, is_any_of

_log = logging.getLogger("holdfast.processor")
_WAY_OUT = (
    "Run 'holdfast outbox adopt' to take the messages and checkpoints over into this cluster, keeping every place."
)

# Finds messages whose transaction this cluster has not reached. Expected rows: 1.
_FOREIGN_MESSAGES = text(
    "SELECT EXISTS (SELECT FROM holdfast_outbox WHERE transaction_id >= pg_snapshot_xmax(pg_current_snapshot()))"
)
# Which transaction wrote the message of a checkpoint. Expected rows: 1, none when retention deleted it.
_WRITER = text("SELECT transaction_id::text FROM holdfast_outbox WHERE position = :position")


class Cluster:
    """Tells whether a checkpoint is of this cluster. Only PostgreSQL's transaction ids need that."""

    def __init__(self, engine: Engine, checkpoints: CheckpointStore) -> None:
        self._engine = engine
        self._checkpoints = checkpoints
        self._applies = engine.dialect.name == "postgresql"

    def check(self, place: Place) -> None:
        """Refuse a checkpoint or an outbox of another cluster; note the cluster of a place that has none yet.

        Raises:
            ForeignCheckpointError: the message says what to do; nothing was changed.
        """
        if not self._applies:
            return
        with changing(self._engine) as connection:
            found = cluster_of(connection)
            require_primary(found.timeline is None)
            system, timeline = found.system, found.timeline or 0
            self._check(connection, place, system, timeline, found.next_transaction)
            if (place.system_identifier, place.timeline) != (system, timeline):
                self._checkpoints.change(connection, is_any_of([place.id]), system_identifier=system, timeline=timeline)

    @property
    def sessions(self) -> int:
        """Return how many sessions have begun: after a new one, this may be another server with other checkpoints."""
        return session_count(self._engine) if self._applies else 0

    def _check(self, connection: Connection, place: Place, system: str, timeline: int, following: int) -> None:
        if place.system_identifier not in (None, system):
            raise ForeignCheckpointError(
                f"The checkpoint of processor {place.id} is of the database cluster {place.system_identifier}, and "
                f"this is {system}: the tables were restored from another one. {_WAY_OUT}"
            )
        if place.checkpoint is not None and place.checkpoint.transaction_id >= following:
            raise ForeignCheckpointError(
                f"The checkpoint {place.checkpoint} of processor {place.id} lies ahead of this server, whose next "
                f"transaction is {following}: it is of another cluster, or of a time before a recovery. {_WAY_OUT}"
            )
        if connection.execute(_FOREIGN_MESSAGES).scalar():
            raise ForeignCheckpointError(
                f"The outbox holds messages of transactions this server has not reached (its next one is {following}): "
                f"they were restored from another cluster. {_WAY_OUT}"
            )
        if place.timeline not in (None, timeline):
            self._check_timeline(connection, place, timeline)

    def _check_timeline(self, connection: Connection, place: Place, timeline: int) -> None:
        """After a fail-over or recovery: the checkpoint's message must be the one that is there now, or be gone."""
        checkpoint = place.checkpoint
        if checkpoint is not None and place.reading_order == "transaction":
            writer = connection.execute(_WRITER, {"position": checkpoint.position}).scalar()
            if writer is not None and int(writer) != checkpoint.transaction_id:
                raise ForeignCheckpointError(
                    f"The checkpoint {checkpoint} of processor {place.id} is of timeline {place.timeline}, and on this "
                    f"one ({timeline}) message {checkpoint.position} is of transaction {writer}: it is of a time that "
                    f"a recovery undid. Say where to go on with 'holdfast processor reset {place.id.processor_id}'."
                )
        _log.warning(
            "Processor %s goes on after a fail-over or recovery: timeline %s became %d, and its checkpoint fits",
            place.id,
            place.timeline,
            timeline,
        )
