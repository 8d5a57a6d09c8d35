"""The handler's transaction: opened on first use, lent to the handler, proved to be whole, and ended by Holdfast.

Every workload that gives its handlers ``context.transaction`` uses this one, in this order:

1. BEGIN, and the server ends it if its process freezes;
2. the workload's *check* looks at the progress row, and locks it where a lock does not stop the heartbeats; a stale
   holder gets no transaction; ``SAVEPOINT`` (on PostgreSQL it goes out with the first step, to save a round trip);
3. the statements of the handler;
4. ``RELEASE SAVEPOINT``: the proof. It fails after every way of ending a transaction, by whomever, and only then;
5. the workload's *record*: position, completion or history, fenced by the token, as the last statements; COMMIT.

A handler that ended the transaction itself may have kept a part of its effects: nothing further is written, and its
work is neither recorded as done nor repeated by itself [TRANSACTION-1]. The steps are written once, over a SQLAlchemy
connection: handlers on threads use it as it is, ``async def`` handlers through ``async_transaction``.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

from sqlalchemy.engine import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError

from ..core.blocking_calls import one_thread
from ..core.clock import new_id
from ..core.errors import (
    Ambiguous,
    DbError,
    HandlerError,
    LostLeaseError,
    TransactionEndedError,
    Unavailable,
    UndoneError,
)
from ..database.connection_slots import Slots
from ..database.deadlines import ANSWER_SECONDS, set_deadline
from ..database.drivers import beginning, say_at_once
from ..database.error_text import public_error_text
from ..database.errors import Kind, is_the_clients, kind_of, reason, spoils_transaction
from ..database.pools import autocommit, said, writing
from ..database.sockets import cut_off
from .awaited import UnfinishedCalls, forgotten
from .idle_time import idle_milliseconds, lift_limit, limit_idle_time, pulse, say_something
from .lent_connection import OVER, UNDONE, LentConnection
from .refusals import passing_of, refuses_commit, refuses_record

_log = logging.getLogger("holdfast")
_Result = TypeVar("_Result")
_STATEMENT_SECONDS = 10.0
_BREAK_SECONDS = 5.0
_SAVEPOINT = f"holdfast_{new_id(12)}"  # nobody else's name; one per process, so that servers see few statements
_FATE = "SELECT pg_xact_status(CAST(CAST(%(id)s AS text) AS xid8))"

ENDED = (
    "The handler ended context.transaction itself, so what it wrote before may be kept without being recorded as done. "
    "It is not repeated by itself: look at what was kept, mend it, then let it run again. Leave commit and rollback to "
    "Holdfast: return to commit, raise to roll back"
)

UNUSABLE = (
    "Holdfast's tables could not be used in context.transaction as the handler left it, so nothing was kept. Take back "
    "in the handler what it changed of its session, such as the role or the search_path"
)
GONE = "The connection of context.transaction broke, so nothing was kept."
LOST = "Its lease was lost, so the connection of context.transaction was cut, and nothing was kept."
PASSED = "The database could not do what context.transaction asked of it, so nothing was kept"


def _nothing() -> None:
    """Take nothing back."""


class Verdict(Enum):
    """What became of a transaction while its handler had it."""

    WHOLE = "whole"
    UNDONE = "undone by the database: nothing was kept"
    ENDED = "ended by the handler: a part may have been kept"
    GONE = "its connection broke: the server has undone it"
    OVERTAKEN = "undone by the database for another node's transaction"


Check = Callable[[Connection], str | None]
"""Looks whether the work is still ours, and locks its progress row where that can be; raises when it is not.

