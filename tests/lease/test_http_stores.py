"""What the HTTP stores add to the conformance suite: one attempt per write, and what each answer means.

No emulator can be told to answer 503 or to break in mid-answer, so a small scripted service does that here; the SDKs
in front of it are the real ones with their real retry policies.
"""

import base64
import contextlib
import http.server
import json
import os
import socket
import ssl
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.cosmos import CosmosClient
from azure.data.tables import TableClient
from azure.storage.blob import ContainerClient

from holdfast.core.errors import Ambiguous, Conflict, StateStoreError, Unavailable
from holdfast.lease.documents import DocumentStore, ETag
from holdfast.lease.stores._http import Call, Failure, Place, classify, http_date
from holdfast.lease.stores.blob import BlobDocumentStore
from holdfast.lease.stores.cosmos import CosmosDocumentStore
from holdfast.lease.stores.s3 import S3DocumentStore
from holdfast.lease.stores.table import TableDocumentStore
from tests.components.ports import HOST, free_port
from tests.components.s3 import CREDENTIALS

NAME = "state/app/orders.json"
SECRET = base64.b64encode(b"a secret that must never be shown").decode()
ETAG = {"blob": '"0x8D"', "table": "W/\"datetime'2026-04-07T01%3A23%3A45.1234567Z'\"", "s3": '"0"', "cosmos": "0"}
KINDS = tuple(ETAG)
WRITES: dict[str, Callable[[DocumentStore, str], object]] = {
    "create": lambda store, kind: store.create(NAME, b"{}"),
    "replace": lambda store, kind: store.replace(NAME, b"{}", ETag(ETAG[kind])),
    "delete": lambda store, kind: store.delete(NAME, ETag(ETAG[kind])),
}


@dataclass(slots=True)
class ScriptedService:
    """Answers every write with `status` and `code` and counts them; reads of Cosmos's own set-up succeed."""

    status: int = 500
    code: str = ""
    writes: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def body_for(self, path: str) -> bytes:
        if path.startswith("/bucket"):
            return f"<Error><Code>{self.code}</Code></Error>".encode() if self.code else b""
        return json.dumps({"odata.error": {"code": self.code, "message": {"value": "scripted"}}}).encode()

    def cosmos_setup(self, path: str) -> bytes | None:
        if path == "/":
            location = {"name": "here", "databaseAccountEndpoint": self.url + "/"}
            return json.dumps({"writableLocations": [location], "readableLocations": [location]}).encode()
        if path.rstrip("/") == "/dbs/d/colls/c":
            return json.dumps({"id": "c", "_rid": "c==", "partitionKey": {"paths": ["/id"], "kind": "Hash"}}).encode()
        return None


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    script = ScriptedService()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            setup = script.cosmos_setup(self.path) if self.command == "GET" else None
            if self.command not in ("GET", "HEAD"):
                script.writes.append(f"{self.command} {self.path}")
            body = setup if setup is not None else script.body_for(self.path)
            self.send_response(200 if setup is not None else script.status)
            if setup is None and script.code:
                self.send_header("x-ms-error-code", script.code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = answer  # noqa: N815 - the names http.server calls

        def log_message(self, format: str, *args: object) -> None:
            return

    server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
    script.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield script
    server.shutdown()
    thread.join()
    server.server_close()


def _open(kind: str, url: str, cleanup: contextlib.ExitStack, **options: Any) -> DocumentStore:
    """Open a store of `kind` at `url` with a client as users build it: all retries at their defaults."""
    if kind == "blob":
        key = {"account_name": "account", "account_key": SECRET}
        container = ContainerClient(f"{url}/account", "db-state", credential=key, **options)
        cleanup.callback(container.close)
        return BlobDocumentStore(container)
    if kind == "table":
        table = TableClient(
            f"{url}/account", "states", credential=AzureNamedKeyCredential("account", SECRET), **options
        )
        cleanup.callback(table.close)
        return TableDocumentStore(table)
    if kind == "s3":
        keys = {**CREDENTIALS, "aws_secret_access_key": SECRET}
        store = S3DocumentStore.from_bucket("bucket", endpoint_url=url, **keys, **options)
        cleanup.callback(store.close)
        return store
    client = cleanup.enter_context(CosmosClient(url, SECRET, **options))
    return CosmosDocumentStore(client.get_database_client("d").get_container_client("c"))


@pytest.fixture
def cleanup() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", WRITES)
@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (401, StateStoreError),
        (403, StateStoreError),
        (408, Ambiguous),
        (412, Conflict),
        (413, StateStoreError),
        (429, Unavailable),
        (500, Ambiguous),
        (502, Ambiguous),
        (503, Ambiguous),
        (504, Ambiguous),
    ],
)
def test_a_write_is_sent_once_and_its_answer_means(
    service: ScriptedService,
    cleanup: contextlib.ExitStack,
    kind: str,
    verb: str,
    status: int,
    meaning: type[StateStoreError],
) -> None:
    """A second attempt would meet the first one and call it a conflict; every SDK makes one by default."""
    store = _open(kind, service.url, cleanup)
    service.status = status
    with pytest.raises(StateStoreError) as raised:
        WRITES[verb](store, kind)
    assert raised.type is meaning
    assert len(service.writes) == 1
    _assert_shows_no_secret(raised.value)


