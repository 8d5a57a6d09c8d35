"""What goes wrong, as the standard tells it: a status, a code, and a sentence that holds no secret."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..core.errors import (
    Ambiguous,
    Conflict,
    DbConnectionError,
    DbError,
    MessageError,
    NotFoundError,
    Unavailable,
    UnfinishedRetry,
)
from ..core.redaction import shown
from ..engines.queues.protocol import MissingQueueError, QueueAccessError

_LONGEST_TARGET = 200
_LONGEST_REASON = 500
_MOST_DETAILS = 20
_RETRY_SECONDS = 1


class ErrorCode(StrEnum):
    """The standard's codes, and those of HTTP that it does not name."""

    VALIDATION_ERROR = "VALIDATION_ERROR"
    UNAUTHORIZED = "UNAUTHORIZED"
    FORBIDDEN = "FORBIDDEN"
    RESOURCE_NOT_FOUND = "RESOURCE_NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
    CONFLICT = "CONFLICT"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
    TOO_MANY_REQUESTS = "TOO_MANY_REQUESTS"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"


CODES = {
    400: ErrorCode.VALIDATION_ERROR,
    401: ErrorCode.UNAUTHORIZED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.RESOURCE_NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    408: ErrorCode.REQUEST_TIMEOUT,
    409: ErrorCode.CONFLICT,
    413: ErrorCode.PAYLOAD_TOO_LARGE,
    415: ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    429: ErrorCode.TOO_MANY_REQUESTS,
    500: ErrorCode.INTERNAL_ERROR,
    503: ErrorCode.SERVICE_UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One of several things that are wrong with a request."""

    target: str
    message: str


class ApiError(Exception):
    """A request that is not done: everything its answer says."""

    def __init__(
        self,
        status: int,
        message: str,
        target: str | None = None,
        *,
        faults: Sequence[Fault] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = CODES[status]
        self.message = _sendable(message)
        self.target = None if target is None else _sendable(target[:_LONGEST_TARGET])
        self.faults = faults
        self.headers = dict(headers or {})

    @classmethod
    def validation(cls, message: str, target: str | None = None, faults: Sequence[Fault] = ()) -> ApiError:
        """Return the error for a request that is wrong in itself."""
        return cls(400, message, target, faults=faults)

    @classmethod
    def unauthorized(cls, message: str) -> ApiError:
        """Return the error for a request without a token that is accepted."""
        return cls(401, message, headers={"WWW-Authenticate": "Bearer"})

    @classmethod
    def too_many(cls, wait_seconds: float) -> ApiError:
        """Return the error for a caller who must wait."""
        seconds = max(1, math.ceil(wait_seconds))
        message = f"There were too many requests. Try again in {seconds} s."
        return cls(429, message, headers={"Retry-After": str(seconds)})

    @classmethod
    def too_many_at_once(cls, most: int) -> ApiError:
        """Return the error for a caller who has as many requests open as may be."""
        message = f"{most} requests of yours are being answered. Wait for one of them."
        return cls(429, message, headers={"Retry-After": "1"})

    @classmethod
    def too_slow(cls, seconds: float) -> ApiError:
        """Return the error for a request that was not done within its time."""
        return cls(
            503,
            f"It took longer than {seconds:g} s: something it needs is locked or busy. A change may still be "
            "made; look before you repeat it.",
            headers={"Retry-After": "1"},
        )

    @classmethod
    def internal(cls) -> ApiError:
        """Return the error for a mistake of ours: the log has it under the correlation id."""
        return cls(500, "Something went wrong here. The server's log tells what, under this correlation id.")


def from_ours(error: DbError) -> ApiError:
    """Return how an error of Holdfast's is answered. What names a database stays in the log."""
    match error:
        case NotFoundError():
            return ApiError(404, str(error))
        case Conflict():
            return ApiError(409, str(error))
        case MissingQueueError():
            return ApiError(409, f"{error} Nothing was changed.")
        case MessageError():
            return ApiError(413, str(error))
        case UnfinishedRetry():
            return _unavailable(
                "The retry was begun, and the queue or the tables do not answer: the message may have been sent. The "
                "next retry finishes it under the same message id, and so does any worker."
            )
        case QueueAccessError():
            return _unavailable("The queue does not let this application in; nothing was changed. The log tells more.")
        case Ambiguous():
            return _unavailable(
                "The answer of the database or the queue was lost: the change may or may not have been made. Look "
                "before you repeat it."
            )
        case DbConnectionError() | Unavailable():
            return _unavailable("The database or the queue does not answer or is busy; nothing was changed. Try again.")
    return ApiError.internal()


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return the answer to what the framework found wrong with a request, without the values that were sent."""
    faults = [_fault(error) for error in errors[:_MOST_DETAILS]]
    first = faults[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return ApiError.validation(f"{first.target}: {first.message}{more}.", first.target, faults)


def _fault(error: Mapping[str, Any]) -> Fault:
    place, *names = [str(part) for part in error["loc"]] or ["request"]
    if error["type"] == "json_invalid":
        return Fault("body", "The body is not JSON")
    target = _sendable(".".join(names) or place)[:_LONGEST_TARGET]
    return Fault(target, _sendable(str(error["msg"]))[:_LONGEST_REASON].rstrip("."))


def _sendable(text: str) -> str:
    """Return a text without secrets, its control characters written out, also halves of surrogate pairs."""
    return shown(text)


def _unavailable(message: str) -> ApiError:
    return ApiError(503, message, headers={"Retry-After": str(_RETRY_SECONDS)})
