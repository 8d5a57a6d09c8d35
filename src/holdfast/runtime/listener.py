"""Wakes what waits in this process when PostgreSQL says that there is something to do: one connection for everyone.

While it cannot listen, everybody's own polling goes on. A server that hangs says nothing, as one does that has nothing
to say: every few seconds it is asked something that it has to answer.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from ..core.clock import Clock, SystemClock
from ..core.config import safe_url
from ..database.deadlines import ANSWER_SECONDS, set_deadline
from ..database.errors import reason

_LOOK_AROUND_SECONDS = 0.5
_AFTER_ERROR_SECONDS = 1.0
_STOP_SECONDS = 5.0
_ASKED_SECONDS = 5.0
_log = logging.getLogger("holdfast.runtime")


@dataclass(frozen=True, eq=False, slots=True)
class Subscription:
    """Who wants to hear of a channel: ``heard`` with each payload, None whenever something may have been missed."""

    listener: Listener
    channel: str
    heard: Callable[[str | None], None]

    def close(self) -> None:
        """Hear no more."""
        self.listener.remove(self)


class Listener:
    """Listens for all subscriptions to one database, on a thread and a connection that exist while there are any."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_deaf = False

    @property
    def is_alive(self) -> bool:
        """Return whether its thread lives, while there is anyone to listen for."""
        thread = self._thread  # it may be let go of meanwhile
        return thread is None or thread.is_alive()

    def subscribe(self, engine: Engine, channel: str, heard: Callable[[str | None], None]) -> Subscription:
        """Have ``heard`` called from now on, on the listener's thread."""
        subscription = Subscription(self, channel, heard)
        with self._lock:
            self._subscriptions.append(subscription)
            if self._thread is None:
                self._stop = threading.Event()
                thread = threading.Thread(
                    target=self._run, args=(engine, self._stop), name="holdfast-listener", daemon=True
                )
                thread.start()
                self._thread = thread  # not before: who looks whether it lives would take it for dead
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Forget a subscription; the last one ends the thread and the connection."""
        with self._lock:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
            if self._subscriptions or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is not threading.current_thread():
            thread.join(_STOP_SECONDS)

    def _run(self, engine: Engine, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._listen(engine, stop)
            except (SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:
                self._tell_deaf(engine, error)
                self._clock.wait(stop, _AFTER_ERROR_SECONDS)

    def _listen(self, engine: Engine, stop: threading.Event) -> None:
        connection = engine.connect()
        known: list[Subscription] = []
        try:
            driver: Any = connection.connection.driver_connection
            set_deadline(connection, ANSWER_SECONDS)
            driver.autocommit = True
            asked_at = self._clock.monotonic()
            while not stop.is_set():
                known = self._listening_for_all(driver, known)
                self._tell_hearing(engine)
                if self._clock.monotonic() - asked_at >= _ASKED_SECONDS:
                    driver.execute("SELECT 1")
                    asked_at = self._clock.monotonic()
                for note in driver.notifies(timeout=_LOOK_AROUND_SECONDS, stop_after=1):
                    self._notify(note.channel, note.payload)
        finally:
            with suppress(SQLAlchemyError):
                connection.invalidate()  # it listens, so nobody else may have it
                connection.close()

    def _tell_deaf(self, engine: Engine, error: Exception) -> None:
        """Log it once: until it listens again, work begins when it is next looked for."""
        if not self._is_deaf:
            self._is_deaf = True
            _log.warning(
                "Nobody is woken by %s, and everything waits for its own polling until it listens again: %s",
                safe_url(engine.url),
                reason(error),
            )

    def _tell_hearing(self, engine: Engine) -> None:
        if self._is_deaf:
            self._is_deaf = False
            _log.warning("Wake-ups from %s are heard again", safe_url(engine.url))

    def _listening_for_all(self, driver: Any, known: list[Subscription]) -> list[Subscription]:
        """Listen on channels that are new, and tell who is new that something may have come before."""
        with self._lock:
            present = list(self._subscriptions)
        new = [each for each in present if each not in known]
        for channel in {each.channel for each in new} - {each.channel for each in known}:
            driver.execute(f"LISTEN {channel}")
        for each in new:
            each.heard(None)
        return present

    def _notify(self, channel: str, payload: str) -> None:
        with self._lock:
            present = list(self._subscriptions)
        for each in present:
            if each.channel == channel:
                each.heard(payload)


_listeners: dict[str, Listener] = {}

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_listeners.clear)  # their threads and connections are the parent's


def are_listening() -> bool:
    """Return whether everyone in this process who wants to hear something is heard for."""
    return all(listener.is_alive for listener in list(_listeners.values()))


def listen(engine: Engine, channel: str, heard: Callable[[str | None], None]) -> Subscription:
    """Subscribe to a channel of a PostgreSQL database; everyone in this process shares one connection to it."""
    where = engine.url.render_as_string(hide_password=False)
    return _listeners.setdefault(where, Listener()).subscribe(engine, channel, heard)
