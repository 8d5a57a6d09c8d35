"""Before a call is read: who calls, whether its token is for that, and whether there is room for it.

A message is taken from the network only when its caller may make the call and few others are being answered, so what
callers send cannot fill the server's memory. Nobody has all of the room: who is slow, or sends nothing, delays those
with the same token. Beats and reports have room of their own, and so have streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from ...core.clock import Clock, SystemClock
from ...core.errors import Ambiguous, ConfigurationError, DbError, InvalidTransition, PayloadError, Unavailable
from ...core.late_work import LateWork, TookTooLong
from ...core.refused_callers import RefusedCallers, address_to_count, why_refused
from ...runtime.fair_slots import FairSlots, OpenAtOnce
from .security import Client, Forbidden, Scope, Tokens, host_of_peer
from .streams import StreamEnded

READ_SECONDS = 10.0
"""How long a caller may take to send its message: it keeps others waiting."""

_log = logging.getLogger("holdfast.jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """How much is read, answered and open at once.

    Args:
        calls: how many calls of each kind are read and answered.
        calls_of_one: how many of them are one client's.
        open_calls_of_one: how many calls of one client are open, most of them waiting for their turn.
        streams_of_one: how many streams of one client are open.
        call_seconds: how long a call may take, from its token to its answer; and a stream, to its first message.
    """

    calls: int = 6
    calls_of_one: int = 3
    open_calls_of_one: int = 500
    streams_of_one: int = 5_000
    call_seconds: float = 15.0

    def __post_init__(self) -> None:
        counts = (self.calls, self.calls_of_one, self.open_calls_of_one, self.streams_of_one)
        if min(counts) < 1 or not self.call_seconds > 0:
            raise ConfigurationError("Limits of calls that let nothing through: use times above 0 and 1 or more.")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call.

    Args:
        client: what its token allowed when the call began.
        counted_as: whose calls it is counted with.
        admit: returns what the token allows now, for calls that last; it raises when it is not accepted any more.
    """

    client: Client
    counted_as: str
    admit: Callable[[], Client]


Answer = Callable[[Any, Client], Awaitable[Any]]
Serve = Callable[[Any, Caller], Awaitable[None]]
ServeStream = Callable[[Any, Any, Caller], Awaitable[None]]
Respond = Callable[[Any, Any], Awaitable[None]]
_USUAL_LIMITS = CallLimits()


class Unknown(ConfigurationError):  # noqa: N818 - it says what is so, and becomes UNAUTHENTICATED
    """Nobody knows who calls."""


class TooSlow(ConfigurationError):  # noqa: N818 - it says what happened, and becomes DEADLINE_EXCEEDED
    """A caller did not send its message in time."""


class TooManyOpen(StreamEnded):
    """A client has so much open that it gets no more; it may try again."""


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """Return the status code and the sentence that tell of an error."""
    match error:
        case InvalidTransition():
            return grpc.StatusCode.FAILED_PRECONDITION, str(error)
        case Unknown():
            return grpc.StatusCode.UNAUTHENTICATED, str(error)
        case Forbidden():
            return grpc.StatusCode.PERMISSION_DENIED, str(error)
        case TooSlow():
            return grpc.StatusCode.DEADLINE_EXCEEDED, str(error)
        case PayloadError() | ConfigurationError():
            return grpc.StatusCode.INVALID_ARGUMENT, str(error)
        case Unavailable() | Ambiguous():
            return grpc.StatusCode.UNAVAILABLE, str(error)
        case StreamEnded():
            code = grpc.StatusCode.ABORTED if error.is_replaced else grpc.StatusCode.UNAVAILABLE
            return code, str(error)
        case DbError():
            return grpc.StatusCode.INTERNAL, str(error)
    return grpc.StatusCode.INTERNAL, "The server failed unexpectedly. Its log says where."


def refuse(context: Any, error: BaseException) -> None:
    """End a call with the status of an error once its handler returns.

    Not by ``context.abort``: gRPC would keep its exception, and with it the message, until the next garbage collection.
    """
    code, sentence = status_of(error)
    if code is grpc.StatusCode.INTERNAL:
        _log.error("A call failed: %s", error, exc_info=error)
    context.set_code(code)
    context.set_details(sentence)


