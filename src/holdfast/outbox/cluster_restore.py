"""Taking over messages and checkpoints that were restored into another PostgreSQL cluster.

Their transaction ids mean nothing here. So the restored messages are numbered anew, in their old order, below all that
this cluster will ever write: transaction 0, negative positions. Each checkpoint moves to the same message as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine

from ..core.errors import ConfigurationError
from ..database.history import cluster_of
from ..records import audit
from ..records.database import changing, translated
from .store import CheckpointStore, Place, is_any_of

_FAR = 2**62

_LOCK = text("LOCK TABLE holdfast_outbox, holdfast_processor_checkpoints IN EXCLUSIVE MODE")

# The last restored message: what a restored processor has read, or what this cluster cannot have written. Rows: 1.
_BOUNDARY = text(
    "SELECT max(position) FROM holdfast_outbox WHERE transaction_id >= pg_snapshot_xmax(pg_current_snapshot())"
)
# The restored messages in their old order. Rows: one for each.
_NUMBER = text(
    """
CREATE TEMPORARY TABLE holdfast_adopted ON COMMIT DROP AS
SELECT position, transaction_id, row_number() OVER (ORDER BY transaction_id, position) AS place
FROM holdfast_outbox
WHERE position <= :boundary
"""
)
# How many of them, from the first one on, a processor has passed. Rows: 1.
_PASSED = {
    "transaction": text(
        """
SELECT coalesce(min(place) FILTER (
    WHERE (transaction_id, position) > (CAST(:transaction AS xid8), :position) OR position > :highest) - 1, count(*))
FROM holdfast_adopted
"""
    ),
    "position": text(
        "SELECT coalesce(min(place) FILTER (WHERE position > :position) - 1, count(*)) FROM holdfast_adopted"
    ),
}
# Move them out of each other's way, then to where they belong. Rows: one for each message.
_MOVE_AWAY = text(
    "UPDATE holdfast_outbox AS message SET position = adopted.place - :far, transaction_id = '0' "
    "FROM holdfast_adopted AS adopted WHERE message.position = adopted.position"
)
_MOVE_BACK = text("UPDATE holdfast_outbox SET position = position + :far - :count - 1 WHERE position <= :count - :far")


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was taken over."""

    messages: int
    places: int


def adopt(engine: Engine, checkpoints: CheckpointStore, *, actor: str) -> Adopted:
    """Take over what another cluster's transaction ids are in, in one transaction, audited.

    A processor that reads in the order of positions may get messages again that it had passed out of the order of
    transactions. Where nothing is foreign, nothing is changed.

    Raises:
        ConfigurationError: the database is not PostgreSQL, where nothing needs to be taken over.
    """
    if engine.dialect.name != "postgresql":
        raise ConfigurationError(
            "Only PostgreSQL's messages carry transaction ids: elsewhere a restored outbox works as it is. Nothing was "
            "changed."
        )
    with changing(engine) as connection, translated(engine, writes=True):
        connection.execute(_LOCK)
        found = cluster_of(connection)
        system, timeline, following = found.system, found.timeline, found.next_transaction
        places = checkpoints.of(connection=connection)
        foreign = [item for item in places if _is_foreign(item, system, following)]
        boundary = _boundary(connection, foreign)
        if boundary is None and not foreign:
            return Adopted(0, 0)
        count = connection.execute(_NUMBER, {"boundary": -_FAR if boundary is None else boundary}).rowcount
        for place in places:
            here = {"system_identifier": system, "timeline": timeline}
            moved = _moved(connection, place, count)
            if place in foreign or moved.get("last_processed_position", -1) != -1:  # has not passed all that is moved
                checkpoints.change(connection, is_any_of([place.id]), **here, **moved)
        connection.execute(_MOVE_AWAY, {"far": _FAR})
        connection.execute(_MOVE_BACK, {"far": _FAR, "count": count})
        audit.record(connection, actor, "outbox adopt", system, {"messages": count, "places": len(foreign)})
    return Adopted(count, len(foreign))


def _is_foreign(place: Place, system: str, following: int) -> bool:
    is_ahead = place.checkpoint is not None and place.checkpoint.transaction_id >= following
    return is_ahead or place.system_identifier not in (None, system)


def _boundary(connection: Connection, foreign: Sequence[Place]) -> int | None:
    found = [place.highest_position for place in foreign if place.highest_position is not None]
    unreached: int | None = connection.execute(_BOUNDARY).scalar()
    return max([*found, *([] if unreached is None else [unreached])], default=None)


def _moved(connection: Connection, place: Place, count: int) -> dict[str, int | None]:
    """Return the columns of a checkpoint that is behind as many of the messages as before."""
    if place.checkpoint is None:
        return {}
    highest = place.checkpoint.position if place.highest_position is None else place.highest_position
    values: dict[str, object] = {"position": place.checkpoint.position}
    if place.reading_order == "transaction":
        values |= {"transaction": str(place.checkpoint.transaction_id), "highest": highest}
    passed: int = connection.execute(_PASSED[place.reading_order], values).scalar_one()
    return {
        "last_processed_transaction_id": 0,
        "last_processed_position": passed - count - 1,
        "highest_position": passed - count - 1,
    }
