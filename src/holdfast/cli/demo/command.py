"""The command ``holdfast demo``: where it happens, and what it found."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ..exits import ExitCode
from ..output import console, print_error, print_line, print_table
from .ledger import Tally
from .screen import Screen
from .story import BATCH_SIZE, LEASE_SECONDS, Outcome, Story

_KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the directory with the database and the logs.")]
_LOOK = "HOLDFAST_URL=sqlite:///{file} {holdfast} trigger show orders --app holdfast.cli.demo.shop:hf"


def demo(keep: _KeepOption = False) -> None:
    """See it work on this machine: a worker is killed in the middle of a batch, and nothing is lost.

    Takes about ten seconds, in a temporary directory. Ends with 1 when a promise was broken.
    """
    directory = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        with Screen(console()) as screen:
            outcome = Story(directory, screen).tell()
        _print_outcome(outcome)
        _print_next_steps(directory if keep else None)
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    if not outcome.is_good:
        print_error("A promise was broken: see the table above. Run 'holdfast demo --keep' and report what it finds.")
        raise typer.Exit(ExitCode.FAILED)


def _print_outcome(outcome: Outcome) -> None:
    print_table(
        ("effects written through", "accepted", "delivered", "overtaken", "duplicated", "lost"),
        (
            ("a connection of its own (at least once)", *_cells(outcome.own_connection)),
            ("context.transaction (exactly once)", *_cells(outcome.transaction)),
        ),
    )
    tokens = ", ".join(f"{token} (worker {process})" for token, process in outcome.tokens)
    print_line(f"Fencing tokens seen: {tokens}. A lower one can commit nothing any more.")
    print_line(f"Takeover: {outcome.takeover_seconds:.1f} s after the kill, with a lease of {LEASE_SECONDS:g} s.")
    print_line(
        f"Duplicated: the {outcome.in_flight_at_kill} orders in flight at the kill came again, at most one batch "
        f"({BATCH_SIZE}); neither table has a unique key that would hide a duplicate."
    )
    print_line("Overtaken: the order had changed again before it was read, and its newer state was delivered.")


def _cells(tally: Tally) -> tuple[str, ...]:
    return tuple(
        map(str, (tally.accepted, tally.delivered, tally.overtaken, tally.duplicated, tally.lost)),
    )


def _print_next_steps(kept: Path | None) -> None:
    print_line("")
    print_line("What to try next:")
    print_line(
        f"  {_LOOK.format(holdfast=_program(), file=kept / 'shop.db')}"
        if kept
        else f"  {_program()} demo --keep      and look around in it"
    )
    print_line("  examples/shop/README.md   your first trigger, in ten lines")
    print_line("  examples/mail/README.md   your first job")
    print_line("  docs/guarantees.md        what is promised, and the test that shows it")


def _program() -> str:
    """Return how this command is called here: it may lie in an environment that the shell does not search."""
    return "holdfast" if shutil.which("holdfast") else os.path.relpath(Path(sys.executable).with_name("holdfast"))
