"""What a request may ask for: the parameters of listings, the parts of paths, and the bodies of changes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Literal

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
_DATE = r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})?)?"
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

EnginePath = Annotated[
    str,
    Path(
        alias="engine",
        description="Where it came from, such as `hmac` or `jobs:email`.",
        min_length=1,
        max_length=ENGINE_LENGTH,
        pattern=_LEGAL_IN_A_KEY,
    ),
]
AskedEngine = Annotated[
    str,
    Path(
        alias="engine",
        description="A declared engine, such as `hmac`.",
        min_length=1,
        max_length=ENGINE_LENGTH,
        pattern=_LEGAL_IN_A_KEY,
    ),
]
RowKeyPath = Annotated[
    str,
    Path(
        alias="rowKey",
        description="From a listing.",
        min_length=1,
        max_length=_LONGEST_KEY,
        pattern=_LEGAL_IN_A_KEY,
    ),
]


class _Listing(BaseModel):
    """What every listing takes."""

    model_config = ConfigDict(alias_generator=to_camel)

    engine: _EngineName | None = Field(None, description="Only of this engine.")
    instance_id: IdText | None = Field(None, description="Only of this instance.")
    correlation_id: IdText | None = Field(None, description="Only of this correlation id.")
    error: _ErrorText | None = Field(None, description="Only with this text in the error, in any case.")
    from_date: Moment | None = Field(None, description="Only from this moment on. UTC unless it names a zone.")
    to_date: Moment | None = Field(None, description="Only before this moment. UTC unless it names a zone.")
    limit: Annotated[int, BeforeValidator(whole_number)] = Field(
        DEFAULT_LIMIT, ge=1, le=MAX_LIMIT, description="How many at most."
    )
    continuation_token: _Token | None = Field(None, description="Go on behind the page that ended with it.")

    def check_dates(self) -> None:
        """Check that the dates are in order.

        Raises:
            ApiError: 400, they are the wrong way round.
        """
        if self.from_date is not None and self.to_date is not None and self.from_date > self.to_date:
            raise ApiError.validation("fromDate is later than toDate. Exchange them.", "fromDate")


class LetterQuery(_Listing):
    """Which dead letters are wanted. Dates are about the last failure."""

    status: LetterStatus | None = Field(None, description="Only in this status.")

    def wanted(self) -> LetterFilter:
        """Return the filter.

        Raises:
            ApiError: 400, the dates are the wrong way round.
        """
        self.check_dates()
        return LetterFilter(
            engine=self.engine,
            status=self.status,
            instance_id=self.instance_id,
            since=self.from_date,
            until=self.to_date,
            correlation_id=self.correlation_id,
            error=self.error,
        )


class HistoryQuery(_Listing):
    """Which entries of the history are wanted. Dates are about when it ended."""

    status: HistoryStatus | None = Field(None, description="Only with this end.")
    operation: IdText | None = Field(None, description="Only of this operation.")

    def wanted(self) -> HistoryFilter:
        """Return the filter.

        Raises:
            ApiError: 400, the dates are the wrong way round.
        """
        self.check_dates()
        return HistoryFilter(
            engine=self.engine,
            instance_id=self.instance_id,
            status=self.status,
            operation=self.operation,
            since=self.from_date,
            until=self.to_date,
            correlation_id=self.correlation_id,
            error=self.error,
        )


class Change(BaseModel):
    """A body. What it does not know it refuses: a misspelt filter must not widen a change."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, extra="forbid")


class LetterChange(Change):
    """How a Pending letter is settled."""

    status: Literal["Resolved", "Expired"] = Field(description="Dealt with, or given up on.")
    resolution_notes: _Notes = Field(description="What was done about it.")
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
                told = ", ".join(sorted(known - {_FUNCTION_KEY})) or "none"
                raise ApiError.validation(f"There is no parameter of that name here. Known: {told}.", name)
            if names.count(name) > 1:
                raise ApiError.validation(f"{name} is given more than once.", name)

    return check
