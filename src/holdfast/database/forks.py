"""What a child of ``fork()`` may use: connections of its own.

A fork copies the sockets of all connections, and two processes that talk on one commit each other's transactions and
read each other's answers. So in the child every connection that the parent had open loses its socket before anybody can
use it, pools begin anew, and whoever still has a connection that was borrowed before the fork is refused.

SQLite keeps its locks per process, and does not ask the system for one that it believes to have: no connection to it
may be open while a process forks. Those at rest are closed before; one that is in use cannot be, and then the child may
not use the file.
"""

from __future__ import annotations

import os
import socket
import weakref
from contextlib import suppress
from typing import Any, NoReturn

from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool
from sqlalchemy.util import queue

from ..core.errors import DbConnectionError

_BORROWED = (
    "This connection was borrowed before the process forked, so it is the parent's. Borrow connections in the process "
    "that uses them."
)
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_entries: weakref.WeakKeyDictionary[ConnectionPoolEntry, str | None] = weakref.WeakKeyDictionary()
_connections: weakref.WeakSet[Any] = weakref.WeakSet()
_of_the_parent: list[object] = []  # kept, so that nothing is said on them when they would be destroyed
_taken_files: set[str] = set()


def begin_anew_after_forks(engine: Engine) -> Engine:
    """Have the children of this process leave the connections of an engine alone and make their own."""
    _engines.add(engine)
    file = _file_of(engine)

    def note(dbapi_connection: Any, entry: ConnectionPoolEntry) -> None:
        _entries[entry] = file
        with suppress(TypeError):  # a driver's that cannot be referred to weakly is found by its entry
            _connections.add(dbapi_connection)

    event.listen(engine, "connect", note)
    if file is not None:
        event.listen(engine, "do_connect", _refuse_taken_file)
    return engine


class _OfTheParent:
    """Stands in a child for a connection that was borrowed before the fork."""

    def rollback(self) -> None:
        """Do nothing: the transaction is the parent's."""

    def close(self) -> None:
        """Do nothing: the connection is the parent's."""

    def __getattr__(self, name: str) -> NoReturn:
        raise DbConnectionError(_BORROWED)


def _file_of(engine: Engine) -> str | None:
    """Return the SQLite file of an engine that has one."""
    path = engine.url.database
    is_file = engine.dialect.name == "sqlite" and path and path != ":memory:" and isinstance(engine.pool, QueuePool)
    return path if is_file else None


def _refuse_taken_file(_dialect: object, _entry: object, arguments: list[Any], _options: dict[str, Any]) -> None:
    if _taken_files and arguments and arguments[0] in _taken_files:
        raise DbConnectionError(
            f"A connection to the SQLite file '{arguments[0]}' was in use when this process was forked, and SQLite's "
            "locks do not outlive that. Fork while nothing is in use, or start processes with 'spawn'."
        )


# In the parent


def _rest_before_fork() -> None:
    """Close the SQLite connections that are at rest; they are opened again when they are needed."""
    for engine in list(_engines):
        if _file_of(engine) is not None:
            _close_resting(engine.pool)


def _close_resting(pool: Any) -> None:
    resting = []
    with suppress(queue.Empty):
        while True:
            resting.append(pool._pool.get(False))
    for entry in resting:
        with suppress(Exception):
            entry.close()
        pool._do_return_conn(entry)


# In the child


def _begin_anew() -> None:
    _taken_files.update(file for entry, file in _entries.items() if file and _is_open(entry))
    for connection in list(_connections):
        _unplug(connection)
    for entry in list(_entries):
        _refuse_borrowed(entry)
    _connections.clear()
    _entries.clear()
    for engine in list(_engines):
        engine.dispose(close=False)


def _is_open(entry: Any) -> bool:
    return entry.dbapi_connection is not None


def _unplug(connection: Any) -> None:
    """Take its socket from a connection, and let it go without a word to the server."""
    _of_the_parent.append(connection)
    with suppress(Exception):  # it has no socket, or was closed before
        descriptor = getattr(connection, "_sock", connection).fileno()
        here, there = socket.socketpair()
        with here:
            there.close()
            os.dup2(here.fileno(), descriptor, inheritable=False)
        connection.close()


def _refuse_borrowed(entry: Any) -> None:
    """Let a connection that is in use be refused from now on; one at rest goes with its pool."""
    _of_the_parent.append(entry.dbapi_connection)
    fairy = None if entry.fairy_ref is None else entry.fairy_ref()
    entry.dbapi_connection = None if fairy is None else _OfTheParent()
    if fairy is not None:
        fairy.dbapi_connection = entry.dbapi_connection


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_rest_before_fork, after_in_child=_begin_anew)
