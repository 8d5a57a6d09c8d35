"""How sessions of the queue's own pools are set up."""

from __future__ import annotations

from sqlalchemy.engine import Engine

from ...database.ended_sessions import replace_ended_sessions
from ...database.pools import end_what_freezes, let_sessions_say

# The queue empties and fills within seconds, so the planner's statistics are often wrong. Every statement of the queue
# is meant to go by index; if it took the table for tiny, the planner would read all of it for each batch.
_BY_INDEX = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"


def prepare_engine(engine: Engine) -> Engine:
    """Return the engine, its new sessions set up for the queue. Not for engines that others use too."""
    return replace_ended_sessions(end_what_freezes(let_sessions_say(engine, _BY_INDEX)))
