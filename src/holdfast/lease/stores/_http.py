"""What the answer of an HTTP service, or its silence, means for a document: one table for all such stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

from holdfast.core.errors import Ambiguous, Conflict, StateStoreError, Unavailable

SKEW_MARGIN_SECONDS = 2.0
"""An HTTP ``Date`` has steps of one second and was written before the answer travelled."""

_REFUSED_BEFORE_WORK = frozenset({"ServerBusy", "SlowDown", "OperationAborted"})
PLACE_IS_MISSING = "PlaceIsMissing"
"""The code of a ``Failure`` when the service itself has no code for a missing container."""

_MISSING_PLACE_CODES = frozenset({"ContainerNotFound", "TableNotFound", "NoSuchBucket", PLACE_IS_MISSING})
_EXISTS_ALREADY = frozenset({"", "BlobAlreadyExists", "EntityAlreadyExists", "ConditionalRequestConflict"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where the documents are, in words for an error message, and what to do when access is refused."""

    label: str
    access_hint: str


@dataclass(frozen=True, slots=True)
class Call:
    """What a store was asked to do."""

    place: Place
    verb: Literal["open", "read", "create", "replace", "delete", "list"]
    name: str

    @property
    def writes(self) -> bool:
        """Whether the call may change a document."""
        return self.verb in ("create", "replace", "delete")

    def __str__(self) -> str:
        if self.verb == "open":
            return f"Opening {self.place.label}"
        return f"The {self.verb} of '{self.name}' in {self.place.label}"


@dataclass(frozen=True, slots=True)
class Failure:
    """What an SDK reported.

    Attributes:
        reason: what happened, without addresses, headers or secrets.
        status: the HTTP status, or None when no whole answer arrived.
        code: the service's own error code, empty when it gave none.
        did_nothing: True only when the service surely changed nothing, and a retry can help.
    """

    reason: str
    status: int | None = None
    code: str = ""
    did_nothing: bool = False


@contextmanager
def translated(call: Call, failure_of: Callable[[Exception], Failure | None]) -> Iterator[None]:
    """Raise what an SDK error in the block means for ``call``; what ``failure_of`` does not know passes."""
    try:
        yield
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        raise classify(call, failure) from error


def classify(call: Call, failure: Failure) -> StateStoreError:
    """Return the error that ``failure`` means for ``call``.

    In doubt it is ``Ambiguous``: a read settles that, whereas nobody would look for a landed write that was
    reported as ``Unavailable``.
    """
    status, said = failure.status, f"{failure.status} {failure.code}".rstrip()
    if failure.did_nothing or is_refused_before_work(status, failure.code):
        return Unavailable(f"{call} was not taken: {failure.reason}. Nothing was written; try again.")
    if status is None or leaves_doubt(status):
        return _unanswered(call, failure)
    if failure.code in _MISSING_PLACE_CODES or (status == 404 and call.verb == "create"):
        return StateStoreError(f"{call} failed: there is no {call.place.label}. Create it, or correct its name.")
    if status in (401, 403):
        return StateStoreError(f"{call} was refused ({said}). {call.place.access_hint}")
    if call.writes and _is_conflict(status, failure.code):
        return Conflict(f"{call} found another version than expected ({said}); nothing was written.")
    return StateStoreError(f"{call} failed ({said}): {failure.reason}. Nothing was written.")


def is_refused_before_work(status: int | None, code: str) -> bool:
    """Return whether a service that answers so has not even begun."""
    return status == 429 or code in _REFUSED_BEFORE_WORK


def leaves_doubt(status: int) -> bool:
    """Return whether what was asked for may have been done although the service answers so."""
    return status < 400 or status in (408, 449) or status >= 500


def _is_conflict(status: int, code: str) -> bool:
    if status == 409:
        return code in _EXISTS_ALREADY
    return status == 404 or (status == 412 and not code.startswith("Lease"))


def _unanswered(call: Call, failure: Failure) -> StateStoreError:
    if call.writes:
        return Ambiguous(f"{call} may or may not have happened: {failure.reason}. Read it to learn whether it did.")
    return Unavailable(f"{call} got no answer: {failure.reason}. Try again.")


def http_date(value: str | None) -> datetime | None:
    """Return the time in a ``Date`` header, aware and in UTC, or None when there is none that can be read."""
    try:
        moment = None if value is None else parsedate_to_datetime(value)
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment is not None and moment.tzinfo is not None else None
