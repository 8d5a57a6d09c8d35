"""Sound bounds on PostgreSQL: an xid8 column, a server-side timestamp, or an identity column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Table, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError
from sqlalchemy.types import Date

from ....core.errors import MissingGrantError, SourceConfigurationError
from ....database.barrier import Barrier, Reading
from ....database.errors import reason
from ....database.postgres_writers import FAMILY, OF_STANDBY, WriterBarrier, require_growing_ids, require_primary
from ..inspection import CursorFacts
from .base import NoSoundHorizonError
from .local_times import LocalTimes, ZoneTime, local_times
from .samples import Sample, samples_of
from .ticks import floor_to_precision, moments_ahead

# Tells whether this server is a standby, and whether a subscription writes the table. Expected rows: 1.
_ORIGIN = text(
    FAMILY + "SELECT pg_is_in_recovery(), EXISTS (SELECT FROM pg_subscription_rel JOIN family ON srrelid = relation)"
)

# [HORIZON-PG-XID] Every transaction below this has ended; whose transaction it is when it has been open for a while.
# Expected rows: 1.
_OLDEST_RUNNING_XID = text(
    """
WITH present AS (SELECT pg_current_snapshot() AS snapshot)
SELECT pg_snapshot_xmin(snapshot)::text,
       pg_is_in_recovery(),
       (SELECT min(pid) FROM pg_stat_activity
        WHERE backend_xid = pg_snapshot_xmin(snapshot)::xid AND xact_start < now() - interval '1 second'),
       (SELECT min(gid) FROM pg_prepared_xacts WHERE transaction = pg_snapshot_xmin(snapshot)::xid)
FROM present
"""
)

# Finds xids that this cluster has not reached: the table was restored from another one. Expected rows: 1.
_FOREIGN_XIDS = "SELECT EXISTS (SELECT FROM {table} WHERE {column} >= pg_snapshot_xmax(pg_current_snapshot()))"

# [HORIZON-PG-TIME] No open transaction of this database began below both, a margin before the first. now() is fixed
# before the scan starts, so a transaction the scan misses began after it; the margin covers one that has its time but
# has not reported it yet. Autovacuum workers are left out: they write no rows. Expected rows: 1.
_OLDEST_TRANSACTION = text(
    """
SELECT now(),
       min(xact_start),
       (array_agg(pid ORDER BY xact_start) FILTER (WHERE xact_start IS NOT NULL))[1],
       extract(epoch FROM now() - min(xact_start)),
       min(pid) FILTER (WHERE state = 'disabled'),
       current_user,
       pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
       current_setting('track_activities')::boolean,
       pg_is_in_recovery()
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
"""
)

# Prepared transactions are in no session list, and their start is not shown. Expected rows: 0 or more.
_PREPARED = text("SELECT transaction::text, gid FROM pg_prepared_xacts WHERE database = current_database()")

# The local time of a moment and the earliest of some, by zone: in the one given, or in those in which sessions may be
# that write the table. The server's own setting is hidden where a role or client sets another; initdb gives the log the
# same zone. Expected rows: 1 or more.
_LOCAL_TIMES = text(
    """
