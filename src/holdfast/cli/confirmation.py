"""Guardrails of commands that change something: say what will happen, ask, and tell a lost race from a failure."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ..core.errors import Conflict
from .exits import CommandError, ExitCode
from .output import print_note

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(effect: str, *, word: str, what: str, yes: bool) -> None:
    """Go on only when confirmed: by --yes, or by a person who types ``word``, which is ``what``.

    Raises:
        CommandError: it was not confirmed; nothing was changed.
    """
    print_note(effect)
    if yes:
        return
    if not sys.stdin.isatty():
        raise refused("Nothing was changed: there is no terminal to confirm on. Pass --yes if you are sure.")
    typed = typer.prompt(f"Type {what} ({word}) to go on", default="", show_default=False, err=True)
    if typed.strip() != word:
        raise refused(f"Nothing was changed: what was typed is not {what}.")


@contextmanager
def conflicts_refused() -> Iterator[None]:
    """Let a change that came too late end as a refusal: nothing is broken, and nothing was changed."""
    try:
        yield
    except Conflict as error:
        raise refused(str(error)) from error


def refused(message: str) -> CommandError:
    """Return the error for a change that was not made on purpose."""
    return CommandError(message, ExitCode.REFUSED)
