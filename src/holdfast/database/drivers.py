"""The driver's own connection under one of SQLAlchemy's: for Holdfast's statements, and shared between threads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy.engine import Connection

_TALKING = ("query", "ping", "commit", "rollback", "begin", "autocommit", "select_db", "next_result", "kill", "close")
_TURNS = "holdfast_turns"


def driver_of(connection: Connection) -> Any:
    """Return the driver's connection for statements of Holdfast's own, which end no transaction.

    A connection that a handler was lent does not take this for the handler's use of it (``LentConnection.connection``).
    """
    lent = getattr(connection, "own_driver", None)
    return connection.connection.driver_connection if lent is None else lent


def say_at_once(driver: Any, sql: str) -> None:
    """Execute a text of Holdfast's own, without parameters or rows, past psycopg's cursors: they take longer than it.

    psycopg begins no transaction before it: the text does that itself where there is none.

    Raises:
        psycopg.Error: as its cursors do.
    """
    from psycopg import errors, pq  # an optional driver, which is there when its connection is

    with driver.lock:
        result = driver.pgconn.exec_(sql.encode())
    if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        raise errors.error_from_result(result, driver.info.encoding)


def beginning(driver: Any) -> str | None:
    """Return what psycopg begins a transaction with; None when only it knows, or one is begun."""
    if (
        driver.autocommit
        or driver.read_only is not None
        or driver.deferrable is not None
        or driver.pgconn.transaction_status
    ):
        return None
    level = driver.isolation_level
    return "BEGIN" if level is None else f"BEGIN ISOLATION LEVEL {level.name.replace('_', ' ')}"


def let_take_turns(driver: Any) -> None:
    """Have threads that use a connection of PyMySQL take turns, command by command; psycopg does so by itself.

    It stays so: not for connections that go back to a pool.
    """
    if not hasattr(driver, _TURNS):
        kind: type = type(driver)
        setattr(driver, _TURNS, threading.RLock())
        driver.__class__ = _taking_turns(kind)


def turns_of(driver: Any) -> Any:
    """Return the lock of a connection whose users take turns; None of another one."""
    return getattr(driver, _TURNS, None)


@functools.cache
def _taking_turns(kind: type) -> type:
    names = (*_TALKING, "set_charset", "set_character_set")
    return type(kind.__name__, (kind,), {name: _in_turn(getattr(kind, name)) for name in names if hasattr(kind, name)})


def _in_turn(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def take_turn(driver: Any, *arguments: Any, **options: Any) -> Any:
        with turns_of(driver):
            return command(driver, *arguments, **options)

    return take_turn