Returns the transaction's id on PostgreSQL, where its fate can be asked for by that, None elsewhere.
"""


class HandlerTransaction:
    """The transaction of one piece of work.

    Args:
        engine: where it is opened.
        lease_seconds: how long the lease lasts that the work is done under.
        check: the workload's first statement.
        protect: called with True once a SQLite transaction holds the write lock, with False when it has ended: no
            heartbeat can be written in between, nor can anyone else take the lease.
        is_held: returns whether the lease is believed to be ours.
        when_lost: calls a function once that lease is lost, and returns what takes that back.
        title: whose it is, as people call it.
        places: what to wait for before it is opened; None to open it at once.
    """

    def __init__(
        self,
        engine: Engine,
        lease_seconds: float,
        *,
        check: Check | None = None,
        protect: Callable[[bool], None] = lambda is_locked: None,
        is_held: Callable[[], bool] = lambda: True,
        when_lost: Callable[[Callable[[], None]], Callable[[], None]] | None = None,
        title: str = "a handler",
        places: Slots | None = None,
    ) -> None:
        self._engine = engine
        self.lease_seconds = lease_seconds
        self._check = check
        self._protect = protect
        self._is_held = is_held
        self._places = places
        self._place_lock = threading.Lock()
        self._has_place = places is None
        self._connection: LentConnection | None = None
        self._transaction: RootTransaction | None = None
        self._transaction_id: str | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._in_use = threading.RLock()
        self._proved: Verdict | None = None
        self.calls = UnfinishedCalls()
        """Those of an ``async def`` handler."""
        self._has_ended = False
        self._is_broken = False
        self._is_settling = False
        self._is_lost = False
        self._title = title
        self._not_opened: BaseException | None = None
        self._forget_lease = _nothing if when_lost is None else when_lost(self.lose)

    # The handler's side

    @property
    def is_used(self) -> bool:
        """Return whether the handler asked for the connection, or would have if it had awaited its call."""
        return self._connection is not None or self.calls.have_unbegun

    @property
    def connection(self) -> LentConnection:
        """Return the connection, opening it and its transaction on first use.

        Raises:
            HandlerError: the work has ended, so nothing written now could commit with it.
        """
        self._require_open()
        if not self._has_place and self._places is not None:
            self._places.take()
            self._keep_place()
        if self._connection is None:
            self._open()
            self._require_uncut()
        assert self._connection is not None
        return self._connection

    def _require_uncut(self) -> None:
        """Let go of a connection that was opened while it was cut off."""
        if self._is_broken:
            self._let_go()
            raise HandlerError(OVER)

    def lend(self, function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
        """Call a function with the connection. If the work ends meanwhile, it is left to this thread to let go."""
        with self._in_use:
            try:
                connection = self.connection
                connection.go_on_here()
                return function(connection, *args, **kwargs)
            finally:
                if self._has_ended:
                    self._let_go()

    async def thread(self) -> Executor:
        """Return the thread for the next step, which no other transaction uses; wait on the event loop for a place."""
        self._require_open()
        if not self._has_place and self._places is not None:
            await self._places.take_async()
            self._keep_place()
        if self._thread is None:
            self._thread = one_thread()
        return self._thread

    # Holdfast's side

    def settle(self, record: Callable[[Connection], None]) -> None:
        """Prove that it is whole, record the work as done by the last statements, and commit both.

        If the process dies in here, both are kept or neither is.

        Raises:
            TransactionEndedError: the handler ended it itself; nothing further was written.
            HandlerError: nothing was kept, and that is the handler's doing.
            UndoneError: nothing was kept, and the database is why; the same may work later.
            Ambiguous: the COMMIT was not answered; both were kept or neither was.
        """
        self._require_awaited()
        self._is_settling = True
        with self._in_use:
            connection = self._taken_back()
            self._require_whole(connection)
            self._record(connection, record)
        self._commit()

    def settle_or_look(self, record: Callable[[Connection], None], has_landed: Callable[[], bool]) -> None:
        """Settle, and where the COMMIT was not answered, look whether it landed.

        Raises:
            TransactionEndedError, HandlerError: as ``settle`` does.
            UndoneError: nothing was kept.
        """
        try:
            self.settle(record)
        except (Ambiguous, Unavailable) as error:
            if not (isinstance(error, Ambiguous) and has_landed()):
                raise UndoneError(f"The commit failed, and everything was undone: {error}") from error

    def _require_awaited(self) -> None:
        """Refuse to call done what a handler forgot to await."""
        unbegun = [name for name, was_begun in self.calls.drop() if not was_begun]
        if unbegun:
            raise HandlerError(f"{forgotten(f'context.transaction.{unbegun[0]}')}. Nothing was kept.")

    def _record(self, connection: LentConnection, record: Callable[[Connection], None]) -> None:
        try:
            record(connection)
        except (DbError, DBAPIError) as error:
            said = refuses_record(error)
            if said is None:
                raise
            self._is_broken = True  # its session is not as it was
            raise HandlerError(f"{UNUSABLE}: {said}.") from error

    def undo(self) -> None:
        """Keep nothing of what the handler wrote.

        Raises:
            TransactionEndedError: the handler ended it itself, so a part may have been kept.
        """
        was_ended = self.was_ended()
        self.close()
        if was_ended:
            raise TransactionEndedError(f"{ENDED}.")

    def was_ended(self) -> bool:
        """Return whether the handler has ended the transaction itself, so that a part may have been kept."""
        if not self.is_used or not self._is_at_rest():
            return False
        try:
            return self._is_proved_ended()
        finally:
            self._in_use.release()

    def _is_proved_ended(self) -> bool:
        """Look at it at rest; a statement that had to be broken off took the connection with it."""
        return self._connection is not None and self._verdict(self._taken_back()) is Verdict.ENDED

    def has_met(self, error: BaseException) -> bool:
        """Return whether an error is one of the transaction's own connection, or of opening it."""
        met = None if self._connection is None else self._connection.met
        return error is self._not_opened or (met is not None and met in (error, getattr(error, "orig", None)))

    @property
    def is_cut_off(self) -> bool:
        """Return whether the connection broke, or was cut because the lease was lost."""
        if self._is_lost or self._proved is Verdict.GONE:
            return True
        return self._connection is not None and self._connection.invalidated

    @property
    def gone(self) -> str:
        """Return what people are told of a connection that is cut off."""
        return LOST if self._is_lost else GONE

    @property
    def is_held(self) -> bool:
        """Return whether its work is still this process's to do."""
        return self._is_held() and not self._has_ended

    def say_something(self) -> None:
        """Keep the server from taking a handler that is busy elsewhere for frozen."""
        connection = self._connection
        if connection is not None and not connection.closed and not connection.invalidated:
            say_something(connection)

    def cut(self) -> None:
        """End the transaction under a handler that does not end: its statements fail from now on, and nothing commits.

        Called from another thread. Its place is free at once; the driver's connection is thrown away when the handler
        lets go of it.
        """
        self._has_ended = self._is_broken = True
        connection = self._connection  # whoever has it may let go of it at any moment
        if connection is not None:
            _cut(connection)
            if _undo_on_sqlite(connection):
                self._protect(False)
            self._give_place_back()

    def lose(self) -> None:
        """Cut it, on a thread of its own, because its lease was lost: another process may have the work by now.

        Not while it is being settled: that ends within its deadlines, and is fenced.
        """
        if self._connection is None or self._has_ended or self._is_settling or self._is_lost:
            return
        self._is_lost = True
        _log.warning("The lease of %s was lost while its handler ran: its connection is cut", self._title)
        try:
            threading.Thread(target=self.cut, name="holdfast-cut", daemon=True).start()
        except RuntimeError:  # the machine gives no thread: who tells of the loss must not wait
            _log.warning("No thread can be had to cut it: what it writes is refused when it ends")

    def abandon(self) -> bool:
        """Cut it off under a handler that is left to itself; return whether the handler had ended it before.

        Nothing is said on its connection, which the handler may be using: when in doubt, it had.
        """
        self.cut()
        connection = self._connection
        return connection is not None and self._verdict(connection) is Verdict.ENDED

    def close(self) -> None:
        """End the transaction, if it is still open, without keeping anything. It cannot be used any more.

        A statement that a cancelled handler left running is waited for, but not for ever: then its connection is cut
        off, and whichever thread has it last lets go of it. A connection is never closed under a statement.
        """
        self._has_ended = True
        forget, self._forget_lease = self._forget_lease, _nothing
        forget()
        if self._thread is not None:
            self._thread.shutdown(wait=False)
        if self._is_at_rest():
            try:
                self._let_go()
            finally:
                self._in_use.release()

    # Opening

    def _require_open(self) -> None:
        if self._has_ended:
            raise HandlerError(OVER)

    def _open(self) -> None:
        try:
            connection = self._begun_anew()
        except Exception as error:
            self._not_opened = error
            raise
        self._connection = connection
        connection.lend()
        if self._engine.dialect.name == "sqlite":
            self._protect(True)
        else:
            pulse.add(self)

    def _begun_anew(self) -> LentConnection:
        try:
            return self._begun()
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            return self._begun()  # a pooled connection was dead; nothing was said on it

    def _begun(self) -> LentConnection:
        connection = writing(self._engine, LentConnection)
        connection.in_use = self._in_use
        try:
            connection.begin_ours()
            self._transaction = connection.begin()
            self._say_first(connection)
            if self._check is not None:
                self._transaction_id = self._check(connection)
            if connection.dialect.driver != "psycopg":
                connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        except BaseException as error:
            self._transaction = None
            _give_back(connection, is_broken=isinstance(error, DBAPIError))
            raise
        return connection

    def _say_first(self, connection: LentConnection) -> None:
        """Bound its idle time; on PostgreSQL the savepoint that will prove it whole is set in the same go."""
        if connection.dialect.driver == "psycopg":
            limit = idle_milliseconds(self.lease_seconds)
            _say_begin(connection, f"SET LOCAL idle_in_transaction_session_timeout = {limit}; SAVEPOINT {_SAVEPOINT}")
            return
        if connection.dialect.name in ("mysql", "mariadb"):  # else beats that come meanwhile would be conflicts
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        limit_idle_time(connection, self.lease_seconds)

    # Ending

    def _taken_back(self) -> LentConnection:
        """Take the connection back from the handler: what it left behind cannot slip in any more."""
        if self._connection is None:
            raise UndoneError(LOST) if self._is_lost else HandlerError(OVER)
        self._connection.take_back()
        return self._connection

    def _verdict(self, connection: LentConnection) -> Verdict:
        """Return what became of it. It is proved once: that releases the savepoint."""
        if self._proved is None:
            self._proved = proved(connection, self._was_committed)
            if self._proved is Verdict.ENDED:
                self._is_broken = True  # whatever else the handler did to the session goes with it
                if self._transaction_id is not None:
                    _leave_pool(connection)
                    _undo_prepared(self._engine, self._transaction_id)
        return self._proved

    def _was_committed(self) -> bool | None:
        """Ask for the fate of a transaction whose connection broke; None when nobody can tell."""
        if self._transaction_id is None or self._connection is None:
            return None
        _leave_pool(self._connection)
        try:
            with autocommit(self._engine) as connection:
                set_deadline(connection, ANSWER_SECONDS)
                fate = connection.exec_driver_sql(_FATE, {"id": self._transaction_id}).scalar()
        except Exception:
            _log.debug("What became of a broken transaction could not be asked for", exc_info=True)
            return None
        return bool(fate == "committed")

    def _require_whole(self, connection: LentConnection) -> None:
        match self._verdict(connection):
            case Verdict.ENDED:
                raise TransactionEndedError(f"{ENDED}.")
            case Verdict.UNDONE:
                raise HandlerError(UNDONE)
            case Verdict.GONE:
                raise UndoneError(self.gone)
            case Verdict.OVERTAKEN:
                raise UndoneError(f"{PASSED}.")
        if connection.refusal is not None:
            raise HandlerError(connection.refusal)

    def _commit(self) -> None:
        assert self._transaction is not None
        try:
            self._transaction.commit()
        except DBAPIError as error:
            if error.connection_invalidated:
                raise Ambiguous(f"The commit was not answered: {reason(error)}.") from error
            kind = HandlerError if refuses_commit(error) else UndoneError
            raise kind(f"the database refused the commit, and nothing was kept: {reason(error)}.") from error
        finally:
            self.close()

    def _is_at_rest(self) -> bool:
        """Wait for a statement that the handler left running, break it off when it takes too long; hold the connection.

        Returns False when even that does not end it: then whichever thread has it lets go of it.
        """
        if self._in_use.acquire(timeout=_STATEMENT_SECONDS):
            return True
        self.cut()
        return self._in_use.acquire(timeout=_BREAK_SECONDS)

    def _let_go(self) -> None:
        connection, self._connection, self._transaction = self._connection, None, None
        try:
            if connection is not None:
                pulse.remove(self)
                # SQLAlchemy takes a transaction whose end was refused for ended: its pool would not undo it
                _give_back(connection, is_broken=self._is_broken or connection.refusal is not None)
                if self._engine.dialect.name == "sqlite":
                    self._protect(False)
        finally:
            self._give_place_back()

    def _keep_place(self) -> None:
        self._has_place = True
        if self._has_ended:
            self._give_place_back()
            self._require_open()

    def _give_place_back(self) -> None:
        with self._place_lock:
            had_place, self._has_place = self._has_place, False
        if had_place and self._places is not None:
            self._places.give_back()


