"""Sound bounds on MariaDB and MySQL: a barrier over open transactions and running statements.

``NOW()`` is the time a statement began, and a statement that waited for a lock commits long after it. So the start of
the oldest transaction is no bound. Instead: sample a position, list every session that has a transaction open or a
statement running, and read below the sample only once each of them has ended what it was doing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table, text
from sqlalchemy.dialects.mysql import TIMESTAMP
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import Date, DateTime

from ....core.errors import MissingGrantError, SourceConfigurationError
from ..inspection import CursorFacts
from .base import Barrier, Reading
from .ticks import floor_to_precision

# [HORIZON-MY-TIME] The server's time as it is written into TIMESTAMP columns by a session in UTC. Expected rows: 1.
_UTC_NOW = text("SELECT UTC_TIMESTAMP(6)")

# [HORIZON-MY-TIME] The server's time as writers in the server's own time zone put it into DATETIME. Expected rows: 1.
_LOCAL_NOW = text("SELECT CONVERT_TZ(UTC_TIMESTAMP(6), '+00:00', @@global.time_zone)")

# [HORIZON-MY-IDENTITY] The highest id anyone can see. Expected rows: 1.
_HIGHEST_ID = "SELECT MAX({column}) + 1 FROM {table}"

# [HORIZON-MY] Sessions that are running a statement, MariaDB: each statement has an id of its own. Expected rows: any.
_STATEMENTS_MARIADB = text(
    "SELECT id, command, query_id, time_ms / 1000 FROM information_schema.processlist "
    "WHERE command NOT IN ('Sleep', 'Daemon', 'Binlog Dump') AND id <> CONNECTION_ID() AND query_id <> 0"
)

# [HORIZON-MY] The same on MySQL, where the second in which a statement began stands in for its id. Expected rows: any.
_STATEMENTS_MYSQL = text(
    "SELECT id, command, UNIX_TIMESTAMP() - time, time FROM information_schema.processlist "
    "WHERE command NOT IN ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID') AND id <> CONNECTION_ID()"
)

# [HORIZON-MY] Sessions with an open transaction; thread 0: an XA transaction whose session is gone. Expected rows: any.
_TRANSACTIONS = text(
    "SELECT trx_mysql_thread_id, trx_started, TIMESTAMPDIFF(SECOND, trx_started, NOW()) "
    "FROM information_schema.innodb_trx WHERE trx_is_read_only = 0 AND trx_mysql_thread_id <> CONNECTION_ID()"
)

_ACCESS_DENIED = 1227


@dataclass(frozen=True, slots=True)
class Busy:
    """A session that may still write below the sample: the statement it ran, the transaction it had open."""

    thread: int
    statement: int | None
    transaction: datetime | None
    seconds: float


Waiting = tuple[Busy, ...]


class SessionBarrier:
    """A barrier over all sessions of the server. Needs the PROCESS privilege, and fails closed without it."""

    def __init__(self, sample: Any) -> None:
        self._barrier: Barrier[Waiting] = Barrier(sample, _busy_sessions, _still_busy, _describe)

    def prepare(self, connection: Connection) -> None:
        """Refuse a role that cannot see other sessions, and a replica."""
        _transactions(connection)
        if any(command.startswith("Slave") for _, command, _, _ in _statements(connection)):
            raise SourceConfigurationError(
                "This server is a replica: rows arrive there with old times and ids, so a poll could skip them. Point "
                "the trigger at the primary."
            )

    def advance(self, connection: Connection) -> Reading:
        """Return the newest sample whose sessions have all ended what they were doing."""
        return self._barrier.advance(connection)


class ServerTimeHorizon(SessionBarrier):
    """For a TIMESTAMP or DATETIME the database fills."""

    name = "server_time"

    def __init__(self, facts: CursorFacts, margin: timedelta) -> None:
        super().__init__(self._now)
        self._statement = _UTC_NOW if isinstance(facts.type, TIMESTAMP) else _LOCAL_NOW
        self._precision = getattr(facts.type, "fsp", None) or 0
        self._margin = margin
        self._whole_days = isinstance(facts.type, Date) and not isinstance(facts.type, DateTime)

    def _now(self, connection: Connection) -> object:
        moment: datetime = connection.execute(self._statement).scalar_one() - self._margin
        return moment.date() if self._whole_days else floor_to_precision(moment, self._precision)


class IdentityHorizon(SessionBarrier):
    """For an AUTO_INCREMENT column."""

    name = "identity"

    def __init__(self, table: Table, facts: CursorFacts) -> None:
        super().__init__(self._highest_id)
        self._table = table
        self._facts = facts

    def _highest_id(self, connection: Connection) -> object:
        quote = connection.dialect.identifier_preparer
        return connection.execute(
            text(_HIGHEST_ID.format(column=quote.quote(self._facts.name), table=quote.format_table(self._table)))
        ).scalar()


def _is_mariadb(connection: Connection) -> bool:
    return bool(getattr(connection.dialect, "is_mariadb", False))


def _statements(connection: Connection) -> list[Any]:
    statement = _STATEMENTS_MARIADB if _is_mariadb(connection) else _STATEMENTS_MYSQL
    return list(connection.execute(statement).all())


def _transactions(connection: Connection) -> list[Any]:
    try:
        return list(connection.execute(_TRANSACTIONS).all())
    except DBAPIError as error:
        arguments = getattr(error.orig, "args", ())
        if arguments and arguments[0] == _ACCESS_DENIED:
            user = connection.execute(text("SELECT CURRENT_USER()")).scalar()
            raise MissingGrantError(
                f"User {user} cannot see other sessions, so a late commit could be skipped. Run as an administrator: "
                f"GRANT PROCESS ON *.* TO {_quoted_account(str(user))}"
            ) from error
        raise


def _quoted_account(account: str) -> str:
    name, _, host = account.rpartition("@")
    return f"'{name}'@'{host}'"


def _busy_sessions(connection: Connection) -> Waiting:
    """List statements first, then transactions: a statement that ends in between leaves its transaction to be found."""
    busy = {
        thread: Busy(thread, statement, None, float(seconds))
        for thread, _, statement, seconds in _statements(connection)
    }
    orphans = []
    for thread, started, seconds in _transactions(connection):
        if thread == 0:
            orphans.append(Busy(0, None, started, float(seconds)))
        else:
            running = busy.get(thread)
            busy[thread] = Busy(thread, running.statement if running else None, started, float(seconds))
    return (*busy.values(), *orphans)


def _still_busy(connection: Connection, waiting: Waiting) -> Waiting:
    """Return those that have not ended. Compared by start second, at worst one is waited for a second longer."""
    running = {thread: statement for thread, _, statement, _ in _statements(connection)}
    open_transactions: dict[int, datetime] = {}
    orphans = []
    for thread, started, seconds in _transactions(connection):
        if thread == 0:
            orphans.append(Busy(0, None, started, float(seconds)))
        open_transactions[thread] = started
    kept = (_after_a_look(busy, running, open_transactions) for busy in waiting if busy.thread != 0)
    return (*(busy for busy in kept if busy is not None), *orphans)


def _after_a_look(busy: Busy, running: dict[int, int], open_transactions: dict[int, datetime]) -> Busy | None:
    if busy.statement is not None and running.get(busy.thread) == busy.statement:
        return busy
    present = open_transactions.get(busy.thread)
    if present is None:
        return None
    if busy.transaction is None:
        return replace(busy, statement=None, transaction=present)
    return replace(busy, statement=None) if present == busy.transaction else None


def _describe(waiting: Waiting) -> tuple[str, ...]:
    return tuple(
        f"session {busy.thread}, busy for {busy.seconds:.0f} s" if busy.thread else "a prepared XA transaction"
        for busy in sorted(waiting, key=lambda busy: -busy.seconds)
    )
