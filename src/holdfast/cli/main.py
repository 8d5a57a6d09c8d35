"""The command ``holdfast``: its commands, and the rim at which every error becomes one sentence and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from .._version import __version__
from ..core.patience import unhurried
from ..core.redaction import shown
from .commands import Commands
from .exits import EXIT_CODES_HELP, exit_code_of, sentence_of
from .logs import is_debugging
from .output import print_error, print_line

app = typer.Typer(
    name="holdfast",
    cls=Commands,
    help="Work that must not be lost, on the database you already have.",
    epilog=EXIT_CODES_HELP,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print_line(f"holdfast {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def holdfast(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Work that must not be lost, on the database you already have."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Whatever goes wrong is one sentence on stderr."""
    try:
        with unhurried():  # workers are on threads of their own
            result = get_command(app).main(args=list(arguments), prog_name="holdfast", standalone_mode=False)
    except typer.Abort:
        print_error("Interrupted; nothing was changed.")
        return exit_code_of(KeyboardInterrupt())
    except Exception as error:
        if is_debugging():
            typer.echo(shown("".join(traceback.format_exception(error))), err=True)
        print_error(sentence_of(error))
        return exit_code_of(error)
    return result if isinstance(result, int) else 0
