"""The calls as gRPC sees them: who may call, which thread does the work, and which status code an error becomes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, NoReturn, TypeVar

import grpc

from ...core.errors import (
    Ambiguous,
    ConfigurationError,
    DbError,
    InvalidTransition,
    PayloadError,
    Unavailable,
)
from ..announcement import Operations
from ..model import ClaimedJob, Suspect, WorkerId
from . import holdfast_jobs_pb2 as wire
from .claiming import StreamClaims
from .desk import Desk
from .security import Tokens
from .streams import JobStream, StreamEnded, Streams, take_grants
from .suspects import StreamSuspects

_log = logging.getLogger("holdfast.jobs")
Answer = TypeVar("Answer")


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """Return the status code and the sentence that tell of an error."""
    match error:
        case InvalidTransition():
            return grpc.StatusCode.FAILED_PRECONDITION, str(error)
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


async def abort(context: Any, error: BaseException) -> NoReturn:
    """End a call with the status of an error."""
    code, sentence = status_of(error)
    if code is grpc.StatusCode.INTERNAL:
        _log.error("A call failed: %s", error, exc_info=error)
    await context.abort(code, sentence)
    raise AssertionError("unreachable: abort raises")


class JobsService:
    """The service of the .proto file.

    Args:
        desk: answers the unary calls.
        claiming: claims for streams.
        streams: where open streams are kept.
        reports: threads for beats and reports, which must never wait for the others.
        claims: threads for claims and new jobs.
    """

    def __init__(
        self,
        desk: Desk,
        claiming: StreamClaims,
        streams: Streams,
        *,
        reports: Executor,
        claims: Executor,
        poll_seconds: float,
        is_told: bool,
    ) -> None:
        self._desk = desk
        self._claiming = claiming
        self._streams = streams
        self._reports = reports
        self._claims = claims
        self._poll_seconds = poll_seconds
        self._is_told = is_told

    async def Heartbeat(self, request: wire.HeartbeatRequest, context: Any) -> wire.HeartbeatResponse:  # noqa: N802
        """Extend leases."""
        return await self._answer(context, self._reports, self._desk.heartbeat, request)

    async def ReportResult(  # noqa: N802
        self, request: wire.ReportResultRequest, context: Any
    ) -> wire.ReportResultResponse:
        """End one attempt."""
        return await self._answer(context, self._reports, self._desk.report_one, request)

    async def ReportResults(  # noqa: N802
        self, request: wire.ReportResultsRequest, context: Any
    ) -> wire.ReportResultsResponse:
        """End attempts."""
        return await self._answer(context, self._reports, self._desk.report_many, request)

    async def Enqueue(self, request: wire.EnqueueRequest, context: Any) -> wire.EnqueueResponse:  # noqa: N802
        """Add jobs."""
        return await self._answer(context, self._claims, self._desk.enqueue, request)

    async def _answer(
        self, context: Any, threads: Executor, answer: Callable[[Any], Answer], request: object
    ) -> Answer:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, answer, request)
        except Exception as error:
            await abort(context, error)

    async def StreamJobs(self, messages: AsyncIterator[wire.WorkerMessage], context: Any) -> None:  # noqa: N802
        """Hand out jobs until the worker closes the stream, or the server does."""
        try:
            await self._stream(aiter(messages), context.write)
        except Exception as error:
            if not context.done():  # otherwise the worker is gone, and nobody is there to be told
                await abort(context, error)

    async def _stream(
        self, messages: AsyncIterator[wire.WorkerMessage], write: Callable[[wire.ServerMessage], Awaitable[None]]
    ) -> None:
        first = await anext(messages, None)
        if first is None or first.WhichOneof("message") != "start":
            raise ConfigurationError("The first message of a stream must be start, with the worker's name and topics.")
        stream = JobStream(
            first.start, poll_seconds=self._poll_seconds, is_told=self._is_told, suspects=self._claiming.suspects_of
        )
        await asyncio.get_running_loop().run_in_executor(self._claims, self._claiming.connected, stream.owner)
        self._streams.add(stream)
        taking = asyncio.ensure_future(take_grants(stream, messages))
        serving = asyncio.ensure_future(stream.serve(self._claim, self._next_suspect, write))
        try:
            await _first_failure(taking, serving)
        finally:
            self._streams.remove(stream)
            taking.cancel()
            serving.cancel()
            await asyncio.gather(taking, serving, return_exceptions=True)

    async def _claim(self, owner: WorkerId, operations: Operations, capacity: int) -> list[ClaimedJob]:
        """Claim on a thread. When the stream breaks meanwhile, what is claimed comes back as its lease runs out."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._claims, self._claiming.claim, owner, operations, capacity)

    async def _next_suspect(self, suspects: StreamSuspects) -> list[Suspect]:
        return await asyncio.get_running_loop().run_in_executor(self._claims, suspects.next)


async def _first_failure(taking: asyncio.Future[None], serving: asyncio.Future[None]) -> None:
    """Wait until the stream was served to its end, or either task failed."""
    await asyncio.wait((taking, serving), return_when=asyncio.FIRST_EXCEPTION)
    for task in (taking, serving):
        if task.done():
            task.result()


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Lets calls through that carry an accepted token."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return the call's handler, or one that refuses it."""
        metadata = {name.lower(): value for name, value in handler_call_details.invocation_metadata or ()}
        authorization = metadata.get("authorization")
        if self._tokens.accepts(authorization if isinstance(authorization, str) else None):
            return await continuation(handler_call_details)
        fact = "carries no token" if authorization is None else "carries a token that is not accepted here"

        async def refuse(_messages: Any, context: Any) -> None:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                f"The call to {handler_call_details.method} {fact}. Send the header 'authorization: Bearer <token>'.",
            )

        return grpc.stream_stream_rpc_method_handler(refuse)