def outranking(
    transaction: HandlerTransaction | None, error: BaseException
) -> TransactionEndedError | UndoneError | None:
    """Return the error to go on with instead of what a handler raised, None when that stands.

    One that had ended its transaction would have its work repeated, and a part of its effects may be kept. One whose
    connection broke, or whose database was busy or took no writes for a while, is not to blame.
    """
    if transaction is None or isinstance(error, TransactionEndedError):
        return None
    found: TransactionEndedError | UndoneError
    if transaction.was_ended():
        found = TransactionEndedError(f"{ENDED}. Then it raised {public_error_text(error)}")
    elif transaction.is_cut_off:
        found = UndoneError(f"{transaction.gone} It happened in the handler: {public_error_text(error)}")
    elif (passing := passing_of(error, transaction.has_met)) is not None:
        found = UndoneError(f"{PASSED}: {reason(passing)}.")
    else:
        return None
    found.__cause__ = error
    return found


def after_loss(transaction: HandlerTransaction | None, lost: LostLeaseError) -> TransactionEndedError | LostLeaseError:
    """Return the error to go on with when the lease was lost: the handler may have ended its transaction before."""
    if transaction is None or not transaction.was_ended():
        return lost
    ended = TransactionEndedError(f"{ENDED}. Then its lease was lost")
    ended.__cause__ = lost
    return ended


