"""Messages as HTTP requests to one URL, signed, each answered with 2xx before the next one is sent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from ...core.clock import Clock, SystemClock
from ...core.errors import ConfigurationError, OutboxError
from ..message import Message
from .cloud_events import BATCH_CONTENT_TYPE, CONTENT_TYPE, as_json, as_json_batch, checked_source
from .extras import needed
from .signature import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, Secret, signature_headers, signing_keys

if TYPE_CHECKING:
    import httpx

MOST_ANSWER_BYTES = 64 * 1024
_OWN_HEADERS = frozenset({"content-type", "content-length", "host", ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER})
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VISIBLE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
_TELLS_WHEN = (429, 503)
_NO_URL = "The webhook's url is not one. Write it as https://host/path."


@dataclass(frozen=True, slots=True)
class _Delivery:
    """One request: its id, which is the same whenever it is sent, its body, and what people call it."""

    id: str
    body: bytes
    title: str


class WebhookSink:
    """Posts messages to a URL, as CloudEvents JSON, in order; any answer but 2xx raises.

    Requests carry ``webhook-id`` (the message id), ``webhook-timestamp`` and, with a secret, ``webhook-signature``
    after the Standard Webhooks scheme: see ``holdfast.outbox.sinks.verify``. Redirects are not followed. Certificates
    are checked. If the process dies during a request, it comes again with the same id and body.

    Args:
        url: where to post to, ``https://`` or ``http://``; a user and password in it are sent as basic authentication
            and never shown.
        source: who sends, a URI reference such as ``/shop``.
        secret: what to sign with; several while they are changed: each request then has a signature for each.
        batch: send as many messages in one request as ``max_batch_bytes`` allows, instead of one.
        max_batch_bytes: how large a batched request may be; a larger message goes alone.
        headers: what else to send, such as ``{"authorization": "Bearer …"}``.
        timeout_seconds: how long to wait for a connection, and for each part of an answer.
        client: your own ``httpx.Client``, for a proxy, a client certificate or another certificate authority; you close
            it.
        clock: tells the time of sending.

    Raises:
        ConfigurationError: the URL, the source, a secret or a header cannot be used.
        MissingDependencyError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        source: str,
        secret: Secret | Sequence[Secret] | None = None,
        batch: bool = False,
        max_batch_bytes: int = 512 * 1024,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = 10.0,
        client: httpx.Client | None = None,
        clock: Clock | None = None,
    ) -> None:
        with needed("WebhookSink", "httpx", "webhook"):
            import httpx
        self._place = _checked_place(url)
        try:
            given = httpx.URL(url)
        except httpx.InvalidURL:
            raise ConfigurationError(_NO_URL) from None  # it may hold a password
        self._url = given.copy_with(username=None, password=None)  # httpx logs it
        self._auth = (given.username, given.password) if given.userinfo else httpx.USE_CLIENT_DEFAULT
        self._source = checked_source(source)
        self._keys = signing_keys(secret)
        self._is_batched = batch
        self._max_batch_bytes = max_batch_bytes
        self._headers = _checked_headers(headers or {})
        self._timeout_seconds = timeout_seconds
        self._owns_client = client is None
        self._client = client or httpx.Client()
        self._httpx = httpx
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"WebhookSink({self._place!r})"

    def send(self, messages: Sequence[Message]) -> None:
        """Post messages in order, and stop at the first that is not taken.

        Raises:
            OutboxError: the receiver answered something other than 2xx, or nothing.
        """
        for delivery in self._deliveries(messages):
            self._post(delivery)

    def close(self) -> None:
        """Close the connections; the sink cannot be used after that."""
        if self._owns_client:
            self._client.close()

    def _deliveries(self, messages: Sequence[Message]) -> Iterator[_Delivery]:
        bodies = ((message.message_id, as_json(message, self._source)) for message in messages)
        if self._is_batched:
            return _batched(bodies, self._max_batch_bytes)
        return (_Delivery(_in_header(name), body, f"message '{name}'") for name, body in bodies)

    def _post(self, delivery: _Delivery) -> None:
        headers = {
            **self._headers,
            "content-type": BATCH_CONTENT_TYPE if self._is_batched else CONTENT_TYPE,
            **signature_headers(self._keys, delivery.id, delivery.body, self._clock),
        }
        try:
            with self._client.stream(
                "POST",
                self._url,
                content=delivery.body,
                headers=headers,
                auth=self._auth,
                timeout=self._timeout_seconds,
                follow_redirects=False,
            ) as answer:
                if not answer.is_success:
                    raise OutboxError(self._refusal(answer, delivery))
                self._read_rest(answer)
        except self._httpx.HTTPError as error:
            raise OutboxError(
                f"The webhook {self._place} {self._silence(error)} {delivery.title}, so it may not be delivered and "
                "comes again with the same id. Check that the receiver runs and its address."
            ) from error

    def _read_rest(self, answer: httpx.Response) -> None:
        """Read a short answer to its end, so that the connection can be used again; a long one is cut off."""
        until = self._clock.monotonic() + self._timeout_seconds
        size = 0
        with suppress(self._httpx.HTTPError):  # 2xx has been said: the message is delivered
            for part in answer.iter_raw():
                size += len(part)
                if size > MOST_ANSWER_BYTES or self._clock.monotonic() > until:
                    return

    def _refusal(self, answer: httpx.Response, delivery: _Delivery) -> str:
        told = f"The webhook {self._place} answered {answer.status_code} to {delivery.title}: it was not delivered"
        if answer.is_redirect:
            return f"{told}. Redirects are not followed; give the sink the address it leads to."
        wait = _asked_to_wait(answer) if answer.status_code in _TELLS_WHEN else None
        if wait is not None:
            return f"{told}. The receiver asks to try again {wait} (Retry-After)."
        return f"{told} and comes again. Look into the receiver's log for why."

    def _silence(self, error: httpx.HTTPError) -> str:
        if isinstance(error, self._httpx.TimeoutException):
            return f"did not answer within {self._timeout_seconds:g} s to"
        if isinstance(error, self._httpx.ConnectError):
            return f"could not be reached ({str(error).splitlines()[0] if str(error) else 'no connection'}) for"
        return f"broke off the connection ({type(error).__name__}) at"


