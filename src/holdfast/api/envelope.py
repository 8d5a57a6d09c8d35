"""The envelope around every answer: ``{status, correlationId, timestamp, data | error}``."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, Literal, TypeVar

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from .errors import ApiError, ErrorCode

_Data = TypeVar("_Data")


class Wire(BaseModel):
    """What is sent: the names of its fields are in camel case there."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


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
    return JSONResponse(body.model_dump(mode="json", by_alias=True), error.status, headers=error.headers)
