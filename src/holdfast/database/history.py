"""The history of a database as a value: whether what was read once is still in it, or was taken back.

A restore, and a fail-over to a server that lagged behind, take committed rows back. A checkpoint that is kept elsewhere
does not go back with them. So it remembers the history that it was made in: whose it is, and how far it had come. What
a database can tell of that differs, and its form here is the same for all: marks that only grow, by name. A position is
in a history when none of its marks lies ahead of what the history has under that name.

=============  ===================================================================================
PostgreSQL     the position in the write-ahead log, by timeline; of former timelines where they were left
MariaDB        the last GTID of each domain and server, where the binary log is on
MySQL          the last GTID of each source, where GTIDs are on; else only ``server_uuid``
SQLite         how often a reader has marked the file in a table of ours, by a name made for the file
=============  ===================================================================================
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ..core.clock import new_id
from .errors import Kind, kind_of
from .pools import autocommit
from .row_security import role_of

READS_TABLE = "holdfast_source_reads"

# Which cluster and database this is, how it came to be, how far its log has been written, and the first transaction id
# it has not given out; no timeline and position on a standby. A row that is seen has its commit below the position,
# flushed or not. Rows: 1.
_IDENTITY = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
    (SELECT oid::text FROM pg_database WHERE datname = current_database()),
    CASE WHEN NOT pg_is_in_recovery()
         THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer END,
    CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint END,
    pg_snapshot_xmax(pg_current_snapshot())::text
"""
_MAY_READ_FILES = "SELECT has_function_privilege('pg_read_file(text)', 'EXECUTE')"
# Which timelines this one came from, and where each was left. Rows: 1.
_LINEAGE = text(
    "SELECT pg_read_file('pg_wal/' || lpad(upper(to_hex(CAST(:timeline AS integer))), 8, '0') || '.history')"
)
# Up to where this server had replayed the log when it was promoted. Only one that has received it as a standby, and
# was not restarted since, tells that: after a restart the position could be one of its own timeline. Rows: 0 or 1.
_REPLAYED = """
SELECT (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint WHERE pg_last_wal_receive_lsn() IS NOT NULL
"""
_LEFT_AT = re.compile(r"^\s*(\d+)\s+([0-9A-F]+)/([0-9A-F]+)", re.MULTILINE)

_READ_ONLY_FILE = "the file cannot be written, and SQLite tells nothing of its history by itself"

# The last transaction of each domain; and of each server that ever wrote there, as far as it was logged or replicated.
_MARIADB = "SELECT @@log_bin, @@gtid_current_pos, @@gtid_slave_pos, @@gtid_binlog_state"
_MYSQL = "SELECT @@server_uuid, @@gtid_mode, @@gtid_executed"

_READS = text(f"SELECT epoch, reads FROM {READS_TABLE} WHERE reader = :reader")
_CREATE_READS = (
    f"CREATE TABLE IF NOT EXISTS {READS_TABLE} (reader TEXT PRIMARY KEY, epoch TEXT NOT NULL, reads INTEGER NOT NULL)"
)
_MARK = text(
    f"INSERT INTO {READS_TABLE} (reader, epoch, reads) VALUES (:reader, :epoch, 1) "
    "ON CONFLICT (reader) DO UPDATE SET reads = reads + 1 RETURNING epoch, reads"
)


@dataclass(frozen=True, slots=True)
class History:
    """Whose history it is and how far it has come.

    ``past`` holds what else is in it, such as where the former timelines were left, as far as it was asked for and can
    be known; ``past_unknown`` says why it cannot. ``next_transaction`` is the first transaction id that was not given
    out, where there are such.
    """

    system: str = ""
    database: str = ""
    timeline: str = ""
    position: Mapping[str, int] = field(default_factory=dict)
    past: Mapping[str, int] = field(default_factory=dict)
    past_unknown: str | None = None
    next_transaction: int | None = None

    def has(self, position: Mapping[str, int]) -> bool:
        """Return whether everything that was there at ``position`` is in this history."""
        here = {**self.past, **self.position}
        return all(here.get(name, -1) >= mark for name, mark in position.items())


@dataclass(frozen=True, slots=True)
class UnknownHistory:
    """A restore cannot be noticed; ``because`` says why, and what would change that."""

    because: str


def present_history(
    connection: Connection, *, reader: str | None = None, since: str | None = None, marks: bool = False
) -> History | UnknownHistory:
    """Return the history of the database that a connection in autocommit mode leads to.

    ``since`` is the timeline of a position that is to be looked for; where the present one is another, the past is
    looked up, too. ``reader`` is who asks, under a name of its own in the database; ``marks`` has SQLite, which tells
    nothing by itself, count one more read of it.
    """
    match connection.dialect.name:
        case "postgresql":
            return _postgres(connection, since)
        case "mysql" | "mariadb":
            return _mysql(connection)
        case "sqlite" if reader is not None:
            return _marked(connection, reader) if marks else _found(connection, reader)
    return UnknownHistory(f"{connection.dialect.name} tells nothing of its history")


def noticed_restores(engine: Engine) -> tuple[bool, str]:
    """Return whether it is noticed that rows were taken back, and for people how far, or why not."""
    if engine.dialect.name == "sqlite":
        return _notices_in_file(engine)
    with autocommit(engine) as connection:
        found = present_history(connection)
        if isinstance(found, UnknownHistory):
            return False, f"a restore is not noticed: {found.because}"
        if not found.position:
            return True, "another server is noticed, and what it lacks is not known: set gtid_mode = ON"
        if engine.dialect.name == "postgresql" and not connection.exec_driver_sql(_MAY_READ_FILES).scalar():
            return True, f"noticed; after a restore to a point in time, {_missing_grant(connection)}"
    return True, "noticed, with where the histories part"


