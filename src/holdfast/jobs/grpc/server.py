"""The server of the remote workers.

It runs on one event loop, so that a thousand idle streams cost no thread, and every call to the database goes to one of
two small groups of threads: one for claims and new jobs, one for beats and reports. Claims can therefore be slow
without a beat being late. Threads of its own are the watchdog, the promoter of scheduled jobs and, on PostgreSQL, the
listener.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from ...core.bearer import read_file
from ...core.clock import Clock, SystemClock, new_id
from ...core.errors import ConfigurationError
from ...core.telemetry import MetricsCollector
from ...database.migrations import migrations_table
from ...database.rights import FOR_JOBS, require_rights
from ...database.server_roles import require_writable
from ...runtime.housekeeping import Chore
from ..announcement import Announcement
from ..claiming import Claiming
from ..definition import JobDefinition
from ..model import WorkerId
from ..payload import MAX_PAYLOAD_BYTES
from ..stores.base import ANNOUNCE_SECONDS, SqlJobStore
from ..telemetry import WorkerTelemetry
from .admission import Admission, CallLimits
from .calls import handlers
from .claiming import StreamClaims
from .receipts import Receipts
from .security import ServerTls, Tokens, check_listening
from .service import JobsService
from .store_calls import StoreCalls
from .streams import Streams
from .watch import Watch

REPORT_THREADS = 4
CLAIM_THREADS = 4
_UNREAD_BYTES = 64 * 1024
_MOST_OTHER_CALLS = 1000
HANDSHAKE_SECONDS = 10.0
_KEEPALIVE_SECONDS = 10
_KEEPALIVE_TIMEOUT_SECONDS = 5
_LOOK_SECONDS = 1.0
_FORGET_SECONDS = 3600.0
_log = logging.getLogger("holdfast.jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a server serves.

    Raises:
        ConfigurationError: a number makes no sense.
    """

    poll_seconds: float = 1.0
    watchdog_seconds: float = 10.0
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    max_message_bytes: int = 8 * MAX_PAYLOAD_BYTES
    max_streams: int = 10_000
    call_limits: CallLimits = field(default_factory=CallLimits)

    def __post_init__(self) -> None:
        if min(self.poll_seconds, self.watchdog_seconds) <= 0:
            raise ConfigurationError("A server's poll_seconds and watchdog_seconds must be above 0.")
        if min(self.max_payload_bytes, self.max_streams) < 1 or self.max_message_bytes < self.max_payload_bytes:
            raise ConfigurationError(
                "max_message_bytes must be at least max_payload_bytes, and max_streams at least 1."
            )


