"""A client's connection to a server: how it is secured, and what the server's answers mean."""

from __future__ import annotations

import logging
from typing import Any

import grpc

from ...core.bearer import read_file
from ...core.errors import (
    Ambiguous,
    ConfigurationError,
    DbError,
    InvalidTransition,
    JobError,
    PayloadError,
)
from .calls import stub
from .security import ClientTls, check_sending

MOST_MESSAGE_BYTES = 64 * 1024 * 1024
_log = logging.getLogger("holdfast.jobs")
_OPTIONS = [
    ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # also how long one try may take
    ("grpc.max_reconnect_backoff_ms", 5_000),
]


def error_of(target: str, error: grpc.RpcError) -> DbError:
    """Return our error for a call that failed.

    A call that was not answered may have been carried out, so UNAVAILABLE is ambiguous too.
    """
    code, details = error.code(), error.details() or "no details"
    match code:
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return ConfigurationError(f"The server {target} refuses this client: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return ConfigurationError(f"{target} is not a Holdfast jobs server, or an older one: {details}")
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.RESOURCE_EXHAUSTED:
            return PayloadError(f"The server {target} refuses the request: {details}")
        case grpc.StatusCode.FAILED_PRECONDITION:
            return InvalidTransition(details)
        case grpc.StatusCode.INTERNAL:
            return JobError(f"The server {target} failed: {details}")
    return Ambiguous(f"The server {target} did not answer ({code.name}): {details}")


class RemoteConnection:
    """One channel to a server; it reconnects by itself.

    Args:
        target: the server, as ``host:port``.
        token: what the server knows the hash of.
        tls: whom to trust; None talks in the clear.
        is_insecure: whether to send the token in the clear to another machine.
        timeout_seconds: how long a call may take.

    Raises:
        ConfigurationError: the token would be readable by others, or a file of TLS cannot be read.
    """

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        tls: ClientTls | None = None,
        is_insecure: bool = False,
        timeout_seconds: float = 5.0,
    ) -> None:
        check_sending(target, has_tls=tls is not None, has_token=token is not None, is_insecure=is_insecure)
        self.target = target
        self.metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._timeout_seconds = timeout_seconds
        self._channel = _channel(target, tls)
        self.stub: Any = stub(self._channel)

    def call(self, method: str, request: Any) -> Any:
        """Call and return the answer.

        Raises:
            ConfigurationError: the server does not let this client in.
            PayloadError: the request can never succeed.
            InvalidTransition: the claim is stale.
            Ambiguous: there was no answer; the call may or may not have been carried out.
            JobError: the server failed.
        """
        try:
            return getattr(self.stub, method)(request, timeout=self._timeout_seconds, metadata=self.metadata)
        except grpc.RpcError as error:
            raise error_of(self.target, error) from error

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


def _channel(target: str, tls: ClientTls | None) -> Any:
    if tls is None:
        return grpc.insecure_channel(target, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=None if tls.ca_file is None else read_file("The CA file", tls.ca_file),
        private_key=None if tls.key_file is None else read_file("The TLS key", tls.key_file),
        certificate_chain=None if tls.cert_file is None else read_file("The TLS certificate", tls.cert_file),
    )
    return grpc.secure_channel(target, credentials, options=_OPTIONS)
