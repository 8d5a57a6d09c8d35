"""``holdfast outbox``: what people do with the messages themselves."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from ..outbox.cluster_restore import adopt as adopt_messages
from ..outbox.housekeeping import prune as prune_messages
from ..records.audit import present_user
from .confirmation import YesOption, confirm
from .filters import age_option
from .options import AppOption, JsonOption, group
from .output import print_answer, print_json, print_line
from .records import app_with_tables, counted

outbox_app = group("Delete old messages, or take over restored ones.")


_OlderThanOption = Annotated[timedelta | None, age_option("messages that were appended longer ago")]


@outbox_app.command("prune")
def prune(
    older_than: _OlderThanOption = None, app: AppOption = None, yes: YesOption = False, as_json: JsonOption = False
) -> None:
    """Delete messages that are older and that every registered processor has passed."""
    if older_than is None:
        raise typer.BadParameter("say from which age on, such as --older-than 30d")
    hf = app_with_tables(app)
    confirm(
        f"Messages that are older than {older_than} and that every registered processor has passed would be deleted. "
        "No processor can be rebuilt from before them.",
        word="prune",
        what="the word",
        yes=yes,
    )
    deleted = prune_messages(hf.processors.engine, hf.processors.checkpoints, older_than, present_user())
    print_answer({"deleted": deleted}, as_json, f"{counted(deleted, 'message')} deleted.")


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
