"""What still waits for a server that hangs, after a fail-over: it is cut once its URL leads to another server.

What a handler asks has no deadline of ours, and its lease may be extended on the new server before it runs out. Nothing
else would then end the wait for an answer that cannot come. Both must be so before anything is cut: a statement of ours
was given up on a server that answered no other one meanwhile, and a connection made later by the same URL went to
another address. A statement that merely waited for a lock is tried again on the same server, and cuts nothing.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from ..core.clock import SystemClock
from .sockets import cut_off

if TYPE_CHECKING:
    import psycopg

_log = logging.getLogger("holdfast.database")
_clock = SystemClock()


class _Sight(NamedTuple):
    """What was seen of a server, and when."""

    server: str
    at: float


_open: WeakValueDictionary[int, psycopg.Connection[Any]] = WeakValueDictionary()
_heard: dict[str, float] = {}
"""When a server answered last."""
_hung: dict[str, _Sight] = {}
"""Which server behind a URL hangs, and since when."""
_made: dict[str, _Sight] = {}
"""Where a URL led last."""


def note_made(where: str, connection: psycopg.Connection[Any]) -> None:
    """Take a new connection in, and cut what waits for another server that hangs."""
    pgconn: Any = connection.pgconn
    server = f"{(pgconn.hostaddr or pgconn.host or b'').decode()}:{pgconn.port.decode()}"
    connection.__dict__.update(where=where, server=server)
    _open[id(connection)] = connection
    _made[where] = _Sight(server, _clock.monotonic())
    _leave(where)


def note_answer(connection: psycopg.Connection[Any]) -> None:
    """Note that the server of a connection lives."""
    server = connection.__dict__.get("server")
    if server is not None:
        _heard[server] = _clock.monotonic()


def note_hung(connection: psycopg.Connection[Any], silent_since: float) -> None:
    """Note that a server gave no answer, and leave it if its URL leads elsewhere by now."""
    where, server = (connection.__dict__.get(name) for name in ("where", "server"))
    if where is not None and server is not None and _heard.get(server, -math.inf) <= silent_since:
        _hung[where] = _Sight(server, silent_since)
        _leave(where)


def _leave(where: str) -> None:
    hung, made = _hung.get(where), _made.get(where)
    if hung is None or made is None or made.at <= hung.at:
        return
    if _hung.pop(where, None) is not None and made.server != hung.server:
        _cut_all(where, hung.server, made.server)


def _cut_all(where: str, hung: str, other: str) -> None:
    """Have whoever waits for a server that hangs get an error now; never blocks."""
    found = [connection for each in _open.valuerefs() if (connection := each()) is not None]
    count = sum(_cut(each) for each in found if (each.__dict__["where"], each.__dict__["server"]) == (where, hung))
    if count:
        _log.warning("%s leads to %s now: its connections to %s, which hangs, are cut (%d)", where, other, hung, count)


def _cut(connection: psycopg.Connection[Any]) -> bool:
    with suppress(Exception):  # it was closed meanwhile
        cut_off(connection.pgconn.socket)
        return True
    return False