def _batched(bodies: Iterator[tuple[str, bytes]], most_bytes: int) -> Iterator[_Delivery]:
    """Yield batches that are below the size, and single messages that are above it."""
    names: list[str] = []
    events: list[bytes] = []
    size = 0
    for name, body in bodies:
        if events and size + len(body) + 2 > most_bytes:
            yield _batch(names, events)
            names, events, size = [], [], 0
        names.append(name)
        events.append(body)
        size += len(body) + 1
    if events:
        yield _batch(names, events)


def _batch(names: Sequence[str], events: Sequence[bytes]) -> _Delivery:
    """Return a batch whose id follows from the ids in it, so that it is the same when the batch comes again."""
    digest = hashlib.sha256("\x00".join(names).encode()).hexdigest()[:32]
    return _Delivery(
        f"batch_{digest}", as_json_batch(events), f"the batch of {len(events)} from message '{names[0]}' on"
    )


def _in_header(message_id: str) -> str:
    """Return an id as a header can hold it: what is not visible ASCII is percent-encoded, as in URLs."""
    return quote(message_id, safe=_VISIBLE)


def _asked_to_wait(answer: httpx.Response) -> str | None:
    told = answer.headers.get("retry-after", "").strip()
    if told.isascii() and told.isdigit() and len(told) <= 9:
        return f"in {int(told)} s"
    try:
        return f"at {parsedate_to_datetime(told).isoformat()}"
    except (ValueError, TypeError):
        return None


def _checked_place(url: object) -> str:
    """Return the URL as it may be shown: without credentials and without a query.

    Raises:
        ConfigurationError: it is not an address of a web server.
    """
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https") or any(character <= " " for character in str(url)):
        raise ConfigurationError(_NO_URL)
    shown_host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown_host}{'' if port is None else f':{port}'}{parts.path}"


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if name.lower() in _OWN_HEADERS:
            raise ConfigurationError(f"The header '{name}' is set by WebhookSink itself. Leave it out of headers.")
        if not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise ConfigurationError(f"The header {name!r:.80} cannot be sent. Use visible ASCII characters only.")
    return dict(headers)
