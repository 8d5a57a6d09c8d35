"""How long a transaction may stand open while its process says nothing: one that froze must not hold up the others.

The server ends a transaction on which nothing was said for one lease. A process that lives says something now and then
on the transactions of handlers that are busy elsewhere, with an HTTP call, say; a frozen one cannot.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from sqlalchemy.engine import Connection

from ..core.clock import SystemClock
from ..database.deadlines import ANSWER_SECONDS, say_briefly
from ..database.drivers import turns_of
from .lent_connection import LentConnection

if TYPE_CHECKING:
    from .transaction import HandlerTransaction

_LIMIT = "holdfast_idle_seconds"
_BEFORE = "holdfast_idle_seconds_before"
_PER_LEASE = 3
_LEAST_PAUSE_SECONDS = 0.05
_log = logging.getLogger("holdfast")
_clock = SystemClock()


def limit_idle_time(connection: Connection, seconds: float) -> None:
    """Have the server end this transaction once nothing was said on it for so long. SQLite cannot.

    MariaDB and MySQL count whole seconds and are set once per session, until ``lift_limit``; PostgreSQL's is set in
    each transaction.
    """
    match connection.dialect.name:
        case "postgresql":
            connection.execute(
                text("SELECT set_config('idle_in_transaction_session_timeout', :limit, true)"),
                {"limit": str(idle_milliseconds(seconds))},
            )
        case "mysql" | "mariadb":
            _limit_session(connection, max(1, math.ceil(seconds)))


def idle_milliseconds(seconds: float) -> int:
    """Return a limit as PostgreSQL takes it: zero would mean none."""
    return max(1, int(1000 * seconds))


def _limit_session(connection: Connection, seconds: int) -> None:
    if connection.info.get(_LIMIT) != seconds:
        setting = _setting(connection)
        if _BEFORE not in connection.info:
            connection.info[_BEFORE] = int(connection.execute(text(f"SELECT @@SESSION.{setting}")).scalar_one())
        connection.execute(text(f"SET SESSION {setting} = :seconds"), {"seconds": seconds})
        connection.info[_LIMIT] = seconds


def lift_limit(connection: LentConnection) -> None:
    """Leave the session as it was: whoever gets it from its pool next may idle as long as ever."""
    if connection.dialect.name in ("mysql", "mariadb") and connection.info.pop(_LIMIT, None) is not None:
        with closing(connection.driver.cursor()) as cursor:
            cursor.execute(f"SET SESSION {_setting(connection)} = {connection.info[_BEFORE]}")


def _setting(connection: Connection) -> str:
    return "idle_transaction_timeout" if getattr(connection.dialect, "is_mariadb", False) else "wait_timeout"


class Pulse:
    """Says something on every open transaction of this process three times per lease, from a thread of its own.

    The thread is there while transactions are. One that does not come back from a transaction, because its network
    swallows everything, is left there, and another goes on with the rest.
    """

    def __init__(self) -> None:
        self.forget_everything()

    def forget_everything(self) -> None:
        """Begin anew. A fork copies the transactions, not the thread."""
        self._lock = threading.Lock()
        self._open: dict[HandlerTransaction, float] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._rests_until = 0.0

    @property
    def is_alive(self) -> bool:
        """Return whether its thread lives, while transactions are open."""
        with self._lock:
            return not self._open or bool(self._thread and self._thread.is_alive())

    def add(self, transaction: HandlerTransaction) -> None:
        """Take a transaction in, from its opening on."""
        with self._lock:
            due_at = self._open[transaction] = _next_time(transaction)
            if self._thread is None:
                self._start()  # again, if no thread could be had before
            elif due_at < self._rests_until:
                self._wake.set()

    def remove(self, transaction: HandlerTransaction) -> None:
        """Let go of a transaction that ends."""
        with self._lock:
            self._open.pop(transaction, None)
            if self._open and self._thread is None:
                self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="holdfast-pulse", daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:
            _log.warning("No thread can be had to keep open transactions alive; the next one to open tries again")

    def _run(self) -> None:
        try:
            self._keep_saying()
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _keep_saying(self) -> None:
        while (pause := self._pause()) is not None:
            _clock.wait(self._wake, pause)
            self._wake.clear()
            for transaction in self._due():
                self._without_waiting(transaction.say_something)

    def _pause(self) -> float | None:
        """Return how long to wait for the next one; None, and the thread ends, when nothing was open for a lease."""
        with self._lock:
            if not self._open:
                self._thread = None
                return None
            self._rests_until = min(self._open.values())
            return max(_LEAST_PAUSE_SECONDS, self._rests_until - _clock.monotonic())

    def _due(self) -> list[HandlerTransaction]:
        now = _clock.monotonic()
        with self._lock:
            over = [each for each in self._open if not each.is_held]
            for each in over:  # another may have its work by now: the server ends what this one left open
                del self._open[each]
            due = [each for each, at in self._open.items() if at <= now]
            for each in due:
                self._open[each] = _next_time(each)
        return due

    def _without_waiting(self, say: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            try:
                say()
            except Exception:
                _log.debug("Nothing could be said on an open transaction", exc_info=True)
            finally:
                done.set()

        try:
            threading.Thread(target=run, name="holdfast-pulse-step", daemon=True).start()
        except RuntimeError:  # no thread can be had: here it may have to be waited for
            run()
        done.wait(_LEAST_PAUSE_SECONDS)


def _next_time(transaction: HandlerTransaction) -> float:
    return _clock.monotonic() + transaction.lease_seconds / _PER_LEASE


def say_something(connection: LentConnection) -> None:
    """Send an empty statement on an idle transaction. Never while the handler, or its driver, is using it."""
    if not connection.in_use.acquire(blocking=False):
        return
    try:
        if connection.dialect.driver == "psycopg":
            _say_on_psycopg(connection)
        elif connection.dialect.driver == "pymysql":
            _say_on_pymysql(connection.driver)
    finally:
        connection.in_use.release()


def _say_on_psycopg(connection: LentConnection) -> None:
    from psycopg.pq import TransactionStatus  # an optional driver, which is there when its connection is

    driver = connection.driver
    if driver.lock.acquire(blocking=False):  # held: a statement is on its way, and the server counts nothing
        try:
            if driver.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                say_briefly(driver, b"SELECT 1")
        finally:
            driver.lock.release()


def _say_on_pymysql(driver: Any) -> None:
    turns = turns_of(driver)  # None: only SQLAlchemy uses it, which is waited for already
    if turns is None or turns.acquire(blocking=False):
        try:
            if not getattr(driver._result, "unbuffered_active", False):
                _ping(driver)
        finally:
            if turns is not None:
                turns.release()


def _ping(driver: Any) -> None:
    before = driver._read_timeout
    driver._read_timeout = before or ANSWER_SECONDS
    try:
        driver.ping(reconnect=False)
    finally:
        driver._read_timeout = before


pulse = Pulse()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pulse.forget_everything)
