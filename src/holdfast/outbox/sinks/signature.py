"""Signed webhooks after the Standard Webhooks scheme: for the sink that signs, and for receivers that check.

A signature covers the id, the time of sending and the body, so that neither can be changed and an old request cannot be
played again. Receivers need nothing but this module, or any other library for Standard Webhooks.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

from ...core.clock import Clock, SystemClock, new_id
from ...core.errors import ConfigurationError, OutboxError

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
TOLERANCE_SECONDS = 300.0

_PREFIX = "whsec_"
_VERSION = "v1,"
_LEAST_KEY_BYTES = 24
_NEW_KEY_BYTES = 32
_SECONDS = re.compile(r"[0-9]{1,12}")

Secret = str | bytes


class SignatureError(OutboxError):
    """A request is not signed by who it should come from, or is too old. Answer 401; a retry cannot help."""


def new_secret() -> str:
    """Return a new secret for a sender and its receiver."""
    return _PREFIX + base64.b64encode(bytes.fromhex(new_id(2 * _NEW_KEY_BYTES))).decode()


def verify(
    body: bytes,
    headers: Mapping[str, str],
    secret: Secret | Sequence[Secret],
    *,
    tolerance_seconds: float = TOLERANCE_SECONDS,
    clock: Clock | None = None,
) -> None:
    """Return when a request is signed with the secret and was sent just now, raise otherwise.

    A request may come again with the same id: deduplicate by the events' ids.

    Args:
        body: the request's body, byte for byte as it was received.
        headers: the request's headers, in upper or lower case.
        secret: the secret shared with the sender; several while they are changed.
        tolerance_seconds: how far the time of sending may be from this machine's clock.
        clock: where the time comes from.

    Raises:
        SignatureError: a header is missing, the time is too far away, or no signature fits.
        ConfigurationError: the secret is none.
    """
    found = {name.lower(): value for name, value in headers.items()}
    webhook_id, timestamp, signatures = (
        _required(found, name) for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER)
    )
    _require_recent(timestamp, tolerance_seconds, clock or SystemClock())
    expected = [_signature(key, webhook_id, timestamp, body) for key in signing_keys(secret)]
    fits = [hmac.compare_digest(one.encode(), given.encode()) for one in expected for given in signatures.split(" ")]
    if not any(fits):
        raise SignatureError(
            "The webhook request is not signed with this secret, or its body was changed on the way. Refuse it; check "
            "that the secret is the sender's and that the body is verified as it was received."
        )


def signature_headers(keys: Sequence[bytes], webhook_id: str, body: bytes, clock: Clock) -> dict[str, str]:
    """Return the headers of a request that is sent now, with one signature for each key."""
    timestamp = str(int(clock.now().timestamp()))
    headers = {ID_HEADER: webhook_id, TIMESTAMP_HEADER: timestamp}
    if keys:
        headers[SIGNATURE_HEADER] = " ".join(_signature(key, webhook_id, timestamp, body) for key in keys)
    return headers


def signing_keys(secret: Secret | Sequence[Secret] | None) -> tuple[bytes, ...]:
    """Return the keys of one secret, or of several.

    Raises:
        ConfigurationError: one is not written as a secret is, or is too short.
    """
    if secret is None:
        return ()
    secrets = [secret] if isinstance(secret, (str, bytes)) else list(secret)
    if not secrets:
        raise ConfigurationError("The list of secrets is empty. Leave secret out to send without a signature.")
    return tuple(_key(one) for one in secrets)


def _key(secret: Secret) -> bytes:
    try:
        key = secret if isinstance(secret, bytes) else base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < _LEAST_KEY_BYTES:
        raise ConfigurationError(
            f"A webhook secret is not '{_PREFIX}' and {_LEAST_KEY_BYTES} or more bytes in base64. Make one with "
            "holdfast.outbox.sinks.new_secret(), or pass the bytes themselves."
        )
    return key


def _signature(key: bytes, webhook_id: str, timestamp: str, body: bytes) -> str:
    signed = b".".join((webhook_id.encode(), timestamp.encode(), body))
    return _VERSION + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _required(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value or not value.isascii():
        raise SignatureError(
            f"The webhook request has no usable {name} header, so nobody knows who sent it. Refuse it."
        )
    return value


def _require_recent(timestamp: str, tolerance_seconds: float, clock: Clock) -> None:
    if not _SECONDS.fullmatch(timestamp):
        raise SignatureError(f"The webhook request's {TIMESTAMP_HEADER} is not a number of seconds. Refuse it.")
    away_seconds = abs(clock.now().timestamp() - int(timestamp))
    if away_seconds > tolerance_seconds:
        raise SignatureError(
            f"The webhook request was sent {away_seconds:.0f} s away from this machine's time, and at most "
            f"{tolerance_seconds:g} s are taken. Refuse it; if all requests are, check both clocks."
        )
