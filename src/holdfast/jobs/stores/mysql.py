"""The queue in MariaDB and MySQL 8: rows are locked in the order of ids, and what others have locked is passed by.

Our own transactions are READ COMMITTED, which locks the rows that are found and no gaps between them. Where the caller
brings a transaction, its isolation level is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy.engine import Connection, CursorResult
from sqlalchemy.exc import IntegrityError

from ..model import JobId, NewJob
from ..statements import statement
from .answers import translated
from .base import in_utc
from .portable import Entry, PortableJobStore

_IDS = "%(ids)s"
_CLAIMS = "%(claims)s"


class MysqlJobStore(PortableJobStore):
    """The queue in MariaDB or MySQL 8."""

    dialect: ClassVar[str] = "mysql"
    transaction_setup: ClassVar[str | None] = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
    most_pages_per_claim: ClassVar[int] = 5  # a page may take a statement for each of its keys

    def _execute(
        self, connection: Connection, sql: str, entries: Sequence[Entry], values: Mapping[str, object]
    ) -> CursorResult[Any]:
        """Write ids and claims into the text where a statement names them: they are numbers, and plans go by them."""
        if _IDS in sql:
            sql = sql.replace(_IDS, ", ".join(f"{entry['id']:d}" for entry in entries))
        if _CLAIMS in sql:
            sql = sql.replace(_CLAIMS, ", ".join(f"({entry['id']:d}, {entry['attempt']:d})" for entry in entries))
        return super()._execute(connection, sql, entries, values)

    def _insert_one(self, connection: Connection, job: NewJob) -> JobId | None:
        with translated(self.engine):
            try:
                added = self._execute(connection, statement(self.dialect, "enqueue"), (), self._columns(job))
            except IntegrityError:
                if job.unique_key is None:
                    raise
                return None
            return JobId(added.lastrowid)

    def _keys_of(self, connection: Connection, topic: str, operation: str, after: str) -> list[str]:
        """Read on from the last key that was seen, so that no more is read of a key than one page."""
        keys: dict[str, None] = {}
        page = self.most_keys_per_claim
        while len(keys) < page:
            rows = self._run(
                connection, "ready_keys", topic=topic, operation=operation, after_key=after, most_keys=page
            )
            keys |= dict.fromkeys(row[0] for row in rows)
            if len(rows) < page:
                break
            after = rows[-1][0]
        return list(keys)[:page]

    def _moment(self, moment: datetime | None) -> object:
        return None if moment is None else in_utc(moment).replace(tzinfo=None)
