"""Sound bounds on PostgreSQL: an xid8 column, a server-side timestamp, or an identity column."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table, text
from sqlalchemy.engine import Connection

from ....core.errors import MissingGrantError, SourceConfigurationError
from ..inspection import CursorFacts
from .base import Barrier, Reading
from .ticks import floor_to_precision

# Tells whether this server is a standby. Expected rows: 1.
_IN_RECOVERY = text("SELECT pg_is_in_recovery()")

# [HORIZON-PG-XID] Every transaction below this has ended. Expected rows: 1.
_OLDEST_RUNNING_XID = text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text")

# Finds xids that this cluster has not reached: the table was restored from another one. Expected rows: 1.
_FOREIGN_XIDS = "SELECT coalesce(max({column}) >= pg_snapshot_xmax(pg_current_snapshot()), false) FROM {table}"

# Tells whether the role sees other sessions' transactions. Expected rows: 1.
_MAY_SEE_SESSIONS = text("SELECT current_user, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')")

# [HORIZON-PG-TIME] No open transaction of this database began below this. now() is fixed before the scan starts, so a
# transaction the scan misses began after it; the margin covers one that has its time but has not reported it yet.
# Autovacuum workers are left out: they write no rows. Expected rows: 1.
_OLDEST_TRANSACTION = """
SELECT {moment_open} least(now() - CAST(:margin AS interval), min(xact_start)) {moment_close},
       (array_agg(pid ORDER BY xact_start))[1],
       extract(epoch FROM now() - min(xact_start))
FROM pg_stat_activity
WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
  AND backend_type <> 'autovacuum worker'
"""

# Prepared transactions are in no session list, and their start is not told. Expected rows: 0 or more.
_PREPARED = text("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared")

# [HORIZON-PG-IDENTITY] The highest id anyone can see. Expected rows: 1.
_HIGHEST_ID = "SELECT max({column}) + 1 FROM {table}"

# [HORIZON-PG-IDENTITY] Who holds a writer's lock on the table or one of its partitions. An INSERT takes the lock before
# it draws its id. Prepared transactions are listed as '-1/xid'. Expected rows: 0 or more.
_WRITERS = text(
    """
WITH RECURSIVE family(relation) AS (
    SELECT CAST(to_regclass(:relation) AS oid)
    UNION SELECT inhrelid FROM pg_inherits JOIN family ON inhparent = relation
)
SELECT DISTINCT virtualtransaction, coalesce(pid, 0) FROM pg_locks JOIN family USING (relation)
WHERE locktype = 'relation' AND granted AND pid IS DISTINCT FROM pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
)

# A cached block of ids lets a session use a low id long after higher ones committed. Expected rows: 0 or 1.
_SEQUENCE_CACHE = text(
    "SELECT s.seqrelid::regclass::text, s.seqcache FROM pg_depend d JOIN pg_sequence s ON s.seqrelid = d.objid "
    "JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid "
    "WHERE d.refobjid = to_regclass(:relation) AND a.attname = :column AND s.seqcache > 1"
)


def _refuse_standby(connection: Connection) -> None:
    if connection.execute(_IN_RECOVERY).scalar():
        raise SourceConfigurationError(
            "This PostgreSQL server is a standby: it does not see the primary's open transactions, so a late commit "
            "could be skipped. Point the trigger at the primary."
        )


class XidHorizon:
    """For a column of type xid8 filled with pg_current_xact_id(): reads below the oldest running transaction."""

    name = "xid8"

    def __init__(self, table: Table, facts: CursorFacts) -> None:
        self._table = table
        self._facts = facts

    def prepare(self, connection: Connection) -> None:
        """Refuse a standby, and a table restored from another cluster."""
        _refuse_standby(connection)
        quote = connection.dialect.identifier_preparer
        foreign = text(
            _FOREIGN_XIDS.format(column=quote.quote(self._facts.name), table=quote.format_table(self._table))
        )
        if connection.execute(foreign).scalar():
            raise SourceConfigurationError(
                f"Column '{self._facts.name}' of table '{self._table.name}' holds transaction ids this cluster has not "
                "reached: the table was restored from another cluster. Rewrite the column with pg_current_xact_id() "
                "and reset the trigger."
            )

    def advance(self, connection: Connection) -> Reading:
        """Return the oldest running transaction's id."""
        return Reading(connection.execute(_OLDEST_RUNNING_XID).scalar())


