"""How sessions of the queue's own pools are set up."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.engine import Engine

from ...core.config import DbConfig, ResolvedDbConfig, parse_url
from ...database.ended_sessions import replace_ended_sessions
from ...database.pools import end_what_freezes, let_sessions_say

# The queue empties and fills within seconds, so the planner's statistics are often wrong. Every statement of the queue
# is meant to go by index; if it took the table for tiny, the planner would read all of it for each batch.
_BY_INDEX = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"

# A network that swallows everything gives no error: without these, a session would wait for an answer for ever.
_NOTICES_SILENCE: dict[str, dict[str, object]] = {
    "postgresql": {
        "connect_timeout": 10,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    },
    "mysql": {"connect_timeout": 10, "read_timeout": 30, "write_timeout": 30},
}


def noticing_silence(config: DbConfig) -> DbConfig:
    """Return a configuration whose sessions end when the server is silent for about half a minute."""
    backend = parse_url(ResolvedDbConfig.of(config).connection_url).get_backend_name()
    ours = _NOTICES_SILENCE.get("mysql" if backend == "mariadb" else backend)
    return config if ours is None else replace(config, connect_args={**ours, **(config.connect_args or {})})


def prepare_engine(engine: Engine) -> Engine:
    """Return the engine, its new sessions set up for the queue. Not for engines that others use too."""
    return replace_ended_sessions(end_what_freezes(let_sessions_say(engine, _BY_INDEX)))
