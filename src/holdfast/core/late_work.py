"""Work that somebody waits for, for so long: what has begun by then goes on without them, and keeps what it holds.

A thread that waits for a locked table cannot be called back. If its place were free again when its caller has gone,
callers who come and go would pile up work behind it, and with it what they sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


class TookTooLong(Exception):  # noqa: N818 - it says what happened; whoever serves makes an answer of it
    """The work was not done in time."""


class LateWork:
    """Has work done in time, or without whoever waited for it. For one event loop.

    Args:
        what: what the work is about, such as "request".
        log: where it is logged when work fails that nobody waits for any more.
    """

    def __init__(self, what: str, log: logging.Logger) -> None:
        self._what = what
        self._log = log
        self._unheard: set[asyncio.Future[Any]] = set()

    async def in_time(
        self,
        work: Coroutine[Any, Any, _Answer],
        seconds: float,
        *,
        has_begun: Callable[[], bool],
        gives_up: Callable[[], bool] = lambda: True,
    ) -> _Answer:
        """Return what comes of work. When it is late, or the caller is cancelled, it goes on, unless it has not begun.

        Args:
            work: what is to be done.
            seconds: how long it may take.
            has_begun: returns whether the work can no longer be called back.
            gives_up: tells, when it is late, whether not to wait for it any longer.

        Raises:
            TookTooLong: it was not done in time.
        """
        doing = asyncio.ensure_future(work)
        try:
            await asyncio.wait({doing}, timeout=seconds)
            if not doing.done() and gives_up():
                raise TookTooLong
            return await asyncio.shield(doing)
        finally:
            if not doing.done():
                self._leave(doing, has_begun())
            del doing  # it would keep its error, and that this frame, until a garbage collection

    async def end(self) -> None:
        """Give up what nobody waits for. Its threads end when they do."""
        left = list(self._unheard)
        for doing in left:
            doing.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _leave(self, doing: asyncio.Future[Any], has_begun: bool) -> None:
        self._unheard.add(doing)
        doing.add_done_callback(self._ended)
        if not has_begun:
            doing.cancel()

    def _ended(self, doing: asyncio.Future[Any]) -> None:
        self._unheard.discard(doing)
        if not doing.cancelled() and doing.exception() is not None:
            self._log.info("A %s that nobody waited for any more has failed since: %s", self._what, doing.exception())
