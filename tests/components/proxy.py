"""A TCP proxy that breaks connections the way networks do.

Put it in front of a server's port and point the client at it. What it can do is what a client cannot
produce by killing the server: an answer that never arrives although the work was done, silence without an
error, and a slow line. It runs its own event loop in a thread; every method may be called from any thread
and has taken effect when it returns.
"""

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.components.ports import HOST, free_port

CHUNK_BYTES = 65_536
CALL_SECONDS = 10.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
HTTP_CONTINUE = b"HTTP/1.1 100"

Result = TypeVar("Result")


@dataclass(slots=True)
class _Ambush:
    """Waits for a request that contains `pattern`, to lose it (`before_request`) or to lose its answer."""

    pattern: bytes
    before_request: bool
    sprung: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True, eq=False)
class _Link:
    """One client's connection together with the server connection made for it."""

    client: socket.socket
    server: socket.socket
    tail: bytes = b""
    ambush: _Ambush | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    ended_directions: int = 0


class FaultProxy:
    """Forwards `port` to `target_port` on loopback until told otherwise. Use it as a context manager."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._flowing = asyncio.Event()
        self._delay_seconds = 0.0
        self._ambush: _Ambush | None = None
        self._links: set[_Link] = set()
        self._accepting: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen)
        self._call(self._flowing.set)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return self._call(lambda: len(self._links))

    def redirect(self, address: str) -> str:
        """Return a URL or connection string with the server's port replaced by the proxy's."""
        direct, proxied = f":{self.target_port}", f":{self.port}"
        redirected, count = re.subn(rf"{direct}(?!\d)", proxied, address)
        if count == 0:
            raise ValueError(f"{address!r} does not name port {self.target_port}")
        return redirected

    def pass_through(self) -> None:
        """Heal everything: accept connections, forward at once, forget armed drops.

        Bytes held back by `blackhole` are delivered now, as after a real partition.
        """
        self._call(self._heal)

    def cut(self) -> None:
        """Reset every open connection now. New ones are still accepted."""
        self._call(self._reset_all)

    def refuse(self) -> None:
        """Refuse new connections; open ones stay."""
        self._call(self._stop_listening)

    def blackhole(self) -> None:
        """Accept and keep connections, but let no byte pass in either direction."""
        self._call(self._flowing.clear)

    def delay(self, seconds: float) -> None:
        """Hold every piece of data back for `seconds`, in both directions."""
        self._call(lambda: setattr(self, "_delay_seconds", seconds))

    def drop_next_answer(self, containing: bytes = b"") -> threading.Event:
        """Lose the answer to the next request that contains `containing` (by default: any).

        The request reaches the server. When its answer arrives here the connection is reset instead, so
        the work is done and the client cannot know. The event returned is set when that has happened.
        """
        return self._arm(_Ambush(containing, before_request=False))

    def drop_next_request(self, containing: bytes = b"") -> threading.Event:
        """Lose the next request that contains `containing`: reset the connection instead of forwarding it.

        To the client this looks exactly like `drop_next_answer`, but the server never saw the request.
        """
        return self._arm(_Ambush(containing, before_request=True))

    def _arm(self, ambush: _Ambush) -> threading.Event:
        self._call(lambda: setattr(self, "_ambush", ambush))
        return ambush.sprung

    def _call(self, function: Callable[[], Result]) -> Result:
        async def inside() -> Result:
            return function()

        return self._run(inside())

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_SECONDS)

    def _heal(self) -> None:
        self._delay_seconds = 0.0
        self._ambush = None
        for link in self._links:
            link.ambush = None
        self._flowing.set()
        if self._listener is None:
            self._listen()

    def _listen(self) -> None:
        self._listener = socket.create_server((HOST, self.port), backlog=128)
        self._listener.setblocking(False)
        self._accepting = self._loop.create_task(self._accept(self._listener))

    def _stop_listening(self) -> None:
        if self._listener is None or self._accepting is None:
            return
        self._loop.remove_reader(self._listener)
        self._accepting.cancel()
        self._listener.close()
        self._listener = None

    def _reset_all(self) -> None:
        for link in list(self._links):
            self._close(link, reset=True)

    async def _shut_down(self) -> None:
        tasks = [task for link in self._links for task in link.tasks]
        if self._accepting is not None:
            tasks.append(self._accepting)
        self._stop_listening()
        self._reset_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _close(self, link: _Link, *, reset: bool) -> None:
        """Close both ends. The readers go first: the loop must not watch a number the next socket gets."""
        if link not in self._links:
            return
        self._links.discard(link)
        for task in link.tasks - {asyncio.current_task(self._loop)}:
            task.cancel()
        for end in link.client, link.server:
            self._loop.remove_reader(end)
            self._loop.remove_writer(end)
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            end.close()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = await self._loop.sock_accept(listener)
            server = socket.socket()
            server.setblocking(False)
            for end in client, server:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(client, server)
            self._links.add(link)
            self._spawn(link, self._connect(link))

    def _spawn(self, link: _Link, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        link.tasks.add(task)
        task.add_done_callback(link.tasks.discard)

    async def _connect(self, link: _Link) -> None:
        try:
            await self._flowing.wait()
            await self._loop.sock_connect(link.server, (HOST, self.target_port))
        except OSError:
            self._close(link, reset=True)
            return
        self._spawn(link, self._pump(link, link.client, link.server, self._request_may_pass))
        self._spawn(link, self._pump(link, link.server, link.client, self._answer_may_pass))

    async def _pump(
        self,
        link: _Link,
        source: socket.socket,
        sink: socket.socket,
        may_pass: Callable[[_Link, bytes], bool],
    ) -> None:
        try:
            while data := await self._receive(source):
                if not may_pass(link, data):
                    self._close(link, reset=True)
                    return
                await self._loop.sock_sendall(sink, data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(link, reset=True)
            return
        link.ended_directions += 1
        if link.ended_directions == 2:
            self._close(link, reset=False)

    async def _receive(self, source: socket.socket) -> bytes:
        data = await self._loop.sock_recv(source, CHUNK_BYTES)
        if self._delay_seconds:
            await asyncio.sleep(self._delay_seconds)
        await self._flowing.wait()
        return data

    def _request_may_pass(self, link: _Link, data: bytes) -> bool:
        ambush = self._ambush
        if ambush is None:
            return True
        seen = link.tail + data
        if ambush.pattern not in seen:
            link.tail = seen[1 - len(ambush.pattern) :] if len(ambush.pattern) > 1 else b""
            return True
        self._ambush = None
        link.tail = b""
        if ambush.before_request:
            self._loop.call_soon(ambush.sprung.set)  # after the reset that follows this answer
            return False
        link.ambush = ambush
        return True

    def _answer_may_pass(self, link: _Link, data: bytes) -> bool:
        if link.ambush is None or _only_asks_for_the_body(data):
            return True
        self._loop.call_soon(link.ambush.sprung.set)
        return False


def _only_asks_for_the_body(data: bytes) -> bool:
    """True for HTTP's "100 Continue" unless the real answer follows it in the same piece."""
    return data.startswith(HTTP_CONTINUE) and data.partition(b"\r\n\r\n")[2] == b""
