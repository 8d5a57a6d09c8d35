"""The gate every request passes, whatever its path: correlation id, who asks, how often, from where, how much.

It stands outside the framework, so that also what the framework does not know, such as an unknown path, needs a token,
counts, and is answered in the envelope with the same headers.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.clock import Clock, new_id
from .bodies import checked_body
from .door import CHANGING_METHODS, Door, address_of, check_origin
from .envelope import failed
from .errors import ApiError
from .rate_limit import Buckets
from .tokens import Caller

logger = logging.getLogger("holdfast.api")

CORRELATION_HEADER = "X-Correlation-Id"
CORRELATION_PATTERN = r"^[\x21-\x7e]{1,200}$"
SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_CORRELATION = re.compile(CORRELATION_PATTERN)
_SCOPE_KEY = "holdfast.exchange"
_ENCODED_SLASH = b"%2f"


@dataclass(slots=True)
class Exchange:
    """One request and its answer: who asked, under which correlation id, and which status was answered."""

    correlation_id: str
    caller: Caller | None = None
    status: int | None = None


def exchange_of(request: Request) -> Exchange:
    """Return the exchange that a request is part of."""
    exchange: Exchange = request.scope[_SCOPE_KEY]
    return exchange


class Gate:
    """The ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, *, door: Door, buckets: Buckets | None, clock: Clock) -> None:
        self._app = app
        self._door = door
        self._buckets = buckets
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        exchange = Exchange(_correlation_id(headers) or new_id())
        scope[_SCOPE_KEY] = exchange
        began = self._clock.monotonic()
        await self._answered(scope, headers, receive, _with_headers(send, exchange))
        _tell(scope, exchange, self._clock.monotonic() - began)

    async def _answered(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Answer a request; what nobody expected is a 500, and its story is in the log only."""
        exchange: Exchange = scope[_SCOPE_KEY]
        try:
            self._admit(scope, headers)
            if scope["method"] in CHANGING_METHODS:
                receive = await checked_body(headers, receive)
            await self._app(scope, receive, send)
        except Exception as error:
            if exchange.status is not None:
                raise
            if not isinstance(error, ApiError):
                logger.exception("A request failed unexpectedly.", extra={"correlation_id": exchange.correlation_id})
            refusal = error if isinstance(error, ApiError) else ApiError.internal()
            await failed(refusal, exchange.correlation_id, self._clock.now())(scope, receive, send)

    def _admit(self, scope: Scope, headers: Headers) -> None:
        """Check everything that can be checked without the body.

        Raises:
            ApiError: the request is refused.
        """
        exchange: Exchange = scope[_SCOPE_KEY]
        exchange.caller = self._door.caller(scope, headers)
        if self._buckets is not None:
            wait_seconds = self._buckets.wait_seconds(_counted_as(scope, exchange.caller))
            if wait_seconds > 0:
                raise ApiError.too_many(wait_seconds)
        if exchange.caller is None:
            raise self._door.refusal
        check_origin(scope["method"], headers)
        if CORRELATION_HEADER in headers and _correlation_id(headers) is None:
            raise ApiError.validation(
                f"{CORRELATION_HEADER} must be 1 to 200 visible ASCII characters, sent once.", CORRELATION_HEADER
            )
        if _ENCODED_SLASH in scope.get("raw_path", b"").lower():
            raise ApiError.validation("The path holds an encoded '/', which no engine's name and no row key has.")


def _correlation_id(headers: Headers) -> str | None:
    """Return the correlation id that a request brings, if it is one."""
    brought = headers.getlist(CORRELATION_HEADER)
    return brought[0] if len(brought) == 1 and _CORRELATION.fullmatch(brought[0]) else None


def _counted_as(scope: Scope, caller: Caller | None) -> str:
    return f"address {address_of(scope)}" if caller is None else f"caller {caller.name}"


def _with_headers(send: Send, exchange: Exchange) -> Send:
    """Return ``send`` that notes the status and adds the headers every answer has."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[CORRELATION_HEADER] = exchange.correlation_id
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers


def _tell(scope: Scope, exchange: Exchange, seconds: float) -> None:
    """Log an exchange: neither its parameters nor its body, which may be confidential."""
    caller = "nobody known" if exchange.caller is None else exchange.caller.name
    logger.info(
        "%s %a by %s: %s in %.0f ms",
        scope["method"],
        scope["path"],
        caller,
        exchange.status,
        seconds * 1000,
        extra={"correlation_id": exchange.correlation_id, "status": exchange.status, "caller": caller},
    )
