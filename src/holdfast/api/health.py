"""``/health/live`` and ``/health/ready``: answered at the middleware, without a token, within a bounded time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from starlette.responses import JSONResponse, Response

LIVE_PATH = "/health/live"
READY_PATH = "/health/ready"
PATHS = frozenset({LIVE_PATH, READY_PATH})
READY_SECONDS = 2.0


class Health:
    """Tells whether the process answers, and whether its database does.

    Args:
        ask: asks the database for nothing in particular; it may take as long as it takes, on a thread of its own. One
            question is open at a time, however many ask.
        seconds: how long an answer is waited for.
    """

    def __init__(self, ask: Callable[[], object], seconds: float = READY_SECONDS) -> None:
        self._ask = ask
        self._seconds = seconds
        self._open: asyncio.Future[bool] | None = None

    async def answer(self, path: str) -> Response:
        """Return the answer: 200, or 503 when the database does not answer in time."""
        is_well = path == LIVE_PATH or await self._is_ready()
        return JSONResponse({"status": "ok" if is_well else "unavailable"}, 200 if is_well else 503)

    async def _is_ready(self) -> bool:
        asked = self._open
        if asked is None or asked.done():
            asked = self._open = self._asked()
        done, _ = await asyncio.wait({asked}, timeout=self._seconds)
        return asked in done and asked.result()

    def _asked(self) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[bool] = loop.create_future()

        def run() -> None:
            try:
                self._ask()
                is_well = True
            except Exception:  # whatever it is, it is not ready
                is_well = False
            loop.call_soon_threadsafe(_set, found, is_well)

        threading.Thread(target=run, name="holdfast-ready", daemon=True).start()
        return found


def _set(found: asyncio.Future[bool], is_well: bool) -> None:
    if not found.done():
        found.set_result(is_well)