class ServerTimeHorizon:
    """For a timestamp the database fills: reads below the start of the oldest open transaction."""

    name = "server_time"

    def __init__(self, facts: CursorFacts, margin: timedelta) -> None:
        self._precision = getattr(facts.type, "precision", None)
        self._margin = margin
        self._bound: object = None
        zone_open, zone_close = _in_column_zone(facts)
        self._statement = text(_OLDEST_TRANSACTION.format(moment_open=zone_open, moment_close=zone_close))

    def prepare(self, connection: Connection) -> None:
        """Refuse a standby, and a role that cannot see other sessions: their transactions would look closed."""
        _refuse_standby(connection)
        role, may_see = connection.execute(_MAY_SEE_SESSIONS).one()
        if not may_see:
            raise MissingGrantError(
                f"Role '{role}' cannot see when other sessions' transactions began, so a late commit could be skipped. "
                f'Run as a superuser: GRANT pg_read_all_stats TO "{role}"'
            )

    def advance(self, connection: Connection) -> Reading:
        """Return the oldest open transaction's start; a prepared transaction keeps the bound where it was."""
        moment, pid, age = connection.execute(self._statement, {"margin": self._margin}).one()
        prepared = connection.execute(_PREPARED).scalars().all()
        if prepared:
            held = tuple(f"prepared transaction '{gid}'" for gid in prepared)
            return Reading(self._bound, waiting=True, held_back_by=held)
        self._bound = self._floored(moment)
        held_by = () if pid is None else (f"transaction of pid {pid}, open for {float(age):.0f} s",)
        return Reading(self._bound, waiting=True, held_back_by=held_by)

    def _floored(self, moment: Any) -> object:
        return floor_to_precision(moment, self._precision) if isinstance(moment, datetime) else moment


def _in_column_zone(facts: CursorFacts) -> tuple[str, str]:
    """Return SQL around a moment that gives it the column's type: with zone, local, or UTC when its default says so."""
    if facts.type_name == "date":
        return "CAST(", "AS date)"
    if getattr(facts.type, "timezone", False):
        return "(", ")"
    if facts.default and "utc" in facts.default.lower():
        return "timezone('UTC',", ")"
    return "CAST(", "AS timestamp)"


class IdentityHorizon:
    """For an identity or serial column: reads up to an id below which no writer is still at work."""

    name = "identity"

    def __init__(self, table: Table, facts: CursorFacts) -> None:
        self._table = table
        self._facts = facts
        self._barrier: Barrier[frozenset[tuple[str, int]]] = Barrier(
            self._highest_id, self._writers, self._still_writing, _describe_writers
        )

    def prepare(self, connection: Connection) -> None:
        """Refuse a standby and a sequence that caches ids."""
        _refuse_standby(connection)
        found = connection.execute(
            _SEQUENCE_CACHE, {"relation": self._relation(connection), "column": self._facts.name}
        ).one_or_none()
        if found is not None:
            raise SourceConfigurationError(
                f"Sequence {found[0]} caches {found[1]} ids per session, so a low id can commit long after higher "
                f"ones. Run: ALTER SEQUENCE {found[0]} CACHE 1"
            )

    def advance(self, connection: Connection) -> Reading:
        """Return the newest id whose writers have all ended, plus one."""
        return self._barrier.advance(connection)

    def _relation(self, connection: Connection) -> str:
        return connection.dialect.identifier_preparer.format_table(self._table)

    def _highest_id(self, connection: Connection) -> object:
        column = connection.dialect.identifier_preparer.quote(self._facts.name)
        return connection.execute(text(_HIGHEST_ID.format(column=column, table=self._relation(connection)))).scalar()

    def _writers(self, connection: Connection) -> frozenset[tuple[str, int]]:
        rows = connection.execute(_WRITERS, {"relation": self._relation(connection)}).all()
        return frozenset((row[0], row[1]) for row in rows)

    def _still_writing(self, connection: Connection, waiting: frozenset[tuple[str, int]]) -> frozenset[tuple[str, int]]:
        """A listed session that prepared its transaction goes on under another name, so any prepared one counts."""
        present = self._writers(connection)
        return frozenset(writer for writer in present if writer in waiting or writer[1] == 0)


def _describe_writers(waiting: frozenset[tuple[str, int]]) -> tuple[str, ...]:
    return tuple(
        f"transaction of pid {pid}" if pid else f"prepared transaction {name.removeprefix('-1/')}"
        for name, pid in sorted(waiting)
    )
