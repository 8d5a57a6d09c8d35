"""A web server on loopback that receives webhooks, remembers them, and answers as a test says."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.components.ports import HOST

ENDLESS_BYTES = 64 * 1024 * 1024
_CHUNK = b"x" * 65536
_DRIP_SECONDS = 0.02


@dataclass
class Request:
    """What arrived."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: tuple[str, int]

    @property
    def event(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    """What to answer: a status with headers and a body, an endless body, or nothing until the test is over.

    With ``drips`` one header line follows the other until the client breaks off, or behind the headers, when there is a
    body, one byte the other; with ``breaks`` the connection ends.
    """

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_endless: bool = False
    is_silent: bool = False
    drips: bool = False
    breaks: bool = False


@dataclass
class Receiver:
    """Answers 204 unless ``answer`` says otherwise."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    answer: Callable[[Request], Answer] = lambda request: Answer()
    is_over: threading.Event = field(default_factory=threading.Event)
    was_cut_off: threading.Event = field(default_factory=threading.Event)

    @property
    def ids(self) -> list[str]:
        return [request.headers["webhook-id"] for request in self.requests]


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a receiver until the block ends."""
    receiver = Receiver()
    server = _Server((HOST, 0), _handler(receiver))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.url = f"{'http' if tls is None else 'https'}://{HOST}:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True  # a connection that is kept open must not hold up the end of a test

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients of these tests break off on purpose."""


def _handler(receiver: Receiver) -> type[http.server.BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"receiver": receiver})


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    receiver: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path, headers, body, self.client_address)
        self.receiver.requests.append(request)
        self._respond(self.receiver.answer(request))

    def _respond(self, answer: Answer) -> None:
        self.close_connection = answer.is_silent or answer.drips or answer.breaks
        if answer.is_silent:
            self.receiver.is_over.wait()
        elif answer.drips:
            self._drip(answer)
        elif not answer.breaks:
            self._answer(answer)

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(ENDLESS_BYTES if answer.is_endless else len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
        if answer.is_endless:
            self._respond_endlessly()

    def _drip(self, answer: Answer) -> None:
        with suppress(OSError):
            self.wfile.write(f"HTTP/1.1 {answer.status} Drip\r\n".encode())
            if answer.body:
                self.wfile.write(f"content-length: {ENDLESS_BYTES}\r\n\r\n".encode())
            while not self.receiver.is_over.wait(_DRIP_SECONDS):
                self.wfile.write(answer.body or b"x-drip: drop\r\n")
            return
        self.receiver.was_cut_off.set()

    def _respond_endlessly(self) -> None:
        with suppress(OSError):
            for _ in range(ENDLESS_BYTES // len(_CHUNK)):
                self.wfile.write(_CHUNK)
            return
        self.close_connection = True
        self.receiver.was_cut_off.set()

    def log_message(self, format: str, *args: Any) -> None:
        pass
