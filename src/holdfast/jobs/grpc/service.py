"""The calls of the .proto file, and which thread does the work of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from ...core.errors import ConfigurationError
from ..announcement import Operations
from ..model import ClaimedJob, Suspect, WorkerId
from . import holdfast_jobs_pb2 as wire
from .admission import Caller
from .claiming import StreamClaims
from .receipts import Receipts
from .security import Client
from .store_calls import StoreCalls
from .streams import JobStream, Read, Streams, Write, take_grants
from .suspects import StreamSuspects

Answer = TypeVar("Answer")


class JobsService:
    """The service of the .proto file.

    Args:
        calls: answers the unary calls.
        claiming: claims for streams.
        streams: where open streams are kept.
        receipts: writes those of the assignments.
        reports: threads for beats and reports, which must never wait for the others.
        claims: threads for claims and new jobs.
    """

    def __init__(
        self,
        calls: StoreCalls,
        claiming: StreamClaims,
        streams: Streams,
        receipts: Receipts,
        *,
        reports: Executor,
        claims: Executor,
        poll_seconds: float,
        is_notified: bool,
    ) -> None:
        self._calls = calls
        self._claiming = claiming
        self._streams = streams
        self._receipts = receipts
        self._reports = reports
        self._claims = claims
        self._poll_seconds = poll_seconds
        self._is_notified = is_notified

    async def Heartbeat(self, request: wire.HeartbeatRequest, client: Client) -> wire.HeartbeatResponse:  # noqa: N802
        """Extend leases."""
        return await _on(self._reports, self._calls.heartbeat, client, request)

    async def ReportResult(  # noqa: N802
        self, request: wire.ReportResultRequest, client: Client
    ) -> wire.ReportResultResponse:
        """End one attempt."""
        return await _on(self._reports, self._calls.report_one, client, request)

    async def ReportResults(  # noqa: N802
        self, request: wire.ReportResultsRequest, client: Client
    ) -> wire.ReportResultsResponse:
        """End attempts."""
        return await _on(self._reports, self._calls.report_many, client, request)

    async def Enqueue(self, request: wire.EnqueueRequest, client: Client) -> wire.EnqueueResponse:  # noqa: N802
        """Add jobs."""
        return await _on(self._claims, self._calls.enqueue, client, request)

    async def StreamJobs(self, first: wire.WorkerMessage, context: Any, caller: Caller) -> None:  # noqa: N802
        """Hand out jobs until the worker closes the stream, or the server does."""
        stream = self._begun(first, caller)
        del first  # it may be large, and the stream may be open for days
        await self._serve(stream, context.read, context.write)

    def _begun(self, first: wire.WorkerMessage, caller: Caller) -> JobStream:
        if first.WhichOneof("message") != "start":
            raise ConfigurationError("The first message of a stream must be start, with the worker's name and topics.")
        return JobStream(
            first.start,
            caller.client,
            caller.admit,
            self._receipts,
            poll_seconds=self._poll_seconds,
            is_notified=self._is_notified,
            suspects=self._claiming.suspects_of,
            opens_in=self._claiming.opens_in,
        )

    async def _serve(
        self,
        stream: JobStream,
        read: Read,
        write: Write,
    ) -> None:
        await _on(self._claims, self._claiming.connected, stream.owner)
        self._streams.add(stream)
        taking = asyncio.ensure_future(take_grants(stream, read))
        serving = asyncio.ensure_future(stream.serve(self._claim, self._next_suspect, write))
        try:
            await _first_failure(taking, serving)
        finally:
            self._streams.remove(stream)
            taking.cancel()
            serving.cancel()
            await asyncio.gather(taking, serving, return_exceptions=True)

    async def _claim(
        self, owner: WorkerId, operations: Operations, capacity: int, reports_begin: bool
    ) -> list[ClaimedJob]:
        """Claim on a thread. When the stream breaks meanwhile, what is claimed comes back as its lease runs out."""
        return await _on(self._claims, self._claiming.claim, owner, operations, capacity, reports_begin)

    async def _next_suspect(self, suspects: StreamSuspects) -> list[Suspect]:
        return await _on(self._claims, suspects.next)


async def _on(threads: Executor, work: Callable[..., Answer], *arguments: object) -> Answer:
    return await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)


async def _first_failure(taking: asyncio.Future[None], serving: asyncio.Future[None]) -> None:
    """Wait until the stream was served to its end, or either task failed."""
    await asyncio.wait((taking, serving), return_when=asyncio.FIRST_EXCEPTION)
    for task in (taking, serving):
        if task.done():
            task.result()