class Admission:
    """Lets calls through that carry a token that is accepted and for them, few at a time.

    Args:
        tokens: those that are accepted. Who brings no such token is logged, with the rate.
    """

    def __init__(self, tokens: Tokens, limits: CallLimits = _USUAL_LIMITS, clock: Clock | None = None) -> None:
        self._tokens = tokens
        self._refused = RefusedCallers("call", _log, clock or SystemClock())
        self._places = {scope: FairSlots(limits.calls, limits.calls_of_one) for scope in Scope}
        self._call_seconds = limits.call_seconds
        self._late = LateWork("call", _log)
        self._starts = FairSlots(limits.calls, limits.calls_of_one)
        self._calls = OpenAtOnce(limits.open_calls_of_one, partial(_too_many, "calls"))
        self._streams = OpenAtOnce(limits.streams_of_one, partial(_too_many, "streams"))

    def call(self, path: str, scope: Scope, answer: Answer) -> Respond:
        """Return what answers a call of one message with one message, from clients whose token has the scope."""
        places = self._places[scope]

        async def serve(context: Any, caller: Caller) -> None:
            with self._calls.counted(caller.counted_as):
                call = _Call(context, caller, answer)
                await context.write(await self._in_time(path, call, places))

        return self._admitting(path, scope, serve)

    def stream(self, path: str, scope: Scope, serve: ServeStream) -> Respond:
        """Return what serves a stream in both directions, once its first message is there."""

        async def begin(context: Any, caller: Caller) -> None:
            with self._streams.counted(caller.counted_as):
                await serve(await self._first(context, caller), context, caller)

        return self._admitting(path, scope, begin)

    async def end(self) -> None:
        """Give up the calls that nobody waits for."""
        await self._late.end()

    async def _in_time(self, path: str, call: _Call, places: FairSlots) -> Any:
        """Return the answer to a call. One that is late, or whose caller is gone, keeps its place until it is done.

        Raises:
            TooSlow: there is none in time.
        """
        seconds = self._call_seconds
        try:
            return await self._late.in_time(call.answered(places), seconds, has_begun=lambda: call.is_begun)
        except TookTooLong:
            if not call.is_begun:
                raise _too_late("It was not begun", seconds) from None
            _log.warning("A call to %s took longer than %g s and was answered without it.", path, seconds)
            raise _too_late("It goes on, and may be carried out yet", seconds) from None

    async def _first(self, context: Any, caller: Caller) -> Any:
        try:
            async with asyncio.timeout(self._call_seconds), self._starts.place(caller.counted_as):
                return await _read(context)
        except TimeoutError:
            raise _too_late("It was not begun", self._call_seconds) from None

    def _admitting(self, path: str, scope: Scope, serve: Serve) -> Respond:
        async def respond(_messages: Any, context: Any) -> None:
            try:
                admit = partial(self._admitted, path, scope, context)
                client = admit()
                await serve(context, Caller(client, client.key or context.peer(), admit))
            except Exception as error:
                if not context.done():  # otherwise the caller is gone, and nobody is there to answer
                    refuse(context, error)

        return respond

    def _admitted(self, path: str, scope: Scope, context: Any) -> Client:
        """Return who calls.

        Raises:
            Unknown: nobody knows.
            Forbidden: its token is not for that call.
        """
        sent = [value for name, value in context.invocation_metadata() or () if name.lower() == "authorization"]
        authorization = sent[0] if len(sent) == 1 and isinstance(sent[0], str) else None
        client = self._tokens.client(authorization)
        if client is not None:
            client.require(scope)
            return client
        self._refused.refused(address_to_count(host_of_peer(context.peer())), why_refused(sent[0] if sent else None))
        fact = "carries a token that is not accepted here" if sent else "carries no token"
        raise Unknown(f"The call to {path} {fact}. Send the header 'authorization: Bearer <token>'.")


def _too_many(what: str, most: int) -> Exception:
    return TooManyOpen(f"This client has {most:,} {what} open, which is the most for one. Let some end and try again.")


def _too_late(fact: str, seconds: float) -> TooSlow:
    return TooSlow(f"The call was not answered within {seconds:g} s. {fact}. Repeat it.")


class _Call:
    """A call of one message.

    Once it has begun it may have to wait for the database, on a thread that cannot be called back.
    """

    def __init__(self, context: Any, caller: Caller, answer: Answer) -> None:
        self._context = context
        self._caller = caller
        self._answer = answer
        self.is_begun = False

    async def answered(self, places: FairSlots) -> Any:
        async with places.place(self._caller.counted_as):
            request = await _read(self._context)
            self.is_begun = True
            return await self._answer(request, self._caller.client)


async def _read(context: Any) -> Any:
    """Return the next message of a call. Not by its iterator, which keeps a message until a garbage collection."""
    try:
        message = await asyncio.wait_for(context.read(), READ_SECONDS)
    except TimeoutError:
        raise TooSlow(f"The call's message did not come within {READ_SECONDS:g} s. Send it at once.") from None
    if message is grpc.aio.EOF:
        raise ConfigurationError("The call has no message. Send one.")
    return message
