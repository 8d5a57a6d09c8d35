"""How sessions of the queue's own pools are set up."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

# The queue empties and fills within seconds, so the planner's statistics are often wrong. Every statement of the queue
# is meant to go by index; told that the table is tiny, the planner would read all of it for each batch.
_BY_INDEX = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"


def prepare_engine(engine: Engine) -> Engine:
    """Return the engine, its new sessions set up for the queue. Not for engines that others use too."""
    if engine.dialect.name == "postgresql" and not event.contains(engine, "connect", _plan_by_index):
        event.listen(engine, "connect", _plan_by_index)
    return engine


def _plan_by_index(dbapi_connection: Any, _record: object) -> None:
    before = dbapi_connection.autocommit
    dbapi_connection.autocommit = True
    dbapi_connection.execute(_BY_INDEX)
    dbapi_connection.autocommit = before
