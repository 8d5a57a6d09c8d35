"""What the commands about jobs, dead letters and history share: the tables they need, and how rows are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, TypeVar

from ..app import Holdfast
from ..core.types import JsonObject
from ..records.paging import Page
from .loading import load_app
from .logs import configure_logging
from .output import print_json, print_line, print_note, print_table, shown_time
from .pollers import require_tables

_LONGEST_IN_A_TABLE = 100
TO_COPY = ("row key",)  # columns whose values other commands take
_Item = TypeVar("_Item")


def app_with_tables(reference: str | None) -> Holdfast:
    """Return the application, its tables checked.

    Raises:
        CommandError: there is no such application.
        ConfigurationError: the tables were not created yet.
    """
    hf = load_app(reference)
    configure_logging()
    require_tables(hf)
    return hf


def described_fields(item: Any, without: Sequence[str] = ()) -> JsonObject:
    """Return a dataclass as JSON, its moments as text in UTC."""
    return {each.name: _described(getattr(item, each.name)) for each in fields(item) if each.name not in without}


def _described(value: object) -> object:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def print_page(
    page: Page[_Item],
    columns: Sequence[str],
    row: Callable[[_Item], Sequence[str]],
    described: Callable[[_Item], JsonObject],
    *,
    nothing: str,
    as_json: bool,
) -> None:
    """Print a page of a listing, and how to get the next."""
    if as_json:
        items = [described(item) for item in page.items]
        print_json({"items": items, "continuation_token": page.continuation_token})
        return
    if page.items:
        print_table(columns, map(row, page.items), whole=TO_COPY)
    else:
        print_line(nothing)
    if page.continuation_token is not None:
        print_note(f"There is more. Go on with --after {page.continuation_token}")


def shown_moment(moment: datetime | None) -> str:
    """Return a moment for people."""
    return "" if moment is None else shown_time(moment.isoformat())


def shown_text(text: str | None) -> str:
    """Return the first line of a text, as much of it as a table has room for."""
    first_line = (text or "").strip().split("\n", 1)[0]
    return first_line if len(first_line) <= _LONGEST_IN_A_TABLE else f"{first_line[: _LONGEST_IN_A_TABLE - 1]}…"


def shown_fields(described: JsonObject) -> list[tuple[str, str]]:
    """Return the fields that have a value, their names and moments as people read them."""
    return [
        (name.replace("_", " "), shown_time(value) if name.endswith("_at") else _shown(value))
        for name, value in described.items()
        if value not in (None, [], "")
    ]


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def counted(count: int, thing: str) -> str:
    """Return a number of things in words."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
