"""Sound bounds on MariaDB and MySQL: a barrier over open transactions and running statements.

``NOW()`` is the time a statement began, and a statement that waited for a lock commits long after it. So the start of
the oldest transaction is no bound. Instead: sample a position, list every session that has a transaction open or a
statement running, and read below the sample only once each of them has ended what it was doing.

InnoDB answers questions about its transactions from a copy, and makes a new copy only when nobody has asked for 0.1 s.
A copy older than the sample would hide a transaction, so each copy is made to carry the time of whoever had it made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table, text
from sqlalchemy.engine import Connection
from sqlalchemy.types import Date

from ....core.errors import MissingGrantError, SourceConfigurationError
from ....database.barrier import Barrier, Reading
from ....database.errors import Kind, kind_of
from ....database.server_roles import is_galera_node
from ..inspection import CursorFacts
from .base import NoSoundHorizonError
from .local_times import UTC_ZONE, LocalTimes, ZoneTime, local_times
from .ticks import floor_to_precision, moments_ahead

# [HORIZON-MY-TIME] The server's time, from which NOW() is made in every session. Expected rows: 1.
_UTC_NOW = text("SELECT UTC_TIMESTAMP(6)")

# Zones in which sessions begin: the server's, which may be its system's, and one that new sessions are given by a
# statement of the administrator. Expected rows: 1.
_ZONES = text("SELECT @@global.time_zone, @@global.system_time_zone, @@global.init_connect")
_ZONE_SET = re.compile(r"\btime_zone\s*:?=\s*['\"]([^'\"]+)['\"]", re.IGNORECASE)
_UTC = "+00:00"

# A moment in a zone's local time, in which writers put it into DATETIME. Expected rows: 1.
_LOCAL = "CONVERT_TZ(:moment_{moment}, '+00:00', :zone_{zone})"

# [HORIZON-MY-IDENTITY] The highest id anyone can see. Expected rows: 1.
_HIGHEST_ID = "SELECT MAX({column}) FROM {table}"

# Sessions that are running a statement, MariaDB: each statement has an id of its own. Expected rows: any.
_STATEMENTS_MARIADB = text(
    "SELECT id, query_id, time_ms / 1000 FROM information_schema.processlist "
    "WHERE command NOT IN ('Sleep', 'Daemon', 'Binlog Dump') AND id <> CONNECTION_ID() AND query_id <> 0"
)

# The same on MySQL, where the second in which a statement began stands in for its id. Expected rows: any.
_STATEMENTS_MYSQL = text(
    "SELECT id, UNIX_TIMESTAMP() - time, time FROM information_schema.processlist "
    "WHERE command NOT IN ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID') AND id <> CONNECTION_ID()"
)

# The server's clock in microseconds. Expected rows: 1.
_CLOCK = text("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)")

# Open transactions; thread 0: an XA transaction whose session is gone. It is run inside a transaction of
# its own, so that a copy made for it holds this very text and with it the time it was asked for. Expected rows: 1 or
# more, our own among them unless the copy is older.
_TRANSACTIONS = (
    "SELECT /* holdfast listing {clock} */ trx_mysql_thread_id, trx_id, trx_started, "
    "TIMESTAMPDIFF(SECOND, trx_started, NOW()), trx_is_read_only, trx_query FROM information_schema.innodb_trx"
)
_ASKED_AT = re.compile(r"/\* holdfast listing (\d+) \*/")

# Tells whether rows are applied from another server. Expected rows: 1.
_REPLICATION = text(
    "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'system user' AND command <> 'Daemon'"
)

_SECOND = 1_000_000
_COPY_LIFETIME = _SECOND * 12 // 100
_LONGEST_PAUSE = _SECOND * 2
_STALE_COPIES_WORTH_TELLING = 3


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that a session is running."""

    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction. Its number is known only once it has written; until then its start tells it apart."""

    number: int
    started: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class Listing:
    """What the server was doing: statements by session, then transactions by session, and those without a session.

    A session among the ``readers`` is in a transaction that cannot write.
    """

    statements: dict[int, Statement]
    transactions: dict[int, Transaction]
    orphans: dict[int, Transaction]
    readers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Busy:
    """Who may still write below the sample: a session, or an XA transaction whose session is gone (no thread)."""

    thread: int
    statement: int | None
    transaction: Transaction | None
    seconds: float


Waiting = tuple[Busy, ...]


class SessionBarrier:
    """A barrier over all sessions of the server. Needs the PROCESS privilege, and fails closed without it."""

    def __init__(self, sample: Callable[[Connection], object]) -> None:
        self.writers: LocalTimes | None = None
        self._sample = sample
        self._barrier: Barrier[Listing, Waiting] = Barrier(self._look, busy_sessions, still_busy, _describe)
        self._sampled: tuple[object, dict[int, Statement], int] | None = None
        self._asked_at = 0
        self._pause = _COPY_LIFETIME
        self._stale_copies = 0

    def prepare(self, connection: Connection) -> None:
        """Refuse a role that cannot see other sessions, a replica and a Galera node."""
        _transactions(connection, _clock(connection))
        if connection.execute(_REPLICATION).scalar() or is_galera_node(connection):
            raise NoSoundHorizonError(
                "This server applies rows that another server wrote (replication or Galera): they arrive with old "
                "times and ids, so a poll could skip them. Point the trigger at the one server that takes all writes, "
                "or pass lookback=<seconds> and no horizon to re-read a window here and drop what was delivered."
            )

    def advance(self, connection: Connection) -> Reading:
        """Return the newest sample whose sessions have all ended what they were doing."""
        reading = self._barrier.advance(connection)
        if self._stale_copies < _STALE_COPIES_WORTH_TELLING:
            return reading
        reader = "a session that reads information_schema.innodb_trx more than ten times a second, which stops its copy"
        return replace(reading, held_back_by=(*reading.held_back_by, reader))

    def _look(self, connection: Connection) -> tuple[object, Listing] | None:
        """Sample, list statements, then transactions: a statement that ends in between leaves its transaction behind.

        None when the copy of the transactions is older than the list of statements. It is not asked for again before
        it can have been renewed, and less and less often while others keep it from that.
        """
        if self._sampled is None:
            self._sampled = (self._sample(connection), _statements(connection), _clock(connection))
        position, statements, listed_at = self._sampled
        now = _clock(connection)
        if now - self._asked_at < self._pause:
            return None
        copied_at, transactions = _transactions(connection, now)
        self._asked_at = now
        if copied_at < listed_at:
            self._stale_copies += 1
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            return None
        self._sampled, self._stale_copies, self._pause = None, 0, _COPY_LIFETIME
        return position, _listing(statements, transactions)


class ServerTimeHorizon(SessionBarrier):
    """For a TIMESTAMP or DATETIME the database fills."""

    name = "server_time"

    def __init__(self, facts: CursorFacts, margin: timedelta, declared_zone: str | None = None) -> None:
        super().__init__(self._now)
        self._is_local = facts.holds_local_time("mysql")
        self._declared_zone = declared_zone
        self._digits = facts.digits
        self._margin = margin
        self._whole_days = isinstance(facts.type, Date)

    def prepare(self, connection: Connection) -> None:
        """Refuse what no session barrier can be sound on, and a zone that the server cannot look up."""
        super().prepare(connection)
        self._now(connection)

    def _now(self, connection: Connection) -> object:
        moment: datetime = connection.execute(_UTC_NOW).scalar_one() - self._margin
        if self._is_local:
            self.writers = _local_times(connection, moments_ahead(moment), self._declared_zone)
            moment = self.writers.bound
        return moment.date() if self._whole_days else floor_to_precision(moment, self._digits)


class IdentityHorizon(SessionBarrier):
    """For an AUTO_INCREMENT column."""

    name = "identity"

    def __init__(self, table: Table, facts: CursorFacts) -> None:
        super().__init__(self._highest_id)
        self._table = table
        self._facts = facts

    def _highest_id(self, connection: Connection) -> object:
        quote = connection.dialect.identifier_preparer
        highest = connection.execute(
            text(_HIGHEST_ID.format(column=quote.quote(self._facts.name), table=quote.format_table(self._table)))
        ).scalar()
        return None if highest is None else highest + 1


def _local_times(connection: Connection, moments: Sequence[datetime], declared_zone: str | None) -> LocalTimes:
    """Return the local times of the first of the moments, in the declared zone or else where sessions begin.

    Raises:
        SourceConfigurationError: a zone has a name that the server cannot look up.
    """
    zones = _zones(connection) if declared_zone is None else {declared_zone: declared_zone}
    places = [(zone, moment) for zone in range(len(zones)) for moment in range(len(moments))]
    terms = ", ".join(_LOCAL.format(zone=zone, moment=moment) for zone, moment in places)
    binds: dict[str, object] = {f"moment_{at}": moment for at, moment in enumerate(moments)}
    binds |= {f"zone_{at}": _UTC if zone == UTC_ZONE else zone for at, zone in enumerate(zones)}
    row = connection.execute(text(f"SELECT {terms}"), binds).one()
    found = [
        ZoneTime(title, *_local_and_earliest(zone, row[at * len(moments) : (at + 1) * len(moments)]))
        for at, (zone, title) in enumerate(zones.items())
    ]
    return local_times(found, is_declared=declared_zone is not None)


def _zones(connection: Connection) -> dict[str, str]:
    """Return the zones in which sessions begin, with what people call them."""
    of_server, of_system, for_new_sessions = connection.execute(_ZONES).one()
    zones = {UTC_ZONE: UTC_ZONE, of_server: f"SYSTEM ({of_system})" if of_server == "SYSTEM" else of_server}
    return zones | {zone: zone for zone in _ZONE_SET.findall(for_new_sessions or "")}


def _local_and_earliest(zone: str, values: Sequence[datetime | None]) -> tuple[datetime, datetime]:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        raise SourceConfigurationError(
            f"The server cannot look up the time zone '{zone}', so its local time cannot be worked out: its time zone "
            "tables are empty, or lack it. Fill them: mariadb-tzinfo-to-sql /usr/share/zoneinfo | mariadb mysql"
        )
    return known[0], min(known)


def _clock(connection: Connection) -> int:
    return int(connection.execute(_CLOCK).scalar_one())


def _statements(connection: Connection) -> dict[int, Statement]:
    is_mariadb = bool(getattr(connection.dialect, "is_mariadb", False))
    found = connection.execute(_STATEMENTS_MARIADB if is_mariadb else _STATEMENTS_MYSQL)
    return {thread: Statement(number, float(seconds)) for thread, number, seconds in found}


def _transactions(connection: Connection, clock: int) -> tuple[int, list[Any]]:
    """Return when the copy was asked for that InnoDB answered from, and its transactions.

    Raises:
        MissingGrantError: the user has no PROCESS privilege; the message says what to grant.
    """
    try:
        connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        rows = list(connection.exec_driver_sql(_TRANSACTIONS.format(clock=clock)))
        connection.exec_driver_sql("ROLLBACK")
    except BaseException as error:
        if kind_of(error) is Kind.DENIED:
            raise _missing_grant(connection) from error
        connection.invalidate()  # a transaction left open here would show every later page as of now
        raise
    asked = [int(found[1]) for row in rows if (found := _ASKED_AT.search(row[5] or ""))]
    return max(asked, default=0), rows


def _missing_grant(connection: Connection) -> MissingGrantError:
    connection.exec_driver_sql("ROLLBACK")
    user = str(connection.exec_driver_sql("SELECT CURRENT_USER()").scalar())
    return MissingGrantError(
        f"User {user} cannot see other sessions, so a late commit could be skipped. Run as an administrator: "
        f"GRANT PROCESS ON *.* TO {_quoted_account(user)}"
    )


def _quoted_account(account: str) -> str:
    name, _, host = account.rpartition("@")
    return f"'{name}'@'{host}'"


def _listing(statements: dict[int, Statement], rows: Sequence[Any]) -> Listing:
    writing = [(row[0], Transaction(int(row[1]), row[2], float(row[3]))) for row in rows if not row[4]]
    return Listing(
        statements,
        {thread: transaction for thread, transaction in writing if thread},
        {transaction.number: transaction for thread, transaction in writing if not thread},
        frozenset(row[0] for row in rows if row[4]),
    )


def busy_sessions(listing: Listing) -> Waiting:
    """Return every session that was running a statement or had a transaction open, unless it could only read."""
    busy = [
        _busy(thread, listing.statements.get(thread), listing.transactions.get(thread))
        for thread in sorted({*listing.statements, *listing.transactions} - listing.readers)
    ]
    return (*busy, *_busy_orphans(listing))


def _busy(thread: int, statement: Statement | None, transaction: Transaction | None) -> Busy:
    seconds = max(part.seconds for part in (statement, transaction) if part is not None)
    return Busy(thread, None if statement is None else statement.number, transaction, seconds)


def _busy_orphans(listing: Listing) -> list[Busy]:
    return [_busy(0, None, orphan) for orphan in listing.orphans.values()]


def still_busy(waiting: Waiting, listing: Listing) -> Waiting:
    """Return those that have not ended. A session that is gone may have left an XA transaction behind."""
    orphans = {busy for busy in waiting if not busy.thread}
    kept = [_after_a_look(busy, listing) for busy in waiting if busy.thread]
    remaining = [busy for busy in kept if busy is not None]
    known = {busy.transaction.number for busy in orphans if busy.transaction is not None}
    has_lost_one = len(remaining) < len(kept)
    remaining += [
        busy
        for number, busy in zip(listing.orphans, _busy_orphans(listing), strict=True)
        if has_lost_one or number in known
    ]
    return tuple(remaining)


def _after_a_look(busy: Busy, listing: Listing) -> Busy | None:
    """Return who is left to wait for.

    Writes below the sample are in the transaction that was open, or in the one the listed statement opens. Inside a
    stored function the server shows its inner statements under other numbers, so a number that changed proves nothing
    until there is a transaction: only a session seen without a statement has surely ended the listed one.
    """
    running, present = listing.statements.get(busy.thread), listing.transactions.get(busy.thread)
    if busy.transaction is None:
        if present is not None:
            return replace(busy, transaction=present)
        return busy if running is not None and busy.thread not in listing.readers else None
    if present is not None and present.started == busy.transaction.started:
        return busy
    is_same_statement = running is not None and running.number == busy.statement
    return busy if is_same_statement else None


def _describe(waiting: Waiting) -> tuple[str, ...]:
    return tuple(
        f"session {busy.thread}, busy for {busy.seconds:.0f} s" if busy.thread else "a prepared XA transaction"
        for busy in sorted(waiting, key=lambda busy: -busy.seconds)
    )
