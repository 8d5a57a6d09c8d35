"""How sessions that read the outbox and move checkpoints are set up."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from ..core.engine import use_wal

# Every read goes along an index from the checkpoint on. Where statistics are missing or old, the planner may want to
# collect and sort all that lies behind the checkpoint for each batch. Moments are told in UTC.
_BY_INDEX = (
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET enable_hashjoin = off; "
    "SET enable_mergejoin = off; SET timezone = 'UTC'"
)


def prepare_engine(engine: Engine) -> Engine:
    """Return the engine, its new sessions set up for the outbox. Not for engines that handlers use too."""
    if engine.dialect.name == "sqlite":
        use_wal(engine)
    if engine.dialect.name == "postgresql" and not event.contains(engine, "connect", _plan_by_index):
        event.listen(engine, "connect", _plan_by_index)
    return engine


def _plan_by_index(dbapi_connection: Any, _record: object) -> None:
    before = dbapi_connection.autocommit
    dbapi_connection.autocommit = True
    dbapi_connection.execute(_BY_INDEX)
    dbapi_connection.autocommit = before