WITH setting AS MATERIALIZED (
    SELECT setting, reset_val, source FROM pg_settings WHERE name = 'TimeZone' AND CAST(:zone AS text) IS NULL
),
zones(zone) AS (
    SELECT CAST(:zone AS text)
    UNION SELECT 'UTC' FROM setting
    UNION SELECT unnest(ARRAY[setting, reset_val]) FROM setting
    UNION SELECT current_setting('log_timezone') FROM setting
          WHERE source IN ('user', 'database user', 'client', 'session')
    UNION SELECT split_part(entry, '=', 2) FROM setting, pg_db_role_setting, unnest(setconfig) AS entry
          WHERE lower(split_part(entry, '=', 1)) = 'timezone'
            AND (setdatabase = 0 OR setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
            AND (setrole = 0 OR has_table_privilege(setrole, to_regclass(:relation)::oid, 'INSERT, UPDATE'))
)
SELECT zone, timezone(zone, CAST(:moment AS timestamptz)), min(timezone(zone, ahead))
FROM zones, unnest(CAST(:moments AS timestamptz[])) AS ahead WHERE zone IS NOT NULL GROUP BY zone
"""
)

# What kind of relation it is: writers lock tables ('r') and partitioned tables ('p'), never views. Expected rows: 1.
_RELATION_KIND = text("SELECT relkind::text FROM pg_class WHERE oid = to_regclass(:relation)")

_WORTH_TELLING_SECONDS = 1

Prepared = frozenset[tuple[str, str]]


def _relation(connection: Connection, table: Table) -> str:
    return connection.dialect.identifier_preparer.format_table(table)


def _require_local_writes(connection: Connection, table: Table) -> None:
    """Refuse a server or table whose rows are written elsewhere first."""
    is_standby, is_subscribed = connection.execute(_ORIGIN, {"relation": _relation(connection, table)}).one()
    if is_standby:
        raise NoSoundHorizonError(OF_STANDBY)
    if is_subscribed:
        raise NoSoundHorizonError(
            f"Table '{table.name}' is filled by a subscription: its rows arrive with times and ids of another server, "
            "in the order of its commits, so a poll could skip them. Point the trigger at the publisher, or pass "
            "lookback=…"
        )


class XidHorizon:
    """For a column of type xid8 filled with pg_current_xact_id(): reads below the oldest running transaction."""

    name = "xid8"
    writers = None

    def __init__(self, table: Table, facts: CursorFacts) -> None:
        self._table = table
        self._facts = facts
        self._used: Sample[Sequence[Any]] | None = None

    def prepare(self, connection: Connection) -> None:
        """Refuse a standby, a subscribed table, and a table restored from another cluster."""
        _require_local_writes(connection, self._table)
        column = connection.dialect.identifier_preparer.quote(self._facts.name)
        foreign = text(_FOREIGN_XIDS.format(column=column, table=_relation(connection, self._table)))
        if connection.execute(foreign).scalar():
            raise SourceConfigurationError(
                f"Column '{self._facts.name}' of table '{self._table.name}' holds transaction ids this cluster has not "
                "reached: the table was restored from another cluster. Rewrite the column with pg_current_xact_id() "
                "and reset the trigger."
            )

    def advance(self, connection: Connection) -> Reading:
        """Return the oldest running transaction's id."""
        self._used = samples_of(connection.engine).newest(connection, "xid8", _oldest_running, self._used)
        oldest, is_standby, pid, gid = self._used.value
        require_primary(is_standby)
        held = (f"transaction of pid {pid}",) if pid is not None else ()
        return Reading(oldest, held_back_by=held if gid is None else (f"prepared transaction '{gid}'",))


class ServerTimeHorizon:
    """For a timestamp the database fills: reads below the start of the oldest open transaction.

    A prepared transaction is in no session and does not tell when it began. So a bound found while some are prepared is
    read only once those have ended.
    """

    name = "server_time"

    def __init__(self, table: Table, facts: CursorFacts, margin: timedelta, declared_zone: str | None = None) -> None:
        self.writers: LocalTimes | None = None
        self._table = table
        self._margin = margin
        self._digits = facts.digits
        self._whole_days = isinstance(facts.type, Date)
        self._has_zone = bool(getattr(facts.type, "timezone", False))
        self._zone = declared_zone if facts.clock is None or facts.clock.zone is None else facts.clock.zone
        self._is_zone_of_sessions = facts.holds_local_time("postgresql")
        self._oldest: tuple[str, ...] = ()
        self._used: Sample[Sessions] | None = None
        self._barrier: Barrier[Prepared, Prepared] = Barrier(
            self._look, lambda prepared: prepared, frozenset.intersection, _describe_prepared
        )

    def prepare(self, connection: Connection) -> None:
        """Refuse a standby, a subscribed table, a role that cannot see when others began, and an unknown zone."""
        _require_local_writes(connection, self._table)
        sessions = _sessions(connection)
        _require_answer(sessions.row)
        self._bound(connection, sessions, sessions.row[0].astimezone(UTC))

    def advance(self, connection: Connection) -> Reading:
        """Return the oldest open transaction's start, once every transaction prepared at that time has ended."""
        reading = self._barrier.advance(connection)
        return Reading(reading.bound, waiting=True, held_back_by=(*reading.held_back_by, *self._oldest))

    def _look(self, connection: Connection) -> tuple[object, Prepared]:
        self._used = samples_of(connection.engine).newest(connection, "server_time", _sessions, self._used)
        sessions = self._used.value
        _require_answer(sessions.row)
        now, oldest, pid, age = sessions.row[:4]
        is_held = pid is not None and age >= _WORTH_TELLING_SECONDS
        self._oldest = (f"transaction of pid {pid}, open for {age:.0f} s",) if is_held else ()
        moment = now - self._margin if oldest is None else min(now - self._margin, oldest)
        return self._bound(connection, sessions, moment.astimezone(UTC)), sessions.prepared

    def _bound(self, connection: Connection, sessions: Sessions, moment: datetime) -> object:
        """Return a moment as the column would hold it, rounded down to its ticks."""
        if not self._has_zone:
            found = sessions.local_times(connection, moment, _relation(connection, self._table), self._zone)
            self.writers = found if self._is_zone_of_sessions else None
            moment = found.bound
        return moment.date() if self._whole_days else floor_to_precision(moment, self._digits)


def _oldest_running(connection: Connection) -> Sequence[Any]:
    return connection.execute(_OLDEST_RUNNING_XID).one()


@dataclass(frozen=True, slots=True)
class Sessions:
    """What was found out about the sessions of a database, and then about its prepared transactions."""

    row: Sequence[Any]
    prepared: Prepared
    _locals: dict[tuple[datetime, str, str | None], LocalTimes] = field(default_factory=dict)

    def local_times(self, connection: Connection, moment: datetime, relation: str, zone: str | None) -> LocalTimes:
        """Return the local times of a moment for who writes a table; asked for once by all who share this."""
        key = (moment, relation, zone)
        if key not in self._locals:
            self._locals[key] = _local_times(connection, moments_ahead(moment), relation, zone)
        return self._locals[key]


def _sessions(connection: Connection) -> Sessions:
    """Look at sessions first: one that prepares its transaction in between is found among the prepared ones."""
    row = connection.execute(_OLDEST_TRANSACTION).one()
    return Sessions(row, frozenset((each[0], each[1]) for each in connection.execute(_PREPARED)))


def _require_answer(row: Sequence[Any]) -> None:
    """Refuse a standby, and what hides when a transaction began.

    Raises:
        MissingGrantError: the role may not see it.
        SourceConfigurationError: a session does not tell it, or this is a standby.
    """
    unseen, role, may_see, is_tracked, is_standby = row[4:]
    require_primary(is_standby)
    if not may_see:
        raise MissingGrantError(
            f"Role '{role}' cannot see when other sessions' transactions began, so a late commit could be skipped. "
            f'Run as a superuser: GRANT pg_read_all_stats TO "{role}"'
        )
    if unseen is not None or not is_tracked:
        who = "This server" if unseen is None else f"The session of pid {unseen}"
        raise SourceConfigurationError(
            f"{who} has track_activities = off, so nobody sees when a transaction began and a late commit could be "
            "skipped. Set track_activities = on for every role and database, and reconnect."
        )


def _local_times(connection: Connection, moments: list[datetime], relation: str, zone: str | None) -> LocalTimes:
    """Return the local times of the first of the moments, in ``zone`` or else in the zones of those who may write.

    Raises:
        SourceConfigurationError: there is no such zone.
    """
    binds = {"zone": zone, "relation": relation, "moment": moments[0], "moments": moments}
    try:
        found = connection.execute(_LOCAL_TIMES, binds).all()
    except DataError as error:
        raise SourceConfigurationError(
            f"The server does not know the time zone '{zone}': {reason(error)}. Write a name such as 'Europe/Berlin'."
        ) from error
    return local_times((ZoneTime(*row) for row in found), is_declared=zone is not None)


def _describe_prepared(waiting: Prepared) -> tuple[str, ...]:
    return tuple(f"prepared transaction '{gid}'" for _, gid in sorted(waiting))


class IdentityHorizon:
    """For an identity or serial column: reads up to an id below which no writer is still at work."""

    name = "identity"
    writers = None

    def __init__(self, table: Table, facts: CursorFacts) -> None:
        self._table = table
        self._facts = facts
        self._barrier: WriterBarrier | None = None

    def prepare(self, connection: Connection) -> None:
        """Refuse a standby, a subscribed table, and sequences that do not hand out growing ids one by one."""
        _require_local_writes(connection, self._table)
        relation = _relation(connection, self._table)
        if connection.execute(_RELATION_KIND, {"relation": relation}).scalar() not in ("r", "p"):
            raise NoSoundHorizonError(
                f"'{self._table.name}' is not a plain or partitioned table, so the locks of its writers do not "
                "show, and a late commit could be skipped. Point the trigger at the table itself, or pass lookback=…"
            )
        sequences = require_growing_ids(connection, relation, self._facts.name)
        if not sequences and self._facts.generated_id:
            raise SourceConfigurationError(
                f"The sequence of column '{self._facts.name}' of table '{self._table.name}' cannot be told from its "
                f"default {self._facts.default}. Write it as nextval('name'::regclass)."
            )

    def advance(self, connection: Connection) -> Reading:
        """Return the newest id whose writers have all ended, plus one."""
        if self._barrier is None:
            self._barrier = WriterBarrier(_relation(connection, self._table), self._facts.name)
        return self._barrier.advance(connection)
