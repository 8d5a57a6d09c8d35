"""Options by which listings are narrowed and paged, and the values people type for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from ..jobs.model import LARGEST_ID, JobId
from ..records.paging import DEFAULT_LIMIT, MAX_LIMIT
from .options import argument, option

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_Status = TypeVar("_Status", bound=StrEnum)
_DURATION = re.compile(r"(\d{1,5})([smhd])", re.ASCII)


def moment(text: str) -> datetime:
    """Return the moment a person typed, such as 2026-04-07 or 2026-04-07T01:23:45Z; UTC when it names no zone."""
    try:
        typed = datetime.fromisoformat(text)
        return typed.replace(tzinfo=UTC) if typed.tzinfo is None else typed.astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"'{text}' is not a date. Write it as 2026-04-07 or 2026-04-07T01:23:45Z (UTC unless it names a zone)"
        ) from None


def duration(text: str) -> timedelta:
    """Return the length of time a person typed, such as 20s, 30m, 12h or 90d."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"'{text}' is not a length of time. Write it as 20s, 30m, 12h or 90d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def seconds(text: str) -> timedelta:
    """Return the length of time a person typed: a number of seconds, or such as 20s, 30m, 12h or 2d."""
    if text.isascii() and text.isdigit() and len(text) < 10:
        return timedelta(seconds=int(text))
    return duration(text)


def job_number(text: str) -> JobId:
    """Return the job id a person typed."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= LARGEST_ID):
        raise typer.BadParameter(f"'{text}' is not a job's id. Ids are whole numbers from 1 on")
    return JobId(int(text))


def one_of(kind: type[_Status]) -> Callable[[str], _Status]:
    """Return what reads a status that a person typed, in any case."""
    members = {member.value.lower(): member for member in kind}

    def status(text: str) -> _Status:
        found = members.get(text.lower())
        if found is None:
            raise typer.BadParameter(f"'{text}' is not a status. Choose {_either([member.value for member in kind])}")
        return found

    return status


def status_option(kind: type[StrEnum]) -> Any:
    """Return the option that narrows a listing to one status."""
    names = _either([member.value for member in kind])
    return option("--status", parser=one_of(kind), metavar="STATUS", help=f"Only these: {names}.")


def _either(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


EngineArgument = Annotated[str, argument(metavar="ENGINE", help="Such as jobs:email.")]
RowKeyArgument = Annotated[str, argument(metavar="ROWKEY", help="From a listing.")]
CorrelationOption = Annotated[str | None, option("--correlation-id", metavar="ID", help="Only of this correlation id.")]
EngineOption = Annotated[
    str | None, option("--engine", metavar="ENGINE", help="Only of this engine, such as jobs:email.")
]
InstanceOption = Annotated[str | None, option("--instance-id", metavar="ID", help="Only of this instance.")]
ErrorOption = Annotated[str | None, option("--error", metavar="TEXT", help="Only with this text in the error.")]
FromOption = Annotated[
    datetime | None, option("--from", parser=moment, metavar="DATE", help="Only from this moment on.")
]
ToOption = Annotated[datetime | None, option("--to", parser=moment, metavar="DATE", help="Only before this moment.")]


def age_option(what: str) -> Any:
    """Return the option that takes an age."""
    return option("--older-than", parser=duration, metavar="TIME", help=f"Only {what} than this: 20s, 30m, 12h, 90d.")


OlderThanOption = Annotated[timedelta | None, age_option("what failed longer ago")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=MAX_LIMIT, help="How many at most.")]
AfterOption = Annotated[str | None, option("--after", metavar="TOKEN", help="Go on behind the page that ended so.")]

__all__ = [
    "DEFAULT_LIMIT",
    "AfterOption",
    "CorrelationOption",
    "EngineArgument",
    "EngineOption",
    "ErrorOption",
    "FromOption",
    "InstanceOption",
    "LimitOption",
    "OlderThanOption",
    "RowKeyArgument",
    "ToOption",
    "duration",
    "job_number",
    "moment",
    "seconds",
    "status_option",
]
