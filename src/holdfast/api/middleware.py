"""The middleware every request passes, whatever its path: correlation id, who asks, how often, from where, how much.

It stands outside the framework, so that also what the framework does not know, such as an unknown path, needs a token,
counts, and is answered in the envelope with the same headers.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.clock import Clock, new_id
from ..core.late_work import LateWork, TookTooLong
from ..core.refused_callers import RefusedCallers, why_refused
from .authentication import CHANGING_METHODS, Authentication, address_of, check_origin
from .bodies import checked_body
from .envelope import failed
from .errors import ApiError
from .health import PATHS as HEALTH_PATHS
from .health import Health
from .limits import RequestLimits, Slots
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


class ApiMiddleware:
    """The ASGI middleware around everything else."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authentication: Authentication,
        buckets: Buckets | None,
        limits: RequestLimits,
        health: Health,
        clock: Clock,
    ) -> None:
        self._app = app
        self._limits = limits
        self._slots = Slots(limits)
        self._late = LateWork("request", logger)
        self._refusals = RefusedCallers("request", logger, clock)
        self._health = health
        self._authentication = authentication
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
        if scope["path"] in HEALTH_PATHS and scope["method"] in ("GET", "HEAD"):
            await (await self._health.answer(scope["path"]))(scope, receive, send)
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
            with self._slots.of_caller(_counted_as(scope, exchange.caller)):
                if scope["method"] in CHANGING_METHODS:
                    receive = await self._body_in_time(headers, receive)
                await self._in_time(scope, receive, send)
        except Exception as error:
            if exchange.status is not None:
                raise
            if not isinstance(error, ApiError):
                logger.exception("A request failed unexpectedly.", extra={"correlation_id": exchange.correlation_id})
            refusal = error if isinstance(error, ApiError) else ApiError.internal()
            await failed(refusal, exchange.correlation_id, self._clock.now())(scope, receive, send)

    async def _body_in_time(self, headers: Headers, receive: Receive) -> Receive:
        seconds = self._limits.body_seconds
        try:
            return await asyncio.wait_for(checked_body(headers, receive), seconds)
        except TimeoutError:
            raise ApiError(408, f"The body did not come within {seconds:g} s.", "body") from None

    async def _in_time(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered within its time. One that is late goes on, unheard, and keeps its slot meanwhile.

        Raises:
            ApiError: 503, it was not; nothing of it has been answered.
        """
        answer, seconds = _Answer(send), self._limits.deadline_seconds
        work = self._in_slot(scope, receive, answer)
        try:
            await self._late.in_time(work, seconds, has_begun=lambda: answer.is_begun, gives_up=answer.give_up)
        except TookTooLong:
            logger.warning(
                "A request to %a took longer than %g s and was answered without it.",
                scope["path"],
                seconds,
                extra={"correlation_id": scope[_SCOPE_KEY].correlation_id},
            )
            raise ApiError.too_slow(seconds) from None

    async def _in_slot(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        exchange: Exchange = scope[_SCOPE_KEY]
        async with self._slots.of_part(scope["path"], _counted_as(scope, exchange.caller)):
            answer.is_begun = True
            await self._app(scope, receive, answer.send)

    def _admit(self, scope: Scope, headers: Headers) -> None:
        """Check everything that can be checked without the body.

        Raises:
            ApiError: the request is refused.
        """
        exchange: Exchange = scope[_SCOPE_KEY]
        exchange.caller = self._authentication.caller(scope, headers)
        if self._buckets is not None:
            wait_seconds = self._buckets.wait_seconds(_counted_as(scope, exchange.caller))
            if wait_seconds > 0:
                raise ApiError.too_many(wait_seconds)
        if exchange.caller is None:
            self._refusals.refused(address_of(scope), why_refused(headers.get("authorization")))
            raise self._authentication.refusal
        check_origin(scope["method"], headers)
        if CORRELATION_HEADER in headers and _correlation_id(headers) is None:
            raise ApiError.validation(
                f"{CORRELATION_HEADER} must be 1 to 200 visible ASCII characters, sent once.", CORRELATION_HEADER
            )
        if _ENCODED_SLASH in scope.get("raw_path", b"").lower():
            raise ApiError.validation("The path holds an encoded '/', which no engine's name and no row key has.")


class _Answer:
    """What a request's work sends: passed on until somebody else has answered for it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_answered = False
        self._is_given_up = False
        self.is_begun = False

    def give_up(self) -> bool:
        """Let nothing more through, unless the answer is on its way already; return whether that is so."""
        self._is_given_up = not self._has_answered
        return self._is_given_up

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on."""
        if not self._is_given_up:
            self._has_answered = True
            await self._send(message)


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
