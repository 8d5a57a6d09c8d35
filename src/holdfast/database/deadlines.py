"""How long Holdfast waits for a database: for a connection, and for the answer to a statement of its own.

A server that hangs instead of dying keeps its sockets: its kernel acknowledges every packet, so nothing that the
network notices ever fires, and whoever waits for an answer waits until somebody ends that server. So every answer is
waited for by the client's clock. Once the server has been silent for the deadline, the connection is thrown away
without another word to it, and a line is logged. Whatever is older in any pool goes with it, since that leads to the
same server. What a handler does on its own connection has no deadline of ours: see ``hung_servers``.

The deadline is one of silence: an answer that comes slowly, row by row, is waited for.
"""

from __future__ import annotations

import functools
import logging
import math
import os
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, ExceptionContext
from sqlalchemy.exc import InvalidatePoolError

from ..core.clock import SystemClock
from ..core.config import DbConfig, safe_url
from ..core.patience import is_in_vain, least_seconds
from .drivers import driver_of
from .hung_servers import note_answer, note_hung, note_made
from .sockets import cut_off

if TYPE_CHECKING:
    import psycopg

ANSWER_SECONDS = 10.0
"""How long a statement of ours is waited for: a beat, a claim, a report, a COMMIT."""
LONG_SECONDS = 60.0
"""How long a statement of ours is waited for whose work the user's tables decide: a trigger reading its source."""
_CONNECT_SECONDS = 10
_SECONDS_PER_HOST = 3
_TIMED_OUT = "(timed out)"  # in PyMySQL's error
_LOOK_SECONDS = 0.1  # psycopg's own
_OPTION = "holdfast_answer_seconds"
_USUAL = "holdfast_usual_seconds"
_MADE_AT = "holdfast_made_at"
_LOGGED_AGAIN_SECONDS = 30.0
_log = logging.getLogger("holdfast.database")
_clock = SystemClock()
_Config = TypeVar("_Config", bound=DbConfig)
_Result = TypeVar("_Result")


def answering(config: _Config) -> _Config:
    """Return a configuration for a pool of Holdfast's own: every answer on it is waited for by the clock."""
    options = {**config.engine_kwargs.get("execution_options", {}), _OPTION: ANSWER_SECONDS}
    return replace(config, engine_kwargs={**config.engine_kwargs, "execution_options": options})


def keep_deadlines(engine: Engine) -> Engine:
    """Have connections of an engine be made within seconds, and keep the deadlines that are set on them."""
    if engine.driver == "psycopg":
        event.listen(engine, "do_connect", functools.partial(_connect, safe_url(engine.url)))
        event.listen(engine, "connect", functools.partial(_lift, engine.get_execution_options().get(_OPTION)))
    if engine.driver in _ATTRIBUTES:
        event.listen(engine, "connect", functools.partial(_note_usual, _ATTRIBUTES[engine.driver]))
        event.listen(engine, "checkin", _as_usual)
        event.listen(engine, "checkout", functools.partial(_leave_silent, safe_url(engine.url)))
    if engine.driver == "pymysql":
        event.listen(engine, "handle_error", functools.partial(_note_timeout, safe_url(engine.url)))
    return engine


class Deadline:
    """How long the driver of one connection waits for an answer; for ever, or as its pool has it, once it is lifted."""

    def __init__(self, connection: Connection) -> None:
        self._usual: list[tuple[str, float | None]] = connection.info.get(_USUAL, [])
        self._driver = driver_of(connection) if self._usual else None

    def set(self, seconds: float | None) -> None:
        """Wait so long from now on; None for ever."""
        for name, _ in self._usual:
            setattr(self._driver, name, seconds)

    def lift(self) -> None:
        """Wait as long as the connection did when it was made."""
        for name, value in self._usual:
            setattr(self._driver, name, value)


def set_deadline(connection: Connection, seconds: float | None) -> None:
    """Wait at most so long for each answer on a connection, until it goes back to its pool; None for ever."""
    Deadline(connection).set(seconds)


def limited(connection: Connection) -> Connection:
    """Return a connection for statements of ours; in a pool that handlers use, too, it has a deadline until it is back.

    There the user's tables may decide how long a statement takes, so that is a long one.
    """
    if _OPTION not in connection.engine.get_execution_options():
        set_deadline(connection, LONG_SECONDS)
    return connection


_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "psycopg": ("answer_seconds",),
    "pymysql": ("_read_timeout", "_write_timeout"),
}
"""What says, on a driver's connection, how long it waits."""


def _note_usual(names: tuple[str, ...], dbapi_connection: Any, record: Any) -> None:
    record.info[_USUAL] = [(name, getattr(dbapi_connection, name)) for name in names]
    record.info[_MADE_AT] = _clock.monotonic()


def _leave_silent(where: str, _dbapi_connection: object, record: Any, _proxy: object) -> None:
    """Have a pool begin anew whose connections are older than the silence that another pool has met."""
    if _silent_since and record.info.get(_MADE_AT, math.inf) <= _silent_since.get(where, -math.inf):
        raise InvalidatePoolError("The server that this session is with gave no answer.")