def left_behind(transaction: HandlerTransaction | None) -> str | None:
    """Cut off a handler that its worker leaves behind; return why its work must not be repeated, None if it may be."""
    if transaction is None or not transaction.abandon():
        return None
    return f"{ENDED}. Then its worker stopped before it had ended"


def proved(connection: LentConnection, was_committed: Callable[[], bool | None]) -> Verdict:
    """Release the savepoint that was set first: only the transaction that was begun has it [TRANSACTION-1].

    Args:
        connection: the connection, taken back from the handler.
        was_committed: tells what became of a transaction whose connection broke, None when nobody knows.
    """
    connection.look()
    if connection.closed or connection.invalidated or connection.is_cut:
        return _broken(connection, was_committed)
    try:
        _say(connection, f"RELEASE SAVEPOINT {_SAVEPOINT}")
    except Exception as failure:  # the driver's own errors, of whichever driver
        if _is_dead(connection, failure):
            connection.look_after_break()
            return _broken(connection, was_committed)
        return _unproved(connection, failure)
    return Verdict.WHOLE


def _broken(connection: LentConnection, was_committed: Callable[[], bool | None]) -> Verdict:
    """Judge what no server can prove any more; when in doubt, the handler may have committed through the driver."""
    if connection.has_ended:
        return Verdict.ENDED
    if not connection.has_raw_users or was_committed() is False:
        return Verdict.GONE
    return Verdict.ENDED


