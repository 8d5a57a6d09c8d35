"""Messages as HTTP requests to one URL, signed, each answered with 2xx before the next one is sent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from ...core.clock import Clock, SystemClock
from ...core.errors import ConfigurationError, DeliveryError
from ...core.extras import needed
from ...core.redaction import hide
from ...core.secret_forms import HIDDEN
from ...runtime.logs import redact_logs
from ..message import Message
from .answers import asked_to_wait, is_permanent
from .cloud_events import BATCH_CONTENT_TYPE, CONTENT_TYPE, as_json, as_json_batch, checked_source
from .http_lines import Answer, HttpLines, Silence
from .protocol import Taken, called
from .signature import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, Secret, signature_headers, signing_keys

if TYPE_CHECKING:
    import httpx

_OWN_HEADERS = frozenset({"content-type", "content-length", "host", ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER})
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VISIBLE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
_NO_URL = "The webhook's url is not one. Write it as https://host/path."


@dataclass(frozen=True, slots=True)
class _Delivery:
    """One request: its id, which is the same whenever it is sent, its body, and the messages in it."""

    id: str
    body: bytes
    messages: Sequence[Message]

    @property
    def title(self) -> str:
        """Return what people call it."""
        return called(self.messages)


class WebhookSink:
    """Posts messages to a URL, as CloudEvents JSON, in order; any answer but 2xx raises.

    Requests carry ``webhook-id`` (the message id), ``webhook-timestamp`` and, with a secret, ``webhook-signature``
    after the Standard Webhooks scheme: see ``holdfast.outbox.sinks.verify``. Redirects are not followed. Certificates
    are checked. What was answered with 2xx is not sent again when a later message fails. If the process dies during a
    request, it comes again with the same id and body.

    Args:
        url: where to post to, ``https://`` or ``http://``; a user and password in it are sent as basic authentication
            and never shown.
        source: who sends, a URI reference such as ``/shop``.
        secret: what to sign with; several while they are changed: each request then has a signature for each.
        batch: send as many messages in one request as ``max_batch_bytes`` allows, instead of one.
        max_batch_bytes: how large a batched request may be; a larger message goes alone.
        headers: what else to send, such as ``{"authorization": "Bearer …"}``.
        timeout_seconds: how long a request may take, from looking up the host's name to the last header of the answer.
        client: your own ``httpx.Client``, for a proxy, a client certificate or another certificate authority; you close
            it.
        clock: where the time comes from of sending.

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
        with needed("WebhookSink needs httpx", "webhook"):
            import httpx
        redact_logs("httpx")  # it logs the URL of every request
        self._place = _checked_place(url)
        try:
            given = httpx.URL(url)
        except httpx.InvalidURL:
            raise ConfigurationError(_NO_URL) from None  # it may hold a password
        self._url = given.copy_with(username=None, password=None)  # httpx logs it
        if self._url.path != "/":
            hide(str(self._url.copy_with(query=None, fragment=None)), self._place)
        self._auth = (given.username, given.password) if given.userinfo else httpx.USE_CLIENT_DEFAULT
        self._source = checked_source(source)
        self._keys = signing_keys(secret)
        self._is_batched = batch
        self._max_batch_bytes = max_batch_bytes
        self._headers = _checked_headers(headers or {})
        self._lines = HttpLines(timeout_seconds, client)
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"WebhookSink({self._place!r})"

    def send(self, messages: Sequence[Message]) -> None:
        """Post messages in order, and stop at the first that is not taken.

        Raises:
            DeliveryError: the receiver answered something other than 2xx, or nothing.
        """
        taken = Taken()
        for delivery in self._deliveries(messages, taken):
            with taken.before(delivery.messages):
                self._post(delivery)
            taken.add(delivery.messages)

    def close(self) -> None:
        """Close the connections; the sink cannot be used after that."""
        self._lines.close()

    def _deliveries(self, messages: Sequence[Message], taken: Taken) -> Iterator[_Delivery]:
        encoded = ((message, self._encoded(message, taken)) for message in messages)
        if self._is_batched:
            return _batched(encoded, self._max_batch_bytes)
        return (_Delivery(_in_header(message.message_id), body, [message]) for message, body in encoded)

    def _encoded(self, message: Message, taken: Taken) -> bytes:
        with taken.before([message]):
            return as_json(message, self._source)

    def _post(self, delivery: _Delivery) -> None:
        headers = {
            **self._headers,
            "content-type": BATCH_CONTENT_TYPE if self._is_batched else CONTENT_TYPE,
            **signature_headers(self._keys, delivery.id, delivery.body, self._clock),
        }
        try:
            answer = self._lines.post(self._url, content=delivery.body, headers=headers, auth=self._auth)
        except Silence as error:
            raise DeliveryError(
                f"The webhook {self._place} {error} {delivery.title}, so it may not be delivered and comes again with "
                "the same id. Check that the receiver runs and its address."
            ) from error
        if not answer.is_success:
            wait = asked_to_wait(answer.status, answer.headers, self._clock.now())
            raise DeliveryError(
                self._refusal(answer, wait, delivery),
                is_permanent=is_permanent(answer.status),
                retry_after_seconds=wait,
            )

    def _refusal(self, answer: Answer, wait: float | None, delivery: _Delivery) -> str:
        sentence = f"The webhook {self._place} answered {answer.status} to {delivery.title}: it was not delivered"
        if answer.is_redirect:
            return f"{sentence}. Redirects are not followed; give the sink the address it leads to."
        if wait is not None:
            return f"{sentence}. The receiver asks to wait {wait:.0f} s before the next try (Retry-After)."
        if is_permanent(answer.status):
            return f"{sentence}, and would be answered so again. Look into the receiver's log for why."
        return f"{sentence} and comes again. Look into the receiver's log for why."


def _batched(encoded: Iterator[tuple[Message, bytes]], most_bytes: int) -> Iterator[_Delivery]:
    """Yield batches that are below the size, and single messages that are above it."""
    together: list[Message] = []
    events: list[bytes] = []
    size = 0
    for message, body in encoded:
        if events and size + len(body) + 2 > most_bytes:
            yield _batch(together, events)
            together, events, size = [], [], 0
        together.append(message)
        events.append(body)
        size += len(body) + 1
    if events:
        yield _batch(together, events)


def _batch(messages: Sequence[Message], events: Sequence[bytes]) -> _Delivery:
    """Return a batch whose id follows from the ids in it, so that it is the same when the batch comes again."""
    names = (message.message_id for message in messages)
    digest = hashlib.sha256("\x00".join(names).encode()).hexdigest()[:32]
    return _Delivery(f"batch_{digest}", as_json_batch(events), messages)


def _in_header(message_id: str) -> str:
    """Return an id as a header can hold it: what is not visible ASCII is percent-encoded, as in URLs."""
    return quote(message_id, safe=_VISIBLE)


def _checked_place(url: object) -> str:
    """Return the URL as it may be shown: without credentials, query and path, which many receivers take as a secret.

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
    return f"{parts.scheme}://{shown_host}{'' if port is None else f':{port}'}{_shown_path(parts.path)}"


def _shown_path(path: str) -> str:
    return path if path in ("", "/") else f"/{HIDDEN}"


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if name.lower() in _OWN_HEADERS:
            raise ConfigurationError(f"The header '{name}' is set by WebhookSink itself. Leave it out of headers.")
        if not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise ConfigurationError(f"The header {name!r:.80} cannot be sent. Use visible ASCII characters only.")
    return dict(headers)