def _as_usual(dbapi_connection: Any, record: Any) -> None:
    if dbapi_connection is not None:
        for name, value in record.info.get(_USUAL, ()):
            setattr(dbapi_connection, name, value)


# PyMySQL keeps them itself


def _note_timeout(where: str, failure: ExceptionContext) -> None:
    connection = failure.connection
    if _TIMED_OUT in str(failure.original_exception) and connection is not None and not connection.closed:
        seconds: float = driver_of(connection)._read_timeout or 0.0
        _note_silence(where, _clock.monotonic() - seconds)


# psycopg


def _lift(usual: float | None, dbapi_connection: Any, _record: object) -> None:
    dbapi_connection.answer_seconds = usual


def _connect(
    where: str, _dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]
) -> psycopg.Connection[Any]:
    """Make a connection that keeps deadlines."""
    options["connect_timeout"] = connect_seconds(options)
    connection: psycopg.Connection[Any] = _patient_kind().connect(*arguments, **options)
    note_made(where, connection)
    return connection


def connect_seconds(options: Mapping[str, object]) -> str:
    """Return how long each host of a URL may take to let somebody in; one that hangs keeps nobody from the next."""
    has_others = "," in str(options.get("host", ""))
    usual = os.environ.get("PGCONNECT_TIMEOUT", _SECONDS_PER_HOST if has_others else _CONNECT_SECONDS)
    return str(options.get("connect_timeout", usual))


@functools.cache
def _patient_kind() -> Any:
    """Return the class of psycopg connections that wait for an answer by the clock; psycopg is an optional driver."""
    from psycopg import Connection as PsycopgConnection

    class PatientConnection(PsycopgConnection[Any]):
        """A connection on which the server may be silent for ``answer_seconds``; None for as long as it likes."""

        answer_seconds: float | None = ANSWER_SECONDS  # until its pool says otherwise: what prepares it is ours
        where = "the database"

        def wait(self, gen: Any, interval: float = _LOOK_SECONDS, timeout: float | None = None) -> Any:
            """Take the steps of a command, and give up once the server has been silent for too long."""
            if timeout is not None:
                return super().wait(gen, interval, timeout)
            if self.answer_seconds is not None:
                gen = _within(gen, self.answer_seconds, self)
            return super().wait(gen, interval)

    return PatientConnection


def say_briefly(driver: psycopg.Connection[Any], statement: bytes) -> None:
    """Send a statement on a connection that is at rest and whose lock the caller has; its answer is of no interest."""
    from psycopg.generators import execute

    driver.pgconn.send_query(statement)
    driver.wait(_within(execute(driver.pgconn), ANSWER_SECONDS, driver))


def _within(
    steps: Generator[Any, Any, _Result], seconds: float, connection: psycopg.Connection[Any]
) -> Generator[Any, Any, _Result]:
    """Take the same steps. Each time that nothing came for a moment, look at the clock."""
    silent_since: float | None = None
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if ready:
                silent_since = None
            elif silent_since is None:
                silent_since = _clock.monotonic()
            elif is_in_vain():
                steps.throw(_dropped(connection, "The lease was lost before the server gave an answer"))
            elif _clock.monotonic() - silent_since >= max(seconds, least_seconds()):
                steps.throw(_given_up(connection, silent_since))
            wanted = steps.send(ready)
    except StopIteration as ended:
        note_answer(connection)
        return ended.value  # type: ignore[no-any-return] # what the steps return


def _given_up(connection: psycopg.Connection[Any], silent_since: float) -> Exception:
    """Throw a connection away whose server hangs; return the error to go on with."""
    seconds = _clock.monotonic() - silent_since
    pgconn: Any = connection.pgconn
    server = f"{pgconn.host.decode()}:{pgconn.port.decode()}"
    _note_silence(getattr(connection, "where", server), silent_since, f" (server {server})")
    note_hung(connection, silent_since)
    return _dropped(connection, f"The server {server} gave no answer for {seconds:.0f} s")


def _dropped(connection: psycopg.Connection[Any], why: str) -> Exception:
    """Throw a connection away, with nothing said to its server; return the error to go on with."""
    from psycopg import OperationalError

    with suppress(OSError):
        cut_off(connection.pgconn.socket)
    connection.pgconn.finish()
    return OperationalError(f"{why}, so the connection was thrown away")


_logged: dict[str, float] = {}
_silent_since: dict[str, float] = {}
"""Since when the server behind a URL was silent that was given up last."""


def _note_silence(where: str, silent_since: float, server: str = "") -> None:
    """Let every pool leave what is older; log it once, though many statements may have waited."""
    _silent_since[where] = silent_since
    now = _clock.monotonic()
    if now - _logged.get(where, -_LOGGED_AGAIN_SECONDS) < _LOGGED_AGAIN_SECONDS:
        return
    _logged[where] = now
    _log.warning(
        "%s gave no answer for %.0f s%s: it hangs, or was cut off. Its connections are thrown away; what "
        "waited goes on with new ones as soon as a server answers there",
        where,
        now - silent_since,
        server,
    )
