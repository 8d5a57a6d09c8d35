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
from typing import Protocol

from sqlalchemy import text
from sqlalchemy.engine import Connection

from ..core.clock import SystemClock
from .lent_connection import LentConnection

_LIMIT = "holdfast_idle_seconds"
_PER_LEASE = 3
_LEAST_PAUSE_SECONDS = 0.05
_log = logging.getLogger("holdfast")
_clock = SystemClock()


def limit_idle_time(connection: Connection, seconds: float) -> None:
    """Have the server end this transaction once nothing was said on it for so long. SQLite cannot.

    MariaDB and MySQL count whole seconds and are told once per session; PostgreSQL is told in each transaction.
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
    """Return a limit as PostgreSQL is told it: zero would mean none."""
    return max(1, int(1000 * seconds))


def _limit_session(connection: Connection, seconds: int) -> None:
    if connection.info.get(_LIMIT) != seconds:
        setting = "idle_transaction_timeout" if getattr(connection.dialect, "is_mariadb", False) else "wait_timeout"
        connection.execute(text(f"SET SESSION {setting} = :seconds"), {"seconds": seconds})
        connection.info[_LIMIT] = seconds


class Idling(Protocol):
    """An open transaction that may idle while its handler lives."""

    @property
    def lease_seconds(self) -> float:
        """Return how long the server lets it idle."""
        ...

    @property
    def is_held(self) -> bool:
        """Return whether its work is still this process's to do."""
        ...

    def say_something(self) -> None:
        """Start the server's count anew, unless a statement runs anyway."""
        ...


class Pulse:
    """Says something on every open transaction of this process three times per lease, from a thread of its own.

    The thread is there while transactions are. One that does not come back from a transaction, because its network
    swallows everything, is left there, and another goes on with the rest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Idling, float] = {}
        self._thread: threading.Thread | None = None
        self._process = 0
        self._wake = threading.Event()
        self._rests_until = 0.0

    def add(self, transaction: Idling) -> None:
        """Take a transaction in, from its opening on."""
        with self._lock:
            if self._process != os.getpid():  # a fork copies the transactions, not the thread
                self._open, self._thread, self._process = {}, None, os.getpid()
            due_at = self._open[transaction] = _next_time(transaction)
            if self._thread is None:
                self._start()
            elif due_at < self._rests_until:
                self._wake.set()

    def remove(self, transaction: Idling) -> None:
        """Let go of a transaction that ends."""
        with self._lock:
            self._open.pop(transaction, None)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="holdfast-pulse", daemon=True)
        self._thread.start()

    def _run(self) -> None:
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

    def _due(self) -> list[Idling]:
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

        threading.Thread(target=run, name="holdfast-pulse-step", daemon=True).start()
        done.wait(_LEAST_PAUSE_SECONDS)


def _next_time(transaction: Idling) -> float:
    return _clock.monotonic() + transaction.lease_seconds / _PER_LEASE


def say_something(connection: LentConnection) -> None:
    """Send an empty statement on an idle transaction. Never while the handler, or its driver, is using it."""
    if not connection.in_use.acquire(blocking=False):
        return
    try:
        if connection.dialect.driver == "psycopg":
            _say_on_psycopg(connection)
        elif connection.dialect.driver == "pymysql" and not connection.has_raw_users:
            _say_on_pymysql(connection)
    finally:
        connection.in_use.release()


def _say_on_psycopg(connection: LentConnection) -> None:
    from psycopg.pq import TransactionStatus  # an optional driver, which is there when its connection is

    driver = connection.driver
    if driver.lock.acquire(blocking=False):  # held: a statement is on its way, and the server counts nothing
        try:
            if driver.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                driver.pgconn.exec_(b"SELECT 1")
        finally:
            driver.lock.release()


def _say_on_pymysql(connection: LentConnection) -> None:
    driver = connection.driver
    if not getattr(driver._result, "unbuffered_active", False):
        driver.ping(reconnect=False)


pulse = Pulse()
