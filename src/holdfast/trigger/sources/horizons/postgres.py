"""Sound bounds on PostgreSQL: an xid8 column, a server-side timestamp, or an identity column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Table, text
from sqlalchemy.engine import Connection
from sqlalchemy.types import Date

from ....core.barrier import Barrier, Reading
from ....core.errors import MissingGrantError, SourceConfigurationError
from ....core.postgres_writers import FAMILY, WriterBarrier, require_primary
from ..inspection import CursorFacts
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

# Prepared transactions are in no session list, and their start is not told. Expected rows: 0 or more.
_PREPARED = text("SELECT transaction::text, gid FROM pg_prepared_xacts WHERE database = current_database()")

# The earliest of some moments in a zone's local time. Expected rows: 1.
_EARLIEST_LOCAL = text(
    "SELECT min(timezone(coalesce(CAST(:zone AS text), current_setting('TimeZone')), moment)) "
    "FROM unnest(CAST(:moments AS timestamptz[])) AS moment"
)

# What kind of relation it is: writers lock tables ('r') and partitioned tables ('p'), never views. Expected rows: 1.
_RELATION_KIND = text("SELECT relkind::text FROM pg_class WHERE oid = to_regclass(:relation)")

# The sequences the column draws from, in the table and its partitions: those it owns, and those its default names.
# Expected rows: 1, more when partitions have sequences of their own, 0 when the column is filled in another way.
_SEQUENCES = text(
    FAMILY
    + """,
columns(relation, number) AS (
    SELECT attrelid, attnum FROM pg_attribute JOIN family ON attrelid = relation WHERE attname = :column
),
drawn(sequence) AS (
    SELECT objid FROM pg_depend JOIN columns ON refobjid = relation AND refobjsubid = number
    WHERE classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass AND deptype IN ('a', 'i')
    UNION
    SELECT refobjid FROM pg_depend JOIN pg_attrdef a ON objid = a.oid
    JOIN columns ON adrelid = columns.relation AND adnum = number
    WHERE classid = 'pg_attrdef'::regclass AND refclassid = 'pg_class'::regclass
)
SELECT seqrelid::regclass::text, seqcache, seqincrement, seqcycle FROM pg_sequence JOIN drawn ON seqrelid = sequence
ORDER BY 1
"""
)

_WORTH_TELLING_SECONDS = 1

Prepared = frozenset[tuple[str, str]]


def _relation(connection: Connection, table: Table) -> str:
    return connection.dialect.identifier_preparer.format_table(table)


def _require_local_writes(connection: Connection, table: Table) -> None:
    """Refuse a server or table whose rows are written elsewhere first."""
    is_standby, is_subscribed = connection.execute(_ORIGIN, {"relation": _relation(connection, table)}).one()
    require_primary(is_standby)
    if is_subscribed:
        raise SourceConfigurationError(
            f"Table '{table.name}' is filled by a subscription: its rows arrive with times and ids of another server, "
            "in the order of its commits, so a poll could skip them. Point the trigger at the publisher, or pass "
            "lookback=…"
        )


class XidHorizon:
    """For a column of type xid8 filled with pg_current_xact_id(): reads below the oldest running transaction."""

    name = "xid8"

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

    def __init__(self, table: Table, facts: CursorFacts, margin: timedelta) -> None:
        self._table = table
        self._margin = margin
        self._digits = facts.digits
        self._whole_days = isinstance(facts.type, Date)
        self._has_zone = bool(getattr(facts.type, "timezone", False))
        self._zone = None if facts.clock is None else facts.clock.zone
        self._oldest: tuple[str, ...] = ()
        self._used: Sample[Sessions] | None = None
        self._barrier: Barrier[Prepared, Prepared] = Barrier(
            self._look, lambda prepared: prepared, frozenset.intersection, _describe_prepared
        )

    def prepare(self, connection: Connection) -> None:
        """Refuse a standby, a subscribed table, and a role that cannot see when other transactions began."""
        _require_local_writes(connection, self._table)
        _require_told(_sessions(connection).row)

    def advance(self, connection: Connection) -> Reading:
        """Return the oldest open transaction's start, once every transaction prepared at that time has ended."""
        reading = self._barrier.advance(connection)
        return Reading(reading.bound, waiting=True, held_back_by=(*reading.held_back_by, *self._oldest))

    def _look(self, connection: Connection) -> tuple[object, Prepared]:
        self._used = samples_of(connection.engine).newest(connection, "server_time", _sessions, self._used)
        sessions = self._used.value
        _require_told(sessions.row)
        now, oldest, pid, age = sessions.row[:4]
        is_held = pid is not None and age >= _WORTH_TELLING_SECONDS
        self._oldest = (f"transaction of pid {pid}, open for {age:.0f} s",) if is_held else ()
        moment = now - self._margin if oldest is None else min(now - self._margin, oldest)
        return self._bound(connection, sessions, moment.astimezone(UTC)), sessions.prepared

    def _bound(self, connection: Connection, sessions: Sessions, moment: datetime) -> object:
        """Return a moment as the column would hold it, rounded down to its ticks."""
        if not self._has_zone:
            moment = sessions.earliest_local(connection, moment, self._zone)
        return moment.date() if self._whole_days else floor_to_precision(moment, self._digits)


