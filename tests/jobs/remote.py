"""A server of remote workers under test, with throw-away certificates, and workers that reach it over loopback."""

from __future__ import annotations

import datetime
import ipaddress
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.jobs.definition import JobDefinition
from holdfast.jobs.grpc import holdfast_jobs_pb2 as wire
from holdfast.jobs.grpc.client import RemoteQueue, RemoteWorker, remote_job
from holdfast.jobs.grpc.connection import RemoteConnection
from holdfast.jobs.grpc.security import ClientTls, ServerTls, Tokens
from holdfast.jobs.grpc.server import JobsServer, ServerSettings
from holdfast.jobs.settings import WorkerSettings
from tests.components.ports import HOST, free_port
from tests.components.processes import wait_until
from tests.jobs.queues import Queue

TOKEN = "a-token-of-the-tests"
QUICK_SERVER = ServerSettings(poll_seconds=0.05, watchdog_seconds=0.1)
QUICK_WORKER = WorkerSettings(
    concurrency=4, ahead=0, beat_seconds=0.2, watchdog_seconds=0.2, poll_seconds=0.05, drain_seconds=10
)


@dataclass(frozen=True)
class Authority:
    """A certificate authority of its own, and certificates for both ends."""

    directory: Path

    def __post_init__(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "throw-away CA")])
        certificate = _signed(name, name, key.public_key(), key, is_authority=True)
        self._write("ca", key, certificate)
        for role in ("server", "client"):
            own = ec.generate_private_key(ec.SECP256R1())
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)])
            self._write(role, own, _signed(subject, name, own.public_key(), key, is_authority=False))

    def _write(self, role: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.key(role).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        self.certificate(role).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def certificate(self, role: str) -> Path:
        return self.directory / f"{role}.pem"

    def key(self, role: str) -> Path:
        return self.directory / f"{role}.key"

    @cached_property
    def server_tls(self) -> ServerTls:
        return ServerTls(cert_file=self.certificate("server"), key_file=self.key("server"))

    @cached_property
    def mutual_tls(self) -> ServerTls:
        return ServerTls(
            cert_file=self.certificate("server"), key_file=self.key("server"), client_ca_file=self.certificate("ca")
        )

    @cached_property
    def client_tls(self) -> ClientTls:
        return ClientTls(ca_file=self.certificate("ca"))


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    signing_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signing_key, hashes.SHA256())
    )


class Remote:
    """A server on a queue, which can be stopped and started again on the same port, and what talks to it."""

    def __init__(
        self,
        queue: Queue,
        *,
        authority: Authority | None = None,
        token: str | None = TOKEN,
        settings: ServerSettings = QUICK_SERVER,
    ) -> None:
        self.queue = queue
        self.port = free_port()
        self.definitions: list[JobDefinition] = []
        self.token = token
        self._authority = authority
        self._settings = settings
        self._server: JobsServer | None = None

    @property
    def tls(self) -> ClientTls | None:
        return None if self._authority is None else self._authority.client_tls

    def target(self, port: int | None = None) -> str:
        return f"{HOST}:{port or self.port}"

    def start(self) -> None:
        self._server = JobsServer(
            self.queue.store,
            self.target(),
            definitions=self.definitions,
            tls=None if self._authority is None else self._authority.server_tls,
            tokens=None if self.token is None else Tokens.of(self.token),
            settings=self._settings,
        )
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(grace_seconds=5)
        self._server = None

    @contextmanager
    def serving(self) -> Iterator[Remote]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    @contextmanager
    def connection(self, port: int | None = None) -> Iterator[RemoteConnection]:
        opened = RemoteConnection(self.target(port), token=self.token, tls=self.tls)
        try:
            yield opened
        finally:
            opened.close()

    def enqueuing(self) -> RemoteQueue:
        return RemoteQueue(self.target(), token=self.token, tls=self.tls)

    @contextmanager
    def worker(
        self,
        handlers: Sequence[JobDefinition],
        *,
        port: int | None = None,
        settings: WorkerSettings = QUICK_WORKER,
        drains: bool = True,
    ) -> Iterator[RemoteWorker]:
        """Run a remote worker inside the block; at its end it must, or must not, drain in time."""
        worker = RemoteWorker(self.target(port), handlers, token=self.token, tls=self.tls, settings=settings)
        finished: list[bool] = []
        thread = threading.Thread(target=lambda: finished.append(worker.run()), name="remote worker under test")
        thread.start()
        try:
            yield worker
        finally:
            worker.stop()
            thread.join()
        assert finished == [drains]

    def until_empty(self) -> None:
        """Wait until every job has ended."""
        wait_until(lambda: self.count("ready", "scheduled", "suspect", "running") == 0, "every job to end")

    def count(self, *statuses: str) -> int:
        rows = self.queue.rows("SELECT status, count(*) AS n FROM holdfast_jobs GROUP BY status")
        return sum(row["n"] for row in rows if row["status"] in statuses)


def handler(function: Callable[..., Any], topic: str = "email") -> JobDefinition:
    return remote_job(topic)(function)


class Stream:
    """A stream in the hands of a test: it grants, and keeps what it was sent."""

    def __init__(
        self,
        connection: RemoteConnection,
        worker: str = "w",
        topics: Sequence[str] = ("email",),
        operations: Sequence[wire.Operations] = (),
        *,
        tests_suspects: bool = False,
    ) -> None:
        self.worker = worker
        self.assignments: list[wire.JobAssignment] = []
        self.beats = 0
        self.error: Any = None
        self._outbox: list[wire.WorkerMessage | None] = []
        self._news = threading.Condition()
        start = wire.Start(worker=worker, topics=topics, operations=operations, tests_suspects=tests_suspects)
        self.send(wire.WorkerMessage(start=start))
        self._call = connection.stub.StreamJobs(self._messages(), metadata=connection.metadata)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def send(self, message: wire.WorkerMessage | None) -> None:
        with self._news:
            self._outbox.append(message)
            self._news.notify()

    def grant(self, credit: int) -> None:
        self.send(wire.WorkerMessage(grant=wire.Grant(credit=credit)))

    def close(self) -> None:
        """Say that there is nothing more to come, and wait for the server to end the stream."""
        self.send(None)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def ended(self) -> Any:
        """Return the error that ended the stream."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.error

    def until(self, count: int) -> list[wire.JobAssignment]:
        wait_until(lambda: len(self.assignments) >= count, f"{count} assignments")
        return list(self.assignments)

    def _messages(self) -> Iterator[wire.WorkerMessage]:
        while True:
            with self._news:
                while not self._outbox:
                    self._news.wait()
                message = self._outbox.pop(0)
            if message is None:
                return
            yield message

    def _read(self) -> None:
        try:
            for message in self._call:
                if message.HasField("assignment"):
                    self.assignments.append(message.assignment)
                else:
                    self.beats += 1
        except Exception as error:
            self.error = error
        self.send(None)


def report(assignment: wire.JobAssignment, **result: Any) -> wire.Report:
    """Return a report about an assignment: a success unless told otherwise."""
    result = result or {"succeeded": wire.Succeeded()}
    return wire.Report(job_id=assignment.job_id, attempt=assignment.attempt, receipt=assignment.receipt, **result)


def held(assignment: wire.JobAssignment, **said: Any) -> wire.HeldJob:
    """Return a beat for an assignment."""
    return wire.HeldJob(job_id=assignment.job_id, attempt=assignment.attempt, receipt=assignment.receipt, **said)