def _unproved(connection: LentConnection, failure: Exception) -> Verdict:
    """Tell what the database undid by itself from what the handler ended; when in doubt, it was the handler."""
    if spoils_transaction(failure):
        with suppress(Exception):
            _say(connection, f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")  # a spoilt transaction still knows its own
            return Verdict.UNDONE
    if connection.has_ended or connection.has_raw_users:
        return Verdict.ENDED
    if kind_of(failure) is Kind.CONTENTION:  # Galera: another node was faster, and here its word comes first
        return Verdict.OVERTAKEN
    if connection.is_undone or (connection.may_be_undone and _undoes_on_timeout(connection)):
        return Verdict.UNDONE
    return Verdict.ENDED


def _undoes_on_timeout(connection: LentConnection) -> bool:
    """Return whether this server undoes everything when a lock was waited for too long, and not the statement only."""
    with suppress(Exception), connection.driver.cursor() as cursor:
        cursor.execute("SELECT @@innodb_rollback_on_timeout")
        return bool(cursor.fetchone()[0])
    return False


def _is_dead(connection: LentConnection, failure: Exception) -> bool:
    """Return whether it was no server that refused the proof: the connection is broken, or was cut."""
    driver = connection.dialect.loaded_dbapi
    if not isinstance(failure, driver.Error) or connection.dialect.is_disconnect(failure, connection.driver, None):
        return True
    return connection.dialect.name != "sqlite" and is_the_clients(failure)


def _say_begin(connection: LentConnection, sql: str) -> None:
    """Begin on PostgreSQL and say the first statements in one go, unless someone listens to statements."""
    begin = None if connection.dispatch.before_cursor_execute else beginning(connection.driver)
    if begin is None:
        said(connection, sql)
        return
    try:
        say_at_once(connection.driver, f"{begin}; {sql}")
    except connection.dialect.loaded_dbapi.Error as error:
        connection._handle_dbapi_exception(error, sql, None, None, None)


def _say(connection: LentConnection, sql: str) -> None:
    """Send a statement past SQLAlchemy, which would begin a transaction of its own if ours had ended."""
    if connection.dialect.driver == "psycopg":
        say_at_once(connection.driver, sql)
        return
    cursor = connection.driver.cursor()
    try:
        cursor.execute(sql)
    finally:
        cursor.close()


def _undo_prepared(engine: Engine, transaction_id: str) -> None:
    """Undo what the handler has prepared for a later commit: it would keep the lock on the progress row for ever."""
    named = "SELECT gid FROM pg_prepared_xacts WHERE transaction::text = (%(id)s::numeric %% 4294967296)::text"
    try:
        with autocommit(engine) as connection:
            for (gid,) in connection.exec_driver_sql(named, {"id": transaction_id}).all():
                quoted = gid.replace("'", "''")
                connection.exec_driver_sql(f"ROLLBACK PREPARED '{quoted}'".replace("%", "%%"))
    except Exception:
        _log.exception("A transaction that a handler had prepared could not be undone")


def _leave_pool(connection: LentConnection) -> None:
    """Throw a connection away whose transaction is over, before its pool is asked for another.

    Where others hold all the rest, each would wait for the one that it holds itself.
    """
    if not (connection.closed or connection.invalidated or connection.is_cut):
        with suppress(Exception):
            connection.invalidate()


def _give_back(connection: LentConnection, *, is_broken: bool) -> None:
    """Roll back and return a connection to its pool, or throw it away. Nothing that fails here matters to anyone."""
    connection.take_back()
    try:
        if connection.is_cut:
            connection.close_driver()
        if is_broken:
            connection.invalidate()
        elif connection.has_lent_driver:
            connection.leave_pool()  # so that it is closed, once everything is undone
        else:
            lift_limit(connection)
        connection.close()
    except Exception:
        _log.debug("A connection could not be rolled back and was thrown away", exc_info=True)
        with suppress(Exception):
            connection.invalidate()
            connection.close()
    finally:
        connection.forget()


def _cut(connection: LentConnection) -> None:
    """Have the thread that waits for a statement's answer get an error, and the server stop it where it can.

    Its pool forgets it, so that another can take its place while the handler has it.
    """
    if connection.is_cut:
        return
    connection.look()
    connection.is_cut = True
    try:
        driver: Any = connection.driver
        connection.leave_pool()
        if isinstance(driver, sqlite3.Connection):
            driver.interrupt()
            return
        if hasattr(driver, "cancel_safe"):
            with suppress(Exception):
                driver.cancel_safe(timeout=_BREAK_SECONDS)
        cut_off(getattr(driver, "_sock", driver).fileno())
    except Exception:
        _log.debug("A statement could not be broken off; its thread ends when it does", exc_info=True)


def _undo_on_sqlite(connection: LentConnection) -> bool:
    """Free SQLite's write lock from another thread, and refuse what the handler would write on the connection later.

    Never under a statement, which was broken off and ends soon: the driver does not survive that.
    """
    if connection.dialect.name != "sqlite" or not connection.in_use.acquire(timeout=_BREAK_SECONDS):
        return False
    try:
        with suppress(Exception):  # it was let go of meanwhile
            connection.driver.rollback()
            connection.driver.execute("PRAGMA query_only = ON")
    finally:
        connection.in_use.release()
    return True
