"""``holdfast outbox``: what people do with the messages themselves."""

from __future__ import annotations

import typer

from ..outbox.adoption import adopt as adopt_messages
from ..outbox.upkeep import prune as prune_messages
from ..records.audit import present_user
from .exits import EXIT_CODES_HELP
from .filters import OlderThanOption
from .guard import YesOption, confirm
from .options import AppOption, JsonOption, help_when_alone
from .output import print_json, print_line
from .records import app_with_tables, counted

outbox_app = typer.Typer(
    help="Delete old messages, or take over restored ones.", epilog=EXIT_CODES_HELP, invoke_without_command=True
)
outbox_app.callback()(help_when_alone)


@outbox_app.command("prune")
def prune(older_than: OlderThanOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Delete messages that are older and that every registered processor has passed."""
    if older_than is None:
        raise typer.BadParameter("say from which age on, such as --older-than 30d")
    hf = app_with_tables(app)
    deleted = prune_messages(hf.processors.engine, hf.processors.checkpoints, older_than)
    if as_json:
        print_json({"deleted": deleted})
    else:
        print_line(f"{counted(deleted, 'message')} deleted.")


@outbox_app.command("adopt")
def adopt(app: AppOption = None, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Take over messages and checkpoints that were restored from another PostgreSQL cluster.

    Their order and every processor's place are kept.
    """
    hf = app_with_tables(app)
    confirm(
        "Restored messages would be numbered anew, in their old order, and every checkpoint moved with them. Stop all "
        "writers and processors first.",
        word="adopt",
        what="the word",
        yes=yes,
    )
    found = adopt_messages(hf.processors.engine, hf.processors.checkpoints, actor=present_user())
    if as_json:
        print_json({"messages": found.messages, "places": found.places})
    elif found.messages or found.places:
        print_line(f"Taken over: {counted(found.messages, 'message')} and {counted(found.places, 'checkpoint')}.")
    else:
        print_line("Nothing here is of another cluster.")
