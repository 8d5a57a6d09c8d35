"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .exits import EXIT_CODES_HELP


def option(*names: str, **settings: Any) -> Any:
    """Return an option whose help says by itself what holds when it is left out."""
    return typer.Option(*names, show_default=False, **settings)


def argument(**settings: Any) -> Any:
    """Return an argument whose help says by itself what holds when it is left out."""
    return typer.Argument(show_default=False, **settings)


def group(help_text: str) -> typer.Typer:
    """Return a group of commands, which shows what it has when none of them was named."""
    commands = typer.Typer(help=help_text, epilog=EXIT_CODES_HELP, invoke_without_command=True)
    commands.callback()(_help_when_alone)
    return commands


_APP: dict[str, Any] = {
    "metavar": "MODULE:ATTRIBUTE",
    "envvar": "HOLDFAST_APP",
    "help": "The application, such as app:hf, imported from the current directory.",
}
AppArgument = Annotated[str | None, argument(**_APP)]
AppOption = Annotated[str | None, option("--app", "-a", **_APP)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
VerboseOption = Annotated[int, option("--verbose", "-v", count=True, help="Log what happens; -vv logs everything.")]
TriggerName = Annotated[str, argument(metavar="NAME", help="The trigger's name.")]


def _help_when_alone(context: typer.Context) -> None:
    """Show what a group of commands has when none of them was named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
