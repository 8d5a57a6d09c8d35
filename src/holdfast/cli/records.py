"""What the commands about jobs, dead letters and history share: the tables they need, and how rows are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import inspect
from sqlalchemy.engine import Engine

from ..app import Holdfast
from ..core.redaction import shown
from ..core.types import JsonObject
from ..records.database import reading
from ..records.paging import Page
from ..records.schema import audit_table
from .loading import load_app
from .logs import configure_logging
from .output import print_error, print_fields, print_json, print_line, print_note, print_table, shown_time
from .trigger_views import require_tables

_LONGEST_IN_A_TABLE = 100
_ERRORS = ("error", "error_message", "last_error")
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


def audit_database(hf: Holdfast) -> Engine | None:
    """Return where changes by hand are written down; None where there is no audit, which is logged."""
    with reading(hf.database) as connection:
        if inspect(connection).has_table(audit_table.name):
            return hf.database
    print_note("Not audited: the application keeps no records in SQL.")
    return None


def described_fields(item: Any, without: Sequence[str] = ()) -> JsonObject:
    """Return a dataclass as JSON, its moments as text in UTC."""
    return {each.name: _described(getattr(item, each.name)) for each in fields(item) if each.name not in without}


def described_in_listing(item: Any, payload: Sequence[str]) -> JsonObject:
    """Return a dataclass as listings show it: without payloads; whoever may use the database may see its errors."""
    described = described_fields(item, payload)
    return {name: shown(value) if name in _ERRORS and value else value for name, value in described.items()}


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
    for sentence in page.unreadable:
        print_error(sentence)
    if as_json:
        items = [described(item) for item in page.items]
        unreadable = {"unreadable": list(page.unreadable)} if page.unreadable else {}
        print_json({"items": items, "continuation_token": page.continuation_token, **unreadable})
        return
    if page.items:
        print_table(columns, map(row, page.items), whole=TO_COPY)
    elif not page.unreadable:
        print_line(nothing)
    if page.continuation_token is not None:
        print_note(f"There is more. Go on with --after {page.continuation_token}")


def print_one(described: JsonObject, as_json: bool) -> None:
    """Print one item with everything that is known of it."""
    if as_json:
        print_json(described)
    else:
        print_fields(shown_fields(described))


def shown_moment(moment: datetime | None) -> str:
    """Return a moment for people."""
    return "" if moment is None else shown_time(moment.isoformat())


def in_one_cell(text: str | None) -> str:
    """Return the first line of a text, as much of it as a table has room for."""
    first_line = (text or "").strip().split("\n", 1)[0]
    return first_line if len(first_line) <= _LONGEST_IN_A_TABLE else f"{first_line[: _LONGEST_IN_A_TABLE - 1]}…"


def shown_error(text: str | None) -> str:
    """Return an error as listings show it: its first line without secrets, as much of it as a table has room for."""
    return in_one_cell(shown(text or ""))


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
