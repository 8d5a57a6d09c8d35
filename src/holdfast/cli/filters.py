"""Options by which listings are narrowed and paged, and the values people type for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, TypeVar

import typer

from ..jobs.model import JobId
from ..records.paging import DEFAULT_LIMIT, MAX_LIMIT

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LARGEST_ID = 2**63 - 1
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
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= _LARGEST_ID):
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


def _either(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


CorrelationOption = Annotated[
    str | None, typer.Option("--correlation-id", metavar="ID", help="Only of this correlation id.", show_default=False)
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", metavar="ENGINE", help="Only of this engine, such as jobs:email.", show_default=False),
]
InstanceOption = Annotated[
    str | None, typer.Option("--instance-id", metavar="ID", help="Only of this instance.", show_default=False)
]
ErrorOption = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="Only with this text in the error.", show_default=False)
]
FromOption = Annotated[
    datetime | None,
    typer.Option("--from", parser=moment, metavar="DATE", help="Only from this moment on.", show_default=False),
]
ToOption = Annotated[
    datetime | None,
    typer.Option("--to", parser=moment, metavar="DATE", help="Only before this moment.", show_default=False),
]
OlderThanOption = Annotated[
    timedelta | None,
    typer.Option(
        "--older-than",
        parser=duration,
        metavar="TIME",
        help="Only what failed longer ago than this: 20s, 30m, 12h, 90d.",
        show_default=False,
    ),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=MAX_LIMIT, help="How many at most.")]
AfterOption = Annotated[
    str | None,
    typer.Option("--after", metavar="TOKEN", help="Go on behind the page that ended so.", show_default=False),
]

__all__ = [
    "DEFAULT_LIMIT",
    "AfterOption",
    "CorrelationOption",
    "EngineOption",
    "ErrorOption",
    "FromOption",
    "InstanceOption",
    "LimitOption",
    "OlderThanOption",
    "ToOption",
    "duration",
    "job_number",
    "moment",
    "one_of",
    "seconds",
]
