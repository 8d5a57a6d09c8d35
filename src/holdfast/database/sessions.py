"""How the sessions of named pools begin: what notices that a server is silent or gone, and how ours are planned.

Settings are start-up options where the driver has them (PostgreSQL): no session that others may get, by a pooler say,
is changed by a SET. What the application gives itself, in the URL, in ``connect_args`` or in PGOPTIONS, comes after
ours and so has the last word. MariaDB and MySQL are told by the first statement of a new connection.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import URL, Engine

from .budget import OURS, PoolConfig, PoolName
from .ended_sessions import replace_ended_sessions
from .sockets import notice_silence

_MYSQL_DRIVERS = ("pymysql", "mysqldb")
_CONNECT_SECONDS = 10
_IDLE_SECONDS = 10
_ANSWER_SECONDS = {PoolName.BEATS: 5, PoolName.WORK: 30, PoolName.SERVING: 30}  # longer than for a lock
_LOCK_SECONDS = {PoolName.BEATS: 2, PoolName.WORK: 10, PoolName.SERVING: 10}

# The queue empties and fills within seconds and the outbox is read from a checkpoint on, so the planner's statistics
# are often wrong or missing. Every statement of ours is meant to go by index: else it would read all of a table, or
# collect and sort all that lies behind the checkpoint, for each batch.
_BY_INDEX = ("seqscan", "bitmapscan", "hashjoin", "mergejoin")

# A network that swallows everything gives no error: without these, a session would wait for an answer for ever.
_LIBPQ = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_LIBPQ_OF_BEATS = {
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "tcp_user_timeout": 5_000,
}  # leases run out meanwhile


def connect_args(config: PoolConfig, url: URL, driver: str) -> dict[str, object]:
    """Return what the driver is given for each new connection of a pool; what the application gives stands."""
    theirs = dict(config.connect_args or {})
    if driver in ("psycopg", "psycopg2"):
        hasty = _LIBPQ_OF_BEATS if config.pool is PoolName.BEATS else {}
        ours = {**_LIBPQ, **hasty, **_startup_options(config.pool, theirs.pop("options", None), url)}
    elif driver in _MYSQL_DRIVERS:
        seconds = _ANSWER_SECONDS.get(config.pool)
        silent = {} if seconds is None else {"read_timeout": seconds, "write_timeout": seconds}
        ours = {"connect_timeout": _CONNECT_SECONDS, **silent}
        first = _first_statement(config.pool)
        theirs |= {"init_command": first} if first else {}  # the application's own follows: see prepare_sessions
    else:
        ours = {}
    return {**{name: value for name, value in ours.items() if name == "options" or name not in url.query}, **theirs}


def _startup_options(pool: PoolName, given: object, url: URL) -> dict[str, object]:
    """Return libpq's ``options``: ours first, then those of the arguments, the URL or the environment."""
    theirs = given or _in_query(url, "options") or os.environ.get("PGOPTIONS", "")
    options = f"{_planned_and_bounded(pool)} {theirs}".strip()
    return {"options": options} if options else {}


def _in_query(url: URL, name: str) -> str:
    found = url.query.get(name, "")
    return found if isinstance(found, str) else " ".join(found)


def _planned_and_bounded(pool: PoolName) -> str:
    if pool not in OURS:
        return ""
    settings = {
        **{f"enable_{way}": "off" for way in _BY_INDEX},
        "idle_in_transaction_session_timeout": f"{_IDLE_SECONDS}s",  # its process froze, and holds up others
        "lock_timeout": f"{_LOCK_SECONDS[pool]}s",
    }
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def _first_statement(pool: PoolName) -> str:
    if pool is PoolName.SOURCES:
        return "SET time_zone = '+00:00'"
    if pool not in OURS:
        return ""
    idle = f"/*M!100301 , idle_transaction_timeout = {_IDLE_SECONDS} */"  # only MariaDB has it, and reads this
    return f"SET SESSION innodb_lock_wait_timeout = {_LOCK_SECONDS[pool]} {idle}"


def prepare_sessions(engine: Engine, config: PoolConfig) -> Engine:
    """Have the sessions of a pool notice what is silent or has ended, and begin as the application wants them, too."""
    if engine.driver in _MYSQL_DRIVERS:
        event.listen(engine, "connect", lambda connection, _record: notice_silence(connection))
        theirs = (config.connect_args or {}).get("init_command") or _in_query(engine.url, "init_command")
        if theirs and _first_statement(config.pool):
            event.listen(engine, "connect", partial(_say, str(theirs)))
    return replace_ended_sessions(engine)


def _say(statement: str, dbapi_connection: Any, _record: object) -> None:
    with dbapi_connection.cursor() as cursor:
        cursor.execute(statement)
