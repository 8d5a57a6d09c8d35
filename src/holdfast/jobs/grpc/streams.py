"""Streams of assignments: a worker grants credit, and each credit is spent on one job.

All of this runs on the server's event loop, except what says otherwise. A stream knows its worker's topics and what
credit is left, and nothing about leases: when it breaks, what was sent is the worker's to beat for and report, and
what was claimed and not sent comes back when its lease runs out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from ...core.errors import Ambiguous, ConfigurationError, Unavailable
from ...core.retry import RetryPolicy
from ..announcement import Operations
from ..model import ClaimedJob, Suspect, WorkerId
from ..settings import checked_topic, own_topic
from . import holdfast_jobs_pb2 as wire
from .assignments import assignment_of
from .receipts import Receipts
from .security import Client
from .store_calls import owner_of
from .suspects import StreamSuspects

MOST_CREDIT = 100_000
_MOST_TOPICS = 1000
_MOST_OPERATIONS = 10_000
_MOST_PER_CLAIM = 100
_LEAST_POLL_SECONDS = 0.02
_LEAST_REST_SECONDS = 0.001
_TEST_POLL_SECONDS = 0.2
_AFTER_ERRORS = RetryPolicy(max_retries=0, base_delay_seconds=0.1, max_delay_seconds=5.0)
_BEAT_NOW = wire.ServerMessage(beat_now=wire.BeatNow())
_log = logging.getLogger("holdfast.jobs")

Claim = Callable[[WorkerId, Operations, int, bool], Awaitable[list[ClaimedJob]]]
NextSuspect = Callable[[StreamSuspects], Awaitable[list[Suspect]]]
Read = Callable[[], Awaitable[object]]
Write = Callable[[wire.ServerMessage], Awaitable[None]]


class StreamEnded(Exception):  # noqa: N818 - an order, not a mistake
    """The server ends a stream: it stops, or another stream of the same worker came."""

    def __init__(self, reason: str, *, is_replaced: bool = False) -> None:
        super().__init__(reason)
        self.is_replaced = is_replaced


class JobStream:
    """One worker's stream.

    Args:
        start: the worker's first message.
        client: who opened it.
        admit: returns what the client's token allows now: one that was taken back gets no more jobs.
        receipts: writes those of the assignments.
        poll_seconds: the longest pause between two looks for jobs.
        is_notified: whether the database tells of new jobs; otherwise the pauses begin short.
        opens_in: in how many seconds a rate lets another job of some topics start.

    Raises:
        ConfigurationError: the first message cannot be used.
        Forbidden: the client's token is not for one of the topics.
    """

    def __init__(
        self,
        start: wire.Start,
        client: Client,
        admit: Callable[[], Client],
        receipts: Receipts,
        *,
        poll_seconds: float,
        is_notified: bool,
        suspects: Callable[[WorkerId, Operations, bool], StreamSuspects],
        opens_in: Callable[[Iterable[str]], float],
    ) -> None:
        client.require_topics(start.topics)
        self.owner = owner_of(client, start.worker)
        self._admit = admit
        self._receipts = receipts
        if not 1 <= len(start.topics) <= _MOST_TOPICS:
            raise ConfigurationError(
                f"Worker '{start.worker}' asks for {len(start.topics)} topics. Name 1 to {_MOST_TOPICS:,}."
            )
        self.operations = _operations(start)
        self.suspects = suspects(self.owner, self.operations, start.tests_suspects)
        self._reports_begin = start.tests_suspects
        self._poll_seconds = poll_seconds
        self._is_notified = is_notified
        self._opens_in = opens_in
        self._wake = asyncio.Event()
        self._must_beat = False
        self._is_closed = False
        self._ended: StreamEnded | None = None
        self.credit = 0
        self.grant(start.credit)

    def grant(self, credit: int) -> None:
        """Take more credit in.

        Raises:
            ConfigurationError: it is more than any worker could mean.
        """
        if self.credit + credit > MOST_CREDIT:
            raise ConfigurationError(
                f"The credit of {self.owner} would be {self.credit + credit:,}. Ask for {MOST_CREDIT:,} jobs at most."
            )
        self.credit += credit
        self._wake.set()

    def look(self) -> None:
        """Look for jobs now."""
        self._wake.set()

    def look_for_suspects(self) -> None:
        """Look for suspects now."""
        self.suspects.heard()
        self._wake.set()

    def beat_now(self) -> None:
        """Pass on that running jobs were cancelled."""
        self._must_beat = True
        self._wake.set()

    def close(self) -> None:
        """End the stream: the worker wants no more."""
        self._is_closed = True
        self._wake.set()

    def end(self, ended: StreamEnded) -> None:
        """End the stream although the worker would go on."""
        self._ended = ended
        self._wake.set()

    async def serve(self, claim: Claim, next_suspect: NextSuspect, write: Write) -> None:
        """Send jobs as long as there are any and credit for them, until the stream ends.

        Raises:
            StreamEnded: the server ended it.
            ConfigurationError: the client's token is not accepted any more, or for less.
        """
        idle = failures = 0
        while True:
            self._wake.clear()
            if self._ended is not None:
                raise self._ended
            if self._is_closed:
                return
            try:
                sent = await self._send(claim, next_suspect, write)
            except (Unavailable, Ambiguous) as error:
                _log.warning("Claiming jobs for %s did not work and is tried again: %s", self.owner, error)
                await self._pause(_AFTER_ERRORS.delay_for_attempt(failures))
                failures += 1
                continue
            failures, idle = 0, 0 if sent else idle + 1
            if not sent:
                await self._pause(self._rest(idle))

    async def _send(self, claim: Claim, next_suspect: NextSuspect, write: Write) -> int:
        self._admit().require_topics(self.operations)
        if self._must_beat:
            self._must_beat = False
            await write(_BEAT_NOW)
        sent = await self._send_suspect(next_suspect, write) if self.suspects.is_due else 0
        if not self.credit or self.suspects.is_testing:
            return sent
        jobs = await claim(self.owner, self.operations, min(self.credit, _MOST_PER_CLAIM), self._reports_begin)
        for job in jobs:
            self.credit -= 1
            await write(self._assignment(job))
        return sent + len(jobs)

    async def _send_suspect(self, next_suspect: NextSuspect, write: Write) -> int:
        """Send the next suspect, for which no credit is needed: it runs even where every place is taken."""
        found = await next_suspect(self.suspects)
        for suspect in found:
            await write(self._assignment(suspect.job, suspect.suspicions))
        return len(found)

    def _assignment(self, job: ClaimedJob, suspicions: int = 0) -> wire.ServerMessage:
        receipt = self._receipts.write(self.owner, job)
        return wire.ServerMessage(assignment=assignment_of(job, receipt, suspicions))

    def _rest(self, idle: int) -> float | None:
        """Return how long to wait for news: longer the longer there was nothing, for ever when there is no credit."""
        if self.suspects.is_testing:
            return _TEST_POLL_SECONDS
        if not self.credit:
            return None
        rate = max(_LEAST_REST_SECONDS, self._opens_in(self.operations))
        if self._is_notified:
            return min(self._poll_seconds, rate)
        return min(self._poll_seconds, _LEAST_POLL_SECONDS * 2.0 ** min(idle, 10), rate)

    async def _pause(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return


def _operations(start: wire.Start) -> dict[str, list[str] | None]:
    """Return what a worker can run, by topic; None where it has not said, as older ones do not.

    Raises:
        ConfigurationError: a name cannot be, or operations are announced of a topic that is not asked for.
    """
    found: dict[str, list[str] | None] = {own_topic(topic): None for topic in start.topics}
    if sum(len(announced.names) for announced in start.operations) > _MOST_OPERATIONS:
        raise ConfigurationError(f"Worker '{start.worker}' tells of more than {_MOST_OPERATIONS:,} operations.")
    for announced in start.operations:
        if announced.topic not in found or not announced.names:
            raise ConfigurationError(
                f"Worker '{start.worker}' tells operations of '{announced.topic}'. Name at least one operation, of one "
                "of the topics of Start."
            )
        names = {*(found[announced.topic] or ()), *(checked_topic("Operation", name) for name in announced.names)}
        found[announced.topic] = sorted(names)
    return found


async def take_grants(stream: JobStream, read: Read) -> None:
    """Take the worker's messages in until it sends no more.

    Raises:
        ConfigurationError: a message is not a grant.
    """
    while isinstance(message := await read(), wire.WorkerMessage):  # at the end it is something else
        if message.WhichOneof("message") != "grant":
            raise ConfigurationError(f"{stream.owner} sent a message after its start that is not a grant of credit.")
        if message.grant.tests_suspects:
            stream.suspects.ask()
        stream.grant(message.grant.credit)
        del message  # a large one would be kept until the next
    stream.close()


class Streams:
    """The open streams of a server, one for each worker."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._streams: dict[WorkerId, JobStream] = {}
        self._ended: StreamEnded | None = None

    def add(self, stream: JobStream) -> None:
        """Take a stream in. An older one of the same worker ends: nobody reads it any more.

        Raises:
            StreamEnded: the server stops, or has too many streams.
        """
        if self._ended is not None:
            raise self._ended
        before = self._streams.get(stream.owner)
        if before is None and len(self._streams) >= self._most:
            raise StreamEnded(f"This server has {self._most:,} streams, which is its most. Try again, or another one.")
        if before is not None:
            before.end(StreamEnded(f"Another stream of {stream.owner} took over.", is_replaced=True))
        self._streams[stream.owner] = stream

    def remove(self, stream: JobStream) -> None:
        """Forget a stream that has ended."""
        if self._streams.get(stream.owner) is stream:
            del self._streams[stream.owner]

    def look(self, topic: str | None = None) -> None:
        """Let streams look for jobs: those of a topic, or all."""
        for stream in self._streams.values():
            if topic is None or topic in stream.operations:
                stream.look()

    def operations(self) -> dict[str, list[str] | None]:
        """Return what the workers of all streams can run, by topic; None for any operation. Safe from any thread."""
        found: dict[str, list[str] | None] = {}
        for stream in list(self._streams.values()):
            for topic, announced in stream.operations.items():
                known = found.get(topic, [])
                found[topic] = None if announced is None or known is None else sorted({*known, *announced})
        return found

    def look_for_suspects(self) -> None:
        """Let every stream look for suspects."""
        for stream in self._streams.values():
            stream.look_for_suspects()

    def beat_now(self) -> None:
        """Tell every worker that running jobs were cancelled."""
        for stream in self._streams.values():
            stream.beat_now()

    def end_all(self, reason: str) -> None:
        """End every stream, and refuse new ones."""
        self._ended = StreamEnded(reason)
        for stream in self._streams.values():
            stream.end(self._ended)