@pytest.mark.parametrize(("kind", "code"), [("blob", "ServerBusy"), ("table", "ServerBusy"), ("s3", "SlowDown")])
@pytest.mark.parametrize("verb", WRITES)
def test_a_service_that_says_it_is_busy_did_nothing(
    service: ScriptedService, cleanup: contextlib.ExitStack, kind: str, code: str, verb: str
) -> None:
    store = _open(kind, service.url, cleanup)
    service.status, service.code = 503, code
    with pytest.raises(Unavailable):
        WRITES[verb](store, kind)
    assert len(service.writes) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_read_that_fails_may_be_tried_again(
    service: ScriptedService, cleanup: contextlib.ExitStack, kind: str, status: int
) -> None:
    store = _open(kind, service.url, cleanup)
    service.status = status
    with pytest.raises(Unavailable):
        store.read(NAME)
    with pytest.raises(Unavailable):
        list(store.list("state/"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_place_and_the_next_step(
    service: ScriptedService, cleanup: contextlib.ExitStack, kind: str, status: int
) -> None:
    store = _open(kind, service.url, cleanup)
    service.status = status
    place = {"blob": "'db-state'", "table": "'states'", "s3": "'bucket'", "cosmos": "'c'"}[kind]
    with pytest.raises(StateStoreError, match=rf"{place}.*\({status}\b.*Check the") as raised:
        store.read(NAME)
    assert raised.type is StateStoreError
    _assert_shows_no_secret(raised.value)


@pytest.mark.parametrize("kind", ["blob", "table", "s3"])
def test_no_error_shows_a_secret(cleanup: contextlib.ExitStack, kind: str) -> None:
    store = _open(kind, f"http://{HOST}:{free_port()}", cleanup)
    with pytest.raises(Unavailable) as raised:
        store.create(NAME, b"{}")
    _assert_shows_no_secret(raised.value)


def test_no_error_shows_a_signature_that_is_part_of_the_address(
    service: ScriptedService, cleanup: contextlib.ExitStack
) -> None:
    away = f"http://{HOST}:{free_port()}"
    for url, status in ((service.url, 403), (service.url, 500), (away, 0)):
        service.status = status
        container = ContainerClient.from_container_url(f"{url}/account/db-state?sv=2024-11-04&sr=c&sig={SECRET}")
        cleanup.callback(container.close)
        with pytest.raises(StateStoreError) as raised:
            BlobDocumentStore(container).create(NAME, b"{}")
        _assert_shows_no_secret(raised.value)


def _assert_shows_no_secret(error: BaseException) -> None:
    shown = "".join(traceback.format_exception(error)) + repr(error)
    assert SECRET not in shown
    assert SECRET.rstrip("=") not in shown


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for loopback that signs itself, with its key in the same file."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    path = tmp_path_factory.mktemp("tls") / "loopback.pem"
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + signed.public_bytes(pem)
    )
    return path


@pytest.mark.parametrize("kind", ["blob", "table", "s3"])
@pytest.mark.parametrize("ending", ["garbage", "cut"])
def test_a_tls_connection_that_breaks_in_mid_answer_is_ambiguous(
    certificate: Path, cleanup: contextlib.ExitStack, kind: str, ending: str
) -> None:
    """azure-core calls a TLS failure a request error, as if nothing had been sent; the write may have landed."""
    port, received = _break_in_mid_answer(certificate, cleanup, ending)
    trust = {"verify": str(certificate)} if kind == "s3" else {"connection_verify": str(certificate)}
    store = _open(kind, f"https://{HOST}:{port}", cleanup, **trust)
    with pytest.raises(Ambiguous):
        store.create(NAME, b'{"whole": true}')
    assert received.wait(10)


def _break_in_mid_answer(certificate: Path, cleanup: contextlib.ExitStack, ending: str) -> tuple[int, threading.Event]:
    """Serve one TLS connection: take the whole request, then send no answer but bytes that are not TLS, or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener = cleanup.enter_context(socket.create_server((HOST, 0)))
    listener.settimeout(10)
    received = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        connection.settimeout(10)
        with context.wrap_socket(connection, server_side=True) as secured:
            _take_request(secured)
            received.set()
            if ending == "garbage":
                os.write(secured.fileno(), b"this is no TLS record")
            else:
                secured.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    thread = threading.Thread(target=serve)
    thread.start()
    cleanup.callback(thread.join)
    port: int = listener.getsockname()[1]
    return port, received


def _take_request(connection: ssl.SSLSocket) -> None:
    """Read one whole request, asking for its body when the client waits for that."""
    stream = connection.makefile("rb")
    headers = {}
    while line := stream.readline().strip().lower():
        name, _, value = line.partition(b":")
        headers[name] = value.strip()
    if headers.get(b"expect") == b"100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    if b"content-length" in headers:
        stream.read(int(headers[b"content-length"]))
    else:
        while stream.readline() != b"\r\n":
            pass


PLACE = Place("box 'b'", "Check the key.")


@pytest.mark.parametrize(
    ("verb", "failure", "meaning"),
    [
        ("create", Failure("x", status=409, code="BlobAlreadyExists"), Conflict),
        ("create", Failure("x", status=409, code="EntityAlreadyExists"), Conflict),
        ("replace", Failure("x", status=409, code="ConditionalRequestConflict"), Conflict),
        ("create", Failure("x", status=409, code=""), Conflict),
        ("create", Failure("x", status=409, code="ContainerBeingDeleted"), StateStoreError),
        ("replace", Failure("x", status=409, code="BlobImmutableDueToPolicy"), StateStoreError),
        ("replace", Failure("x", status=412, code="ConditionNotMet"), Conflict),
        ("replace", Failure("x", status=412, code="LeaseIdMissing"), StateStoreError),
        ("replace", Failure("x", status=404, code="NoSuchKey"), Conflict),
        ("delete", Failure("x", status=404, code="ResourceNotFound"), Conflict),
        ("create", Failure("x", status=404), StateStoreError),
        ("replace", Failure("x", status=404, code="ContainerNotFound"), StateStoreError),
        ("replace", Failure("x", status=404, code="TableNotFound"), StateStoreError),
        ("replace", Failure("x", status=404, code="NoSuchBucket"), StateStoreError),
        ("replace", Failure("x", status=200), Ambiguous),
        ("replace", Failure("x"), Ambiguous),
        ("replace", Failure("x", did_nothing=True), Unavailable),
        ("read", Failure("x"), Unavailable),
        ("read", Failure("x", status=412), StateStoreError),
        ("list", Failure("x", status=500), Unavailable),
        ("open", Failure("x", status=500), Unavailable),
        ("open", Failure("x", status=403), StateStoreError),
    ],
)
def test_what_each_failure_means(verb: Any, failure: Failure, meaning: type[StateStoreError]) -> None:
    error = classify(Call(PLACE, verb, NAME), failure)
    assert type(error) is meaning
    assert "box 'b'" in str(error)


def test_a_date_header_becomes_a_time_in_utc() -> None:
    moment = http_date("Tue, 07 Apr 2026 01:23:45 GMT")
    assert moment is not None
    assert moment.isoformat() == "2026-04-07T01:23:45+00:00"
    assert http_date(None) is None
    assert http_date("soon") is None
    assert http_date("Tue, 07 Apr 2026 01:23:45 -0000") is None
