"""The envelope around every answer: ``{status, correlationId, timestamp, data | error}``."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ..core.redaction import escaped_json
from .errors import ApiError, ErrorCode

_Data = TypeVar("_Data")


class EscapedJson(JSONResponse):
    """An answer whose control characters are escapes of JSON: nothing in it steers a terminal that it is shown on."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return escaped_json(json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))).encode()


class Wire(BaseModel):
    """What is sent: the names of its fields are in camel case there."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


def described(model: type[Wire], item: object, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a model as an item has them, whose moments are not said to be in UTC by their names."""
    return {name: getattr(item, name.removesuffix("_utc")) for name in model.model_fields if name not in without}


class Succeeded(Wire, Generic[_Data]):
    """The answer to a request that was done."""

    status: Literal["Succeeded"]
    correlation_id: str
    timestamp: datetime
    data: _Data


class Detail(Wire):
    """One of several things that are wrong."""

    code: ErrorCode
    message: str
    target: str | None


class Error(Wire):
    """What went wrong: a code for programs, a sentence for people, and what it is about."""

    code: ErrorCode
    message: str
    target: str | None = Field(description="The parameter, field or resource that it is about.")
    details: list[Detail]


class Failed(Wire):
    """The answer to a request that was not done."""

    status: Literal["Failed"]
    correlation_id: str
    timestamp: datetime
    error: Error


def failed(error: ApiError, correlation_id: str, timestamp: datetime) -> JSONResponse:
    """Return the answer to a request that was not done."""
    details = [Detail(code=error.code, message=fault.message, target=fault.target) for fault in error.faults]
    body = Failed(
        status="Failed",
        correlation_id=correlation_id,
        timestamp=timestamp,
        error=Error(code=error.code, message=error.message, target=error.target, details=details),
    )
    return EscapedJson(body.model_dump(mode="json", by_alias=True), error.status, headers=error.headers)