def _notices_in_file(engine: Engine) -> tuple[bool, str]:
    file = (engine.url.database or "").removeprefix("file:")
    if engine.url.query.get("mode") == "ro" or (Path(file).is_file() and not os.access(file, os.W_OK)):
        return False, f"a restore is not noticed: {_READ_ONLY_FILE}"
    return True, f"noticed, by a mark in the table {READS_TABLE} of the file with each batch"


# Sessions

_sessions: weakref.WeakKeyDictionary[Engine, list[int]] = weakref.WeakKeyDictionary()


def session_count(engine: Engine) -> int:
    """Return how many sessions an engine has begun since this was first asked: a new one may be with another server."""
    if engine not in _sessions:
        begun = _sessions[engine] = [0]

        def count(_connection: object, _record: object) -> None:
            begun[0] += 1

        event.listen(engine, "connect", count)
    return _sessions[engine][0]


# PostgreSQL


@dataclass(frozen=True, slots=True)
class Cluster:
    """Which PostgreSQL database it is; ``timeline`` and ``position`` are None on a standby."""

    system: str
    database: str
    timeline: int | None
    position: int | None
    next_transaction: int


def cluster_of(connection: Connection) -> Cluster:
    """Return which PostgreSQL cluster and database a connection leads to."""
    system, database, timeline, position, following = connection.exec_driver_sql(_IDENTITY).one()
    return Cluster(system, database, timeline, position, int(following))


def _postgres(connection: Connection, since: str | None) -> History | UnknownHistory:
    try:
        found = cluster_of(connection)
    except DBAPIError as error:
        if kind_of(error) is not Kind.DENIED:
            raise
        grant = f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {role_of(connection)}"
        return UnknownHistory(f"the role may not ask which cluster it is; run as a superuser: {grant}")
    if found.timeline is None or found.position is None:
        return UnknownHistory("the server is a standby")
    history = History(
        found.system,
        found.database,
        str(found.timeline),
        {str(found.timeline): found.position},
        next_transaction=found.next_transaction,
    )
    return history if since in (None, history.timeline) else _with_past(connection, history, int(str(since)))


def _with_past(connection: Connection, history: History, since: int) -> History:
    if history.timeline == "1":  # it came from none
        return history
    if connection.exec_driver_sql(_MAY_READ_FILES).scalar():
        written = connection.execute(_LINEAGE, {"timeline": int(history.timeline)}).scalar_one()
        return replace(history, past=left_at(written))
    replayed = connection.exec_driver_sql(_REPLAYED).scalar()
    if replayed is not None and int(history.timeline) == since + 1:
        return replace(history, past={str(since): replayed})
    return replace(history, past_unknown=_missing_grant(connection))


def left_at(lineage: str) -> dict[str, int]:
    """Return where each timeline was left, as PostgreSQL's file of a timeline has it."""
    return {timeline: (int(high, 16) << 32) + int(low, 16) for timeline, high, low in _LEFT_AT.findall(lineage)}


def _missing_grant(connection: Connection) -> str:
    return (
        "where the present timeline began cannot be read; it is known after: GRANT EXECUTE ON FUNCTION "
        f"pg_read_file(text) TO {role_of(connection)}"
    )


# MariaDB and MySQL


def _mysql(connection: Connection) -> History | UnknownHistory:
    if getattr(connection.dialect, "is_mariadb", False):
        has_log, latest, replicated, logged = connection.exec_driver_sql(_MARIADB).one()
        if has_log:
            return History(position=mariadb_marks(latest), past={**mariadb_marks(replicated), **mariadb_marks(logged)})
        return UnknownHistory("the server writes no binary log; it is noticed with log_bin")
    server, mode, executed = connection.exec_driver_sql(_MYSQL).one()
    return History(position=mysql_marks(executed)) if mode == "ON" else History(system=server)


def mariadb_marks(state: str) -> dict[str, int]:
    """Return the last number of each domain and server in GTIDs such as ``0-1-12,0-2-7``."""
    gtids = (gtid.strip().rpartition("-") for gtid in state.split(",") if gtid.strip())
    return {origin: int(number) for origin, _, number in gtids}


def mysql_marks(executed: str) -> dict[str, int]:
    """Return the last number of each source (and tag) in a GTID set such as ``uuid:1-5:7-9,uuid:1``."""
    marks: dict[str, int] = {}
    for part in "".join(executed.split()).split(","):
        origin, *spans = part.split(":")
        for span in spans:
            if not span[0].isdigit():
                origin = f"{part.split(':')[0]}:{span}"
                continue
            marks[origin] = max(marks.get(origin, 0), int(span.rpartition("-")[2]))
    return marks


# SQLite


def _found(connection: Connection, reader: str) -> History:
    try:
        row: Any = connection.execute(_READS, {"reader": reader}).one_or_none()
    except DBAPIError as error:
        if kind_of(error) is not Kind.MISSING_TABLE:
            raise
        row = None
    return History(position={} if row is None else {row[0]: row[1]})


def _marked(connection: Connection, reader: str) -> History | UnknownHistory:
    """Count one more read. Each reader counts for itself: nobody else's marks hide that its own were taken back."""
    try:
        try:
            row = connection.execute(_MARK, {"reader": reader, "epoch": new_id()}).one()
        except DBAPIError as error:
            if kind_of(error) is not Kind.MISSING_TABLE:
                raise
            connection.exec_driver_sql(_CREATE_READS)
            row = connection.execute(_MARK, {"reader": reader, "epoch": new_id()}).one()
    except DBAPIError as error:
        if kind_of(error) not in (Kind.READ_ONLY, Kind.DENIED):
            raise
        return UnknownHistory(_READ_ONLY_FILE)
    return History(position={row[0]: row[1]})