def _oldest_running(connection: Connection) -> Sequence[Any]:
    return connection.execute(_OLDEST_RUNNING_XID).one()


@dataclass(frozen=True, slots=True)
class Sessions:
    """What was found out about the sessions of a database, and then about its prepared transactions."""

    row: Sequence[Any]
    prepared: Prepared
    _locals: dict[tuple[datetime, str | None], datetime] = field(default_factory=dict)

    def earliest_local(self, connection: Connection, moment: datetime, zone: str | None) -> datetime:
        """Return the earliest local time of a moment and those ahead; asked for once by all who share this."""
        if (moment, zone) not in self._locals:
            self._locals[moment, zone] = _earliest_local(connection, moments_ahead(moment), zone)
        return self._locals[moment, zone]


def _sessions(connection: Connection) -> Sessions:
    """Look at sessions first: one that prepares its transaction in between is found among the prepared ones."""
    row = connection.execute(_OLDEST_TRANSACTION).one()
    return Sessions(row, frozenset((each[0], each[1]) for each in connection.execute(_PREPARED)))


def _require_told(row: Sequence[Any]) -> None:
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


def _earliest_local(connection: Connection, moments: list[datetime], zone: str | None) -> datetime:
    """Return the earliest local time of the moments, in ``zone`` or else the session's zone."""
    local: datetime = connection.execute(_EARLIEST_LOCAL, {"zone": zone, "moments": moments}).scalar_one()
    return local


def _describe_prepared(waiting: Prepared) -> tuple[str, ...]:
    return tuple(f"prepared transaction '{gid}'" for _, gid in sorted(waiting))


class IdentityHorizon:
    """For an identity or serial column: reads up to an id below which no writer is still at work."""

    name = "identity"

    def __init__(self, table: Table, facts: CursorFacts) -> None:
        self._table = table
        self._facts = facts
        self._barrier: WriterBarrier | None = None

    def prepare(self, connection: Connection) -> None:
        """Refuse a standby, a subscribed table, and sequences that do not hand out growing ids one by one."""
        _require_local_writes(connection, self._table)
        relation = _relation(connection, self._table)
        if connection.execute(_RELATION_KIND, {"relation": relation}).scalar() not in ("r", "p"):
            raise SourceConfigurationError(
                f"'{self._table.name}' is not a plain or partitioned table, so the locks of its writers do not "
                "show, and a late commit could be skipped. Point the trigger at the table itself, or pass lookback=…"
            )
        sequences = connection.execute(_SEQUENCES, {"relation": relation, "column": self._facts.name}).all()
        for name, cache, increment, cycles in sequences:
            _require_growing(name, cache, increment, cycles)
        if len(sequences) > 1:
            raise SourceConfigurationError(
                f"Column '{self._facts.name}' of table '{self._table.name}' and its partitions draws from several "
                f"sequences ({', '.join(row[0] for row in sequences)}), so a low id can commit long after higher ones. "
                "Let every partition draw from the same sequence."
            )
        if not sequences and self._facts.generated_id:
            raise SourceConfigurationError(
                f"The sequence of column '{self._facts.name}' of table '{self._table.name}' cannot be told from its "
                f"default {self._facts.default}. Write it as nextval('name'::regclass)."
            )

    def advance(self, connection: Connection) -> Reading:
        """Return the newest id whose writers have all ended, plus one."""
        if self._barrier is None:
            column = connection.dialect.identifier_preparer.quote(self._facts.name)
            self._barrier = WriterBarrier(_relation(connection, self._table), column)
        return self._barrier.advance(connection)


def _require_growing(sequence: str, cache: int, increment: int, cycles: bool) -> None:
    if cache > 1:
        raise SourceConfigurationError(
            f"Sequence {sequence} caches {cache} ids per session, so a low id can commit long after higher ones. Run: "
            f"ALTER SEQUENCE {sequence} CACHE 1"
        )
    if increment < 1 or cycles:
        raise SourceConfigurationError(
            f"Sequence {sequence} does not only grow, so a new row can have a lower id than the checkpoint. Run: ALTER "
            f"SEQUENCE {sequence} INCREMENT BY 1 NO CYCLE"
        )
