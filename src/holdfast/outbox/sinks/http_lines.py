"""Lines to a web server: requests that take no longer than they may, whatever the server does.

An answer has come when its status and headers have. What follows is read, so that the connection can be used again, up
to 64 KiB and for the rest of the time; it changes nothing any more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.errors import DbError, DeliveryError
from ...database.sockets import cut_off
from .timed import TimedCalls

if TYPE_CHECKING:
    import httpx

MOST_ANSWER_BYTES = 64 * 1024
_OPENED = (".connect_tcp.complete", ".start_tls.complete")


class Silence(DbError):  # noqa: N818 - it says what happened
    """There was no answer. Says what there was instead, in words that go on with what was sent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The beginning of an answer."""

    status: int
    headers: Mapping[str, str]

    @property
    def is_success(self) -> bool:
        """Return whether it is a 2xx."""
        return 200 <= self.status < 300

    @property
    def is_redirect(self) -> bool:
        """Return whether it leads elsewhere."""
        return 300 <= self.status < 400


class HttpLines:
    """Makes requests, several at a time if need be, each on a line of its own.

    Args:
        seconds: how long a request may take.
        client: is used by all lines and closed by whoever has made it; each line has one of its own when left out.
    """

    def __init__(self, seconds: float, client: httpx.Client | None = None) -> None:
        import httpx

        self._httpx = httpx
        self._calls = TimedCalls(seconds)
        self._client = client
        self._idle: deque[_Line] = deque()
        self._lock = threading.Lock()
        self._is_closed = False

    def post(self, url: httpx.URL, **options: Any) -> Answer:
        """Return the answer to a request.

        Raises:
            Silence: there was none in time, or the connection broke.
            DeliveryError: the lines were closed, or too many requests have not ended.
        """
        line = self._line()
        exchange = _Exchange(line)
        try:
            self._calls.make(
                lambda: exchange.make(url, **options, timeout=self._calls.seconds),
                cut=line.cut,
                late=line.close,
            )
        except TimeoutError as error:
            if exchange.answer is None:
                raise Silence(f"did not answer within {self._calls.seconds:g} s to") from error
            return exchange.answer
        except self._httpx.HTTPError as error:
            self._put_back(line)
            if exchange.answer is None:
                raise Silence(self._silence(error)) from error
        except BaseException:
            line.close()
            raise
        else:
            self._put_back(line)
        assert exchange.answer is not None
        return exchange.answer

    def close(self) -> None:
        """Close the connections; nothing can be sent after that."""
        with self._lock:
            self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _line(self) -> _Line:
        with self._lock:
            if self._is_closed:
                raise DeliveryError("The sink is closed. Make a new one.")
            if self._idle:
                return self._idle.pop()
        return _Line(self._client or self._httpx.Client(), is_own=self._client is None)

    def _put_back(self, line: _Line) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(line)
                return
        line.close()

    def _silence(self, error: httpx.HTTPError) -> str:
        if isinstance(error, self._httpx.TimeoutException):
            return f"did not answer within {self._calls.seconds:g} s to"
        if isinstance(error, self._httpx.ConnectError):
            return f"could not be reached ({str(error).splitlines()[0] if str(error) else 'no connection'}) for"
        return f"broke off the connection ({type(error).__name__}) at"


class _Line:
    """A client that makes one request at a time, so that it is known which connection to cut when that is late.

    Of a client that others use, too, only a connection that the request has opened itself is known.
    """

    def __init__(self, client: httpx.Client, *, is_own: bool) -> None:
        self.client = client
        self._is_own = is_own
        self._socket: Any = None

    def begin(self) -> None:
        """Forget a connection that may be in use by others now."""
        if not self._is_own:
            self._socket = None

    def opened(self, event: str, info: Mapping[str, Any]) -> None:
        """Note a connection: called by httpx with what it does."""
        if event.endswith(_OPENED):
            self._socket = info["return_value"].get_extra_info("socket")

    def cut(self) -> None:
        """Have whoever waits for the connection get its end. A descriptor of our own is not closed under our hands."""
        with suppress(OSError):  # it has ended already
            if self._socket is not None:
                cut_off(self._socket.fileno())

    def close(self) -> None:
        """Close the client, if it is ours."""
        if self._is_own:
            self.client.close()


class _Exchange:
    """A request, and the answer as soon as it is there: seen from the thread that waits for it."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self.answer: Answer | None = None

    def make(self, url: httpx.URL, **options: Any) -> None:
        """Send it, and read the answer."""
        self._line.begin()
        extensions = {"trace": self._line.opened}
        with self._line.client.stream("POST", url, **options, follow_redirects=False, extensions=extensions) as answer:
            self.answer = Answer(answer.status_code, answer.headers)
            self._read_rest(answer)

    def _read_rest(self, answer: httpx.Response) -> None:
        size = 0
        for part in answer.iter_raw():
            size += len(part)
            if size > MOST_ANSWER_BYTES:
                return
