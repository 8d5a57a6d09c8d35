"""What the Azure SDKs have in common: one attempt per call, the ``Date`` header, and their errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from holdfast.core.errors import MissingDependencyError

from ._http import PLACE_IS_MISSING, Call, Failure, http_date, translated

try:
    from azure.core import MatchConditions
    from azure.core.exceptions import (
        AzureError,
        ClientAuthenticationError,
        HttpResponseError,
        ResourceExistsError,
        ResourceModifiedError,
        ServiceRequestError,
        ServiceRequestTimeoutError,
    )
    from urllib3.exceptions import HTTPError, NewConnectionError
except ImportError as error:
    raise MissingDependencyError(
        "Azure state stores need the Azure SDK: run \"pip install 'holdfast[azure]'\", or 'holdfast[cosmos]'."
    ) from error

_OWNER_IS_MISSING = 1003  # Cosmos's sub-status of a 404
_WRITING_METHODS = frozenset({"POST", "PUT", "PATCH", "MERGE", "DELETE"})


_STATUS_OF = {ResourceExistsError: 409, ResourceModifiedError: 412}
MISSING: dict[str, Any] = {"match_condition": MatchConditions.IfMissing}
"""The arguments by which a write is made only where nothing is yet."""


class SentTwice(Exception):  # noqa: N818 - a signal that never leaves the stores
    """The SDK was about to send a write for the second time."""


class OneAttempt:
    """The keyword arguments that make one SDK call exactly one attempt, and what its answer said.

    A retried conditional write would meet its own first attempt and report a conflict that is none.
    ``retry_total`` and ``retry_connect`` switch off the retry policies in the pipelines of azure-storage,
    azure-data-tables and azure-cosmos. Cosmos also retries above its pipeline (a 503, another region) and
    has no option against that, so its writes take ``guarded_options``.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.date: datetime | None = None
        self.status: int | None = None
        self._writes_sent = 0
        self.options: dict[str, Any] = {
            "retry_total": 0,
            "retry_connect": 0,
            "connection_timeout": timeout_seconds,
            "read_timeout": timeout_seconds,
            "raw_response_hook": self._answered,
        }

    @property
    def guarded_options(self) -> dict[str, Any]:
        """The options, and a hook that stops the SDK from sending a write for the second time."""
        return {**self.options, "raw_request_hook": self._about_to_send}

    def _about_to_send(self, request: Any) -> None:
        if request.http_request.method in _WRITING_METHODS:
            self._writes_sent += 1
            if self._writes_sent > 1:
                raise SentTwice

    def _answered(self, response: Any) -> None:
        self.status = response.http_response.status_code
        self.date = http_date(response.http_response.headers.get("Date"))

    def place_is_missing(self, error: HttpResponseError) -> bool:
        """Return whether a 404 means the container or table, not the document.

        Cosmos tells it by a sub-status, or by failing before the call's own request has been answered.
        """
        if error.status_code != 404:
            return False
        return self.status is None or getattr(error, "sub_status", None) == _OWNER_IS_MISSING

    def failure_of(self, error: Exception) -> Failure | None:
        """Return what ``error`` says, or None when it is not about the service."""
        kind = type(error).__name__
        if isinstance(error, SentTwice):
            rejected = self.status is not None and 400 <= self.status < 500 and self.status != 408
            return Failure(f"the service answered {self.status}", status=self.status, did_nothing=rejected)
        if isinstance(error, HttpResponseError) and error.status_code is not None:
            code = PLACE_IS_MISSING if self.place_is_missing(error) else code_of(error)
            return Failure(kind, status=error.status_code, code=code)
        if isinstance(error, tuple(_STATUS_OF)):  # from a client of one's own, which tells no status
            return Failure(kind, status=next(status for each, status in _STATUS_OF.items() if isinstance(error, each)))
        if isinstance(error, ClientAuthenticationError):
            return Failure(kind, status=401)
        if _never_connected(error):
            return Failure(f"no connection to the service ({kind})", did_nothing=True)
        if isinstance(error, (AzureError, HTTPError, OSError)):
            return Failure(f"the connection failed before the whole answer arrived ({kind})")
        return None


def _never_connected(error: Exception) -> bool:
    # A ServiceRequestError alone proves nothing: azure-core files TLS failures in mid-answer under it too.
    return isinstance(error, ServiceRequestTimeoutError) or (
        isinstance(error, ServiceRequestError) and isinstance(error.inner_exception, NewConnectionError)
    )


@contextmanager
def one_attempt(call: Call, timeout_seconds: float) -> Iterator[OneAttempt]:
    """Yield the options for one SDK call, and raise what its errors mean for ``call``."""
    attempt = OneAttempt(timeout_seconds)
    with translated(call, attempt.failure_of):
        yield attempt


def code_of(error: HttpResponseError) -> str:
    """Return the service's own error code, empty when it gave none."""
    code = getattr(error, "error_code", None)
    if not code:
        code = getattr(error.response, "headers", {}).get("x-ms-error-code")
    return str(getattr(code, "value", code) or "")


def taken_by(method: Callable[..., object], options: dict[str, Any]) -> dict[str, Any]:
    """Return those of the options that a method takes: all of them if it is the SDK's."""
    parameters = inspect.signature(method).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return options
    return {name: value for name, value in options.items() if name in parameters}


def unmodified(if_match: str) -> dict[str, Any]:
    """Return the arguments by which a write is made only on what was read under that etag."""
    return {"etag": str(if_match), "match_condition": MatchConditions.IfNotModified}
