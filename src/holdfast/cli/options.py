"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

AppArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE:ATTRIBUTE",
        envvar="HOLDFAST_APP",
        help="The application, such as app:hf, imported from the current directory.",
        show_default=False,
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        "-a",
        metavar="MODULE:ATTRIBUTE",
        envvar="HOLDFAST_APP",
        help="The application, such as app:hf, imported from the current directory.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
VerboseOption = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="Log what happens; -vv logs everything.", show_default=False)
]
TriggerName = Annotated[str, typer.Argument(metavar="NAME", help="The trigger's name.", show_default=False)]


def help_when_alone(context: typer.Context) -> None:
    """Show what a group of commands has when none of them was named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