class JobsServer:
    """Serves remote workers from a thread of its own.

    Args:
        store: the queue, for claims and new jobs.
        keeper_store: the queue for beats, reports and the watchdog, with connections of its own.
        address: where to listen, as ``host:port``; port 0 chooses one.
        definitions: what the application declares: its settings and signatures hold for jobs from outside too.
        is_insecure: whether to listen for other machines without TLS or tokens.
        chores: what else to do now and then: without a worker beside the database, nobody else does it.

    Raises:
        ConfigurationError: the address would be open to anyone.
    """

    def __init__(
        self,
        store: SqlJobStore,
        address: str,
        *,
        keeper_store: SqlJobStore | None = None,
        definitions: Iterable[JobDefinition] = (),
        tls: ServerTls | None = None,
        tokens: Tokens | None = None,
        is_insecure: bool = False,
        settings: ServerSettings | None = None,
        metrics: MetricsCollector | None = None,
        clock: Clock | None = None,
        chores: Sequence[Chore] = (),
    ) -> None:
        self._tokens = tokens or Tokens()
        check_listening(address, has_tls=tls is not None, has_tokens=bool(self._tokens), is_insecure=is_insecure)
        self._address = address
        self._tls = tls
        self._settings = settings or ServerSettings()
        self._store = store
        self._keeper_store = keeper_store or store
        self._definitions = list(definitions)
        self._clock = clock or SystemClock()
        self._admission = Admission(self._tokens, self._settings.call_limits, self._clock)
        self._streams = Streams(self._settings.max_streams)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._turn, name="holdfast-jobs-server", daemon=True)
        self._reports = ThreadPoolExecutor(REPORT_THREADS, "holdfast-jobs-reports")
        self._claims = ThreadPoolExecutor(CLAIM_THREADS, "holdfast-jobs-claims")
        self._name = name = WorkerId(f"server-{socket.gethostname()}-{os.getpid()}-{new_id(8)}")
        self._telemetry = WorkerTelemetry(name, metrics)
        self._announcement = Announcement(
            self._keeper_store, name, self._streams.operations, self._clock, look_seconds=_LOOK_SECONDS
        )
        self._watch = Watch(
            self._keeper_store,
            self._telemetry,
            self._clock,
            name=name,
            watchdog_seconds=self._settings.watchdog_seconds,
            poll_seconds=self._settings.poll_seconds,
            on_topic=lambda topic: self._on_loop(self._streams.look, topic),
            on_cancel=lambda: self._on_loop(self._streams.beat_now),
            on_suspects=lambda: self._on_loop(self._streams.look_for_suspects),
            chores=[
                Chore("announcing what remote workers can run", self._announcement.tick, ANNOUNCE_SECONDS),
                Chore("forgetting servers that are gone", self._forget_servers, ANNOUNCE_SECONDS),
                *chores,
            ],
        )
        self._server: Any = None
        self.port = 0

    def start(self) -> None:
        """Begin to serve; ``port`` is known when this returns.

        Raises:
            ConfigurationError: the address cannot be listened on, a file of TLS cannot be used, or the role could not
                record what workers do.
            WriteError: the database takes no writes.
            Unavailable: the database does not answer.
        """
        require_writable(self._store.engine, migrations_table)
        require_rights(self._store.engine, FOR_JOBS)
        credentials = _credentials(self._tls)
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        try:
            self.port = self._wait_for(self._listen(credentials, Receipts(self._keeper_store.receipt_key())))
        except BaseException:
            self._end()
            raise
        self._watch.start()

    def parts(self) -> dict[str, Callable[[], bool]]:
        """Return what it leans on, each with what returns whether it is alive."""
        return {**self._watch.parts(), "the event loop": self._thread.is_alive}

    def stop(self, grace_seconds: float = 10.0) -> None:
        """End: streams at once, so that workers go to another server; other calls when they are answered.

        Nothing is given up: workers go on with what they hold, and report it to whichever server answers next.
        """
        self._watch.stop()
        self._announcement.withdraw()
        if self._thread.is_alive():
            self._wait_for(self._shut(grace_seconds))
        self._end()

    def _forget_servers(self) -> float:
        self._keeper_store.forget_servers()
        return _FORGET_SECONDS

    def _end(self) -> None:
        assert self._loop is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._reports.shutdown()
        self._claims.shutdown()

    def _turn(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _wait_for(self, doing: Any) -> Any:
        assert self._loop is not None
        answer: Future[Any] = asyncio.run_coroutine_threadsafe(doing, self._loop)
        return answer.result()

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        """Call on the loop from another thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(call, *arguments)

    async def _listen(self, credentials: Any, receipts: Receipts) -> int:
        most = self._settings.max_streams + _MOST_OTHER_CALLS
        self._server = grpc.aio.server(options=self._options(), maximum_concurrent_rpcs=most)
        most_bytes = self._settings.max_payload_bytes
        service = JobsService(
            StoreCalls(self._keeper_store, self._store, receipts, self._definitions, most_bytes=most_bytes),
            StreamClaims(self._store, Claiming(self._store, self._telemetry, self._clock), self._name, self._clock),
            self._streams,
            receipts,
            reports=self._reports,
            claims=self._claims,
            poll_seconds=self._settings.poll_seconds,
            is_notified=self._store.notifies,
        )
        self._server.add_generic_rpc_handlers((handlers(service, self._admission),))
        try:
            if credentials is None:
                port = self._server.add_insecure_port(self._address)
            else:
                port = self._server.add_secure_port(self._address, credentials)
        except RuntimeError as error:
            raise ConfigurationError(
                f"{self._address} cannot be listened on. Check that it is host:port of this machine and not in use."
            ) from error
        await self._server.start()
        return int(port)

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", self._settings.max_message_bytes),
            ("grpc.http2.bdp_probe", 0),  # else what is not read yet would be taken from the network all the same
            ("grpc.http2.lookahead_bytes", _UNREAD_BYTES),
            ("grpc.so_reuseport", 0),  # a second server on the same port must fail, not take half of the calls
            ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_SECONDS * 1000)),
            ("grpc.keepalive_time_ms", _KEEPALIVE_SECONDS * 1000),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_SECONDS * 1000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_TIMEOUT_SECONDS * 1000),
        ]

    async def _shut(self, grace_seconds: float) -> None:
        self._streams.end_all("The server stops. Open the stream again: jobs you hold are still yours.")
        await self._server.stop(grace_seconds)
        await self._admission.end()


def _credentials(tls: ServerTls | None) -> Any:
    if tls is None:
        return None
    key = read_file("The TLS key", tls.key_file)
    certificate = read_file("The TLS certificate", tls.cert_file)
    client_ca = None if tls.client_ca_file is None else read_file("The CA of the clients", tls.client_ca_file)
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=client_ca, require_client_auth=client_ca is not None
    )
