"""Sound reading of an identity column on PostgreSQL: up to an id below which no writer is still at work."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.engine import Connection

from .barrier import Barrier, Reading
from .errors import SourceConfigurationError

# The table and, when it is partitioned or inherited from, everything below it.
FAMILY = """
WITH RECURSIVE family(relation) AS (
    SELECT CAST(to_regclass(:relation) AS oid)
    UNION SELECT inhrelid FROM pg_inherits JOIN family ON inhparent = relation
)
"""

# [HORIZON-PG-IDENTITY] The highest id anyone can see. Expected rows: 1.
_HIGHEST_ID = "SELECT max({column}), pg_is_in_recovery() FROM {table}"

# [HORIZON-PG-IDENTITY] Who holds a writer's lock on the table or one of its partitions. An INSERT takes the lock before
# it draws its id. Prepared transactions have no pid and are listed as '-1/xid'. Expected rows: 0 or more.
_WRITERS = text(
    FAMILY
    + """
SELECT DISTINCT virtualtransaction, coalesce(pid, 0) FROM pg_locks JOIN family USING (relation)
WHERE locktype = 'relation' AND granted AND pid IS DISTINCT FROM pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
)

Writers = frozenset[tuple[str, int]]


def require_primary(is_standby: bool) -> None:
    """Checked on every poll, because a reconnect after a failover may lead to another server."""
    if is_standby:
        raise SourceConfigurationError(
            "This PostgreSQL server is a standby: it does not see the primary's open transactions, so a late commit "
            "could be skipped. Point the trigger at the primary."
        )


class WriterBarrier:
    """A barrier over whoever writes a table.

    Args:
        relation: the table, quoted as SQL needs it.
        column: its identity column, quoted likewise.
    """

    def __init__(self, relation: str, column: str) -> None:
        self._relation = relation
        self._highest_id = text(_HIGHEST_ID.format(column=column, table=relation))
        self._barrier: Barrier[Writers, Writers] = Barrier(
            self._look, lambda writers: writers, _still_writing, _describe_writers
        )

    def advance(self, connection: Connection) -> Reading:
        """Return the newest id whose writers have all ended, plus one."""
        return self._barrier.advance(connection)

    def _look(self, connection: Connection) -> tuple[object, Writers]:
        highest, is_standby = connection.execute(self._highest_id).one()
        require_primary(is_standby)
        if highest is not None and self._barrier.has_passed(highest + 1):
            return highest + 1, frozenset()  # nothing is new, and nobody can write below what may be read already
        writers = frozenset((row[0], row[1]) for row in connection.execute(_WRITERS, {"relation": self._relation}))
        return None if highest is None else highest + 1, writers


def _still_writing(waiting: Writers, present: Writers) -> Writers:
    """A session that is gone may have prepared its transaction, which goes on under another name."""
    kept = waiting & present
    if all(pid == 0 for _, pid in waiting - present):
        return kept
    return kept | {writer for writer in present if writer[1] == 0}


def _describe_writers(waiting: Writers) -> tuple[str, ...]:
    return tuple(
        f"transaction of pid {pid}" if pid else f"prepared transaction {name.removeprefix('-1/')}"
        for name, pid in sorted(waiting)
    )
