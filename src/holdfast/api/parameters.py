"""What a request may ask for: the parameters of listings, the parts of paths, and the bodies of changes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Path, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel

from ..records.dead_letters import LetterFilter, LetterStatus
from ..records.history import HistoryFilter, HistoryStatus
from ..records.paging import DEFAULT_LIMIT, MAX_LIMIT
from ..records.schema import ENGINE_LENGTH, ID_LENGTH
from .errors import ApiError

_ANY_TEXT = r"^[^\x00]+$"  # PostgreSQL keeps no NUL
_LEGAL_IN_A_KEY = r"^[^/\\#?\x00-\x1f\x7f-\x9f]+$"  # of an Azure Table, where keys must work too
_LONGEST_KEY = 1024
_LONGEST_TOKEN = 4096
_LONGEST_ERROR = 200
_LONGEST_NOTES = 4000
_MOST_DAYS = 36_500
_FUNCTION_KEY = "code"  # Azure Functions takes its keys as a parameter
_DATE = r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})?)?"
_EARLIEST = datetime(1000, 1, 1, tzinfo=UTC)  # before it, not every database can compare


def _moment(text: object) -> datetime:
    try:
        if not isinstance(text, str) or re.fullmatch(_DATE, text, re.ASCII) is None:
            raise ValueError
        given = datetime.fromisoformat(text)
        in_utc = given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            "it is not a date. Write it as 2026-04-07 or 2026-04-07T01:23:45Z (UTC unless it names a zone, whose "
            "'+' must be sent as %2B)"
        ) from None
    return max(in_utc, _EARLIEST)


def whole_number(text: object) -> object:
    """Refuse what only looks like a whole number, such as 1_0; whether it is in bounds is checked later."""
    if isinstance(text, str) and re.fullmatch(r"-?\d{1,10}", text, re.ASCII) is None:
        raise ValueError("it is not a whole number")
    return text


Moment = Annotated[
    datetime,
    BeforeValidator(_moment),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "format": "date"}]}),
]
_EngineName = Annotated[str, StringConstraints(min_length=1, max_length=ENGINE_LENGTH, pattern=_ANY_TEXT)]
IdText = Annotated[str, StringConstraints(min_length=1, max_length=ID_LENGTH, pattern=_ANY_TEXT)]
_ErrorText = Annotated[str, StringConstraints(min_length=1, max_length=_LONGEST_ERROR, pattern=_ANY_TEXT)]
_Token = Annotated[str, StringConstraints(min_length=1, max_length=_LONGEST_TOKEN)]
_Notes = Annotated[str, StringConstraints(min_length=1, max_length=_LONGEST_NOTES, pattern=_ANY_TEXT)]


def _in_path(alias: str, description: str, longest: int) -> Any:
    return Path(alias=alias, description=description, min_length=1, max_length=longest, pattern=_LEGAL_IN_A_KEY)


EnginePath = Annotated[str, _in_path("engine", "Where it came from, such as `hmac` or `jobs:email`.", ENGINE_LENGTH)]
AskedEngine = Annotated[str, _in_path("engine", "A declared engine, such as `hmac`.", ENGINE_LENGTH)]
RowKeyPath = Annotated[str, _in_path("rowKey", "From a listing.", _LONGEST_KEY)]


class _Listing(BaseModel):
    """What every listing takes."""

    model_config = ConfigDict(alias_generator=to_camel)

    engine: _EngineName | None = Field(None, description="Only of this engine.")
    instance_id: IdText | None = Field(None, description="Only of this instance.")
    correlation_id: IdText | None = Field(None, description="Only of this correlation id.")
    error: _ErrorText | None = Field(
        None, description="Only with this text in the error, in any case. Needs the role `payload`."
    )
    from_date: Moment | None = Field(None, description="Only from this moment on. UTC unless it names a zone.")
    to_date: Moment | None = Field(None, description="Only before this moment. UTC unless it names a zone.")
    limit: Annotated[int, BeforeValidator(whole_number)] = Field(
        DEFAULT_LIMIT, ge=1, le=MAX_LIMIT, description="How many at most."
    )
    continuation_token: _Token | None = Field(None, description="Go on behind the page that ended with it.")

    def checked(self) -> dict[str, Any]:
        """Return what is asked for, its dates in order.

        Raises:
            ApiError: 400, they are the wrong way round.
        """
        if self.from_date is not None and self.to_date is not None and self.from_date > self.to_date:
            raise ApiError.validation("fromDate is later than toDate. Exchange them.", "fromDate")
        same = {name: getattr(self, name) for name in ("engine", "instance_id", "correlation_id", "error")}
        return {**same, "since": self.from_date, "until": self.to_date}


class LetterQuery(_Listing):
    """Which dead letters are wanted. Dates are about the last failure."""

    status: LetterStatus | None = Field(None, description="Only in this status.")

    def wanted(self) -> LetterFilter:
        """Return the filter.

        Raises:
            ApiError: 400, the dates are the wrong way round.
        """
        return LetterFilter(**self.checked(), status=self.status)


class HistoryQuery(_Listing):
    """Which entries of the history are wanted. Dates are about when it ended."""

    status: HistoryStatus | None = Field(None, description="Only with this end.")
    operation: IdText | None = Field(None, description="Only of this operation.")

    def wanted(self) -> HistoryFilter:
        """Return the filter.

        Raises:
            ApiError: 400, the dates are the wrong way round.
        """
        return HistoryFilter(**self.checked(), status=self.status, operation=self.operation)


class Change(BaseModel):
    """A body. What it does not know it refuses: a misspelt filter must not widen a change."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, extra="forbid")


class LetterChange(Change):
    """How a Pending letter is settled, or a settled one reopened."""

    status: Literal["Resolved", "Expired", "Pending"] = Field(
        description="Dealt with, or given up on; `Pending` reopens a settled one."
    )
    resolution_notes: _Notes = Field(description="What was done about it, or why it is reopened (in the audit).")
    force: bool = Field(
        False,
        description="Although a retry of it was begun that can never be finished. Needs the role `admin`.",
    )


class Expiry(Change):
    """Which Pending letters are given up on."""

    older_than_days: float = Field(ge=0, le=_MOST_DAYS, allow_inf_nan=False, description="Failed longer ago than this.")
    engine: _EngineName | None = Field(None, description="Only of this engine.")


def only(parameters: type[BaseModel] | None = None) -> Callable[[Request], Awaitable[None]]:
    """Return what refuses parameters that are not known or sent twice: a misspelt filter must not widen a listing."""
    aliases = {} if parameters is None else parameters.model_fields
    known = {field.alias or name for name, field in aliases.items()} | {_FUNCTION_KEY}

    async def check(request: Request) -> None:
        names = [name for name, _ in request.query_params.multi_items()]
        for name in names:
            if name not in known:
                listed = ", ".join(sorted(known - {_FUNCTION_KEY})) or "none"
                raise ApiError.validation(f"There is no parameter of that name here. Known: {listed}.", name)
            if names.count(name) > 1:
                raise ApiError.validation(f"{name} is given more than once.", name)

    return check
