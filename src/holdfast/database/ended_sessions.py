"""Pools that notice, without asking the server, which sessions are of no use any more.

Two kinds are: a session that the server has ended while nobody used it, and one that takes no writes. The latter may be
with a former primary, and would go on refusing every write long after the fail-over; its database may also have been
made to give out read-only sessions, or be a node that has left its cluster. Whoever asks the pool next gets a session
that is made then, to whichever server the address leads now.
"""

from __future__ import annotations

import select
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine, ExceptionContext
from sqlalchemy.exc import DisconnectionError, InvalidatePoolError

from .errors import Kind, kind_of

_WAS_USED = "holdfast_was_used"
_IS_READ_ONLY = "holdfast_is_read_only"
_OF_NO_USE = (Kind.READ_ONLY, Kind.NOT_READY)


def replace_ended_sessions(engine: Engine) -> Engine:
    """Have the pool make a new session in place of one whose server has hung up, or said something unasked.

    So nothing is sent on it, and nobody has to wonder what became of that. Not for sessions that LISTEN.
    """
    driver = engine.dialect.driver
    if driver in ("psycopg", "pymysql") and hasattr(select, "poll") and not event.contains(engine, "checkout", _look):
        event.listen(engine, "checkout", _look)
    return engine


def _look(dbapi_connection: Any, record: Any, _proxy: object) -> None:
    if record.info.get(_WAS_USED) and _has_news(dbapi_connection):
        raise DisconnectionError("The server has ended the session.")  # the pool makes another one
    record.info[_WAS_USED] = True


def _has_news(dbapi_connection: Any) -> bool:
    """Return whether something lies there unread: on an idle session, that is its end."""
    poll = select.poll()
    try:
        poll.register(getattr(dbapi_connection, "_sock", dbapi_connection), select.POLLIN)
    except Exception:  # closed already, in the words of whichever driver
        return True
    return bool(poll.poll(0))


def replace_read_only_sessions(engine: Engine) -> Engine:
    """Have the pool make new sessions, in place of all it has, once one of them has refused a write."""
    if engine.dialect.name != "sqlite" or engine.url.database not in (None, "", ":memory:"):  # that is its session
        event.listen(engine, "handle_error", _note_read_only)
        event.listen(engine, "checkout", _leave_read_only)
    return engine


def _note_read_only(failure: ExceptionContext) -> None:
    connection = failure.connection
    if connection is not None and not connection.closed and kind_of(failure.original_exception) in _OF_NO_USE:
        connection.info[_IS_READ_ONLY] = True


def _leave_read_only(_dbapi_connection: object, record: Any, _proxy: object) -> None:
    if record.info.pop(_IS_READ_ONLY, False):
        raise InvalidatePoolError("The session takes no writes.")  # and those beside it are of the same age
