"""Sound reading of an identity column on PostgreSQL: up to an id below which no writer is still at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection

from ..core.errors import SourceConfigurationError
from .barrier import Barrier, Reading

# The table and, when it is partitioned or inherited from, everything below it.
FAMILY = """
WITH RECURSIVE family(relation) AS (
    SELECT CAST(to_regclass(:relation) AS oid)
    UNION SELECT inhrelid FROM pg_inherits JOIN family ON inhparent = relation
)
"""

# The sequences a column draws from, in the table and its partitions: those it owns, and those its default names.
_SEQUENCES = (
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
),
sequences(name, cache, increment, cycles) AS (
    SELECT seqrelid::regclass::text, seqcache, seqincrement, seqcycle
    FROM pg_sequence JOIN drawn ON seqrelid = sequence
)
"""
)

# Expected rows: 1, more when partitions have sequences of their own, 0 when the column is filled in another way.
_ONLY_SEQUENCES = text(_SEQUENCES + "SELECT name, cache, increment, cycles FROM sequences ORDER BY name")

# [HORIZON-PG-IDENTITY] The highest id anyone can see, and how ids were drawn up to then: a sequence that is changed is
# noticed by the first sample that can hold ids drawn since. Expected rows: 1, or one for each sequence.
_HIGHEST_ID = (
    _SEQUENCES
    + """
SELECT (SELECT max({column}) FROM {table}), pg_is_in_recovery(), name, cache, increment, cycles
FROM (SELECT) AS sample LEFT JOIN sequences ON true ORDER BY name
"""
)

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

OF_STANDBY = (
    "This PostgreSQL server is a standby: it does not see the primary's open transactions, so a late commit could be "
    "skipped. Point the trigger at the primary, or pass lookback=<seconds> and no horizon to re-read a window here and "
    "drop what was delivered."
)


def require_primary(is_standby: bool) -> None:
    """Checked on every poll, because a reconnect after a failover may lead to another server."""
    if is_standby:
        raise SourceConfigurationError(OF_STANDBY)


def require_growing_ids(connection: Connection, relation: str, column: str) -> int:
    """Return from how many sequences a column draws, at most one, which hands out growing ids one by one.

    Raises:
        SourceConfigurationError: it does not, or there are several.
    """
    found = connection.execute(_ONLY_SEQUENCES, {"relation": relation, "column": column}).all()
    _require_growing(relation, column, found)
    return len(found)


def _require_growing(relation: str, column: str, sequences: Sequence[Sequence[Any]]) -> None:
    for name, cache, increment, cycles in sequences:
        if cache > 1:
            raise SourceConfigurationError(
                f"Sequence {name} caches {cache} ids per session, so a low id can commit long after higher ones. Run: "
                f"ALTER SEQUENCE {name} CACHE 1; and reconnect the sessions that write, which keep what they cached."
            )
        if increment < 1 or cycles:
            raise SourceConfigurationError(
                f"Sequence {name} does not only grow, so a new row can have a lower id than the checkpoint. Run: ALTER "
                f"SEQUENCE {name} INCREMENT BY 1 NO CYCLE"
            )
    if len(sequences) > 1:
        raise SourceConfigurationError(
            f"Column '{column}' of table {relation} and its partitions draws from several sequences "
            f"({', '.join(each[0] for each in sequences)}), so a low id can commit long after higher ones. Let every "
            "partition draw from the same sequence."
        )


class WriterBarrier:
    """A barrier over whoever writes a table.

    Args:
        relation: the table, quoted as SQL needs it.
        column: the name of its identity column.
    """

    def __init__(self, relation: str, column: str) -> None:
        self._relation = relation
        self._column = column
        quoted = '"' + column.replace('"', '""') + '"'
        self._highest_id = text(_HIGHEST_ID.format(column=quoted, table=relation))
        self._barrier: Barrier[Writers, Writers] = Barrier(
            self._look, lambda writers: writers, _still_writing, _describe_writers
        )

    def advance(self, connection: Connection) -> Reading:
        """Return the newest id whose writers have all ended, plus one.

        Raises:
            SourceConfigurationError: ids are no longer handed out one by one, or this is a standby.
        """
        return self._barrier.advance(connection)

    def _look(self, connection: Connection) -> tuple[object, Writers]:
        sample = connection.execute(self._highest_id, {"relation": self._relation, "column": self._column}).all()
        highest, is_standby = sample[0][:2]
        require_primary(is_standby)
        _require_growing(self._relation, self._column, [row[2:] for row in sample if row[2] is not None])
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
