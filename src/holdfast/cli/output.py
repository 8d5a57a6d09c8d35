"""Everything a command prints: tables for people, JSON for scripts, and never a secret or a control character."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from ..core.redaction import escaped_json, shown

_WIDTH_OF_A_FILE = 200
_NARROWEST = 14  # of a column, with the space around it, beside one that is not folded


def print_secret(text: str) -> None:
    """Print one line that tells a secret, this once, to who asked for it."""
    typer.echo(text, err=True)


def print_line(text: str) -> None:
    """Print one line for a person, at once."""
    typer.echo(shown(text))


def print_note(text: str) -> None:
    """Print one line that is not the command's answer, so that the answer can be piped."""
    typer.echo(shown(text), err=True)


def print_error(sentence: str) -> None:
    """Print why a command ended without success."""
    typer.echo(typer.style("Error:", fg="red", bold=True) + " " + shown(sentence), err=True)


def print_json(answer: object) -> None:
    """Print the answer as one JSON document, as it is: a state document must come back from it unchanged.

    Control characters are escapes of JSON in it, which a terminal does not obey.
    """
    typer.echo(escaped_json(json.dumps(answer, indent=2, ensure_ascii=False)))


def print_answer(answer: object, as_json: bool, sentence: str) -> None:
    """Print what a command did: as JSON for scripts, or in one sentence."""
    if as_json:
        print_json(answer)
    else:
        print_line(sentence)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], whole: Collection[str] = ()) -> None:
    """Print rows under headings; nothing is cut off, long values are folded.

    Values of the columns ``whole`` are there to be copied: outside a terminal they are on one line however long they
    are, in a terminal where that leaves room for the others.
    """
    cells = [tuple(map(shown, row)) for row in rows]
    widths = {
        name: max(map(cell_len, (name, *values)))
        for name, *values in zip(columns, *cells, strict=True)
        if name in whole
    }
    wanted = sum(widths.values()) + _NARROWEST * (len(columns) - len(widths))
    destination = console(least_width=wanted)
    has_room = destination.width >= wanted
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=has_room and name in widths)
    for row in cells:
        table.add_row(*row)
    destination.print(table)


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one below the other."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(name, shown(value))
    console().print(table)


def console(*, stderr: bool = False, least_width: int = 0) -> Console:
    """Return where tables go: as wide as the terminal, or wide enough to be read from a file."""
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if is_terminal else max(_WIDTH_OF_A_FILE, least_width)
    return Console(width=width, markup=False, highlight=False, emoji=False, stderr=stderr)


def shown_time(text: str | None) -> str:
    """Return a stored time for people: UTC, to the second."""
    if text is None:
        return "never"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def shown_cursor(cursor: object) -> str:
    """Return a checkpoint's cursor for people."""
    if cursor is None:
        return "at the beginning"
    if not isinstance(cursor, dict):
        return str(cursor)
    keys = cursor.get("tiebreaker") or {}
    value = str(cursor.get("value"))
    return f"{value} ({', '.join(f'{name}={_plain(key)}' for name, key in keys.items())})" if keys else value


def _plain(key: Any) -> object:
    return key.get("value") if isinstance(key, dict) else key
