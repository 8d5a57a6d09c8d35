"""How sessions that read the outbox and move checkpoints are set up."""

from __future__ import annotations

from sqlalchemy.engine import Engine

from ..database.pools import end_what_freezes, let_sessions_say, use_wal

# Every read goes along an index from the checkpoint on. Where statistics are missing or old, the planner may want to
# collect and sort all that lies behind the checkpoint for each batch. Moments are in UTC.
_BY_INDEX = (
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET enable_hashjoin = off; "
    "SET enable_mergejoin = off; SET timezone = 'UTC'"
)


def prepare_engine(engine: Engine) -> Engine:
    """Return the engine, its new sessions set up for the outbox. Not for engines that handlers use too."""
    if engine.dialect.name == "sqlite":
        use_wal(engine)
    return end_what_freezes(let_sessions_say(engine, _BY_INDEX))
