"""The HTTP protocol of ``holdfast serve``: TLS and headers come in time, and few connections wait for theirs."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HANDSHAKE_SECONDS = 10.0
HEADER_SECONDS = 10.0
MOST_WAITING = 200


class BoundedProtocol(H11Protocol):
    """Closes connections whose headers do not come in time, and the oldest of those when too many wait for theirs.

    So whoever opens connections and sends half a request closes their own, and keeps nobody else out.
    """

    header_seconds = HEADER_SECONDS
    waiting: ClassVar[dict[BoundedProtocol, asyncio.TimerHandle]] = {}  # in the order in which they began to wait

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Take a connection, whose headers must come in time."""
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take some bytes: from the first of a request on, the rest of its headers must come in time."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._expect_nothing()
        elif self not in self.waiting:
            self._expect_headers()

    def _expect_headers(self) -> None:
        self.waiting[self] = self.loop.call_later(self.header_seconds, self._close)
        if len(self.waiting) > MOST_WAITING:
            next(iter(self.waiting))._close()

    def _expect_nothing(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _close(self) -> None:
        self._expect_nothing()
        if self.conn.their_state is h11.IDLE:
            self.transport.close()


class BoundedLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers end connections that do not finish their TLS handshake in time.

    Until then a connection has no protocol yet that could look after it, and asyncio's own bound is a minute.
    """

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """Create a server."""
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", HANDSHAKE_SECONDS)
        return await super().create_server(*arguments, **options)
