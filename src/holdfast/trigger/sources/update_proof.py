"""What is proved about updates: decided from what the database says of the cursor column, and said in words.

Proved is only what the database does by itself: ON UPDATE, the version of a row, or the trigger that Holdfast writes. A
default proves nothing about updates, and what another trigger does is not visible in its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import Literal

from ...core.errors import SourceConfigurationError
from ...database.reflection import qualified
from .cursor_trigger import DIALECTS
from .inspection import CursorFacts

UpdateStatus = Literal["proved", "trusted", "not proved", "inserts only"]
UPDATES = ("trusted",)


@dataclass(frozen=True, slots=True)
class UpdateProof:
    """Whether a trigger sees every update. ``covers`` are the rows of which that, and the horizon, holds."""

    status: UpdateStatus
    because: str
    covers: str
    prove_with: str | None = None

    def sentence(self) -> str:
        """Return it for people."""
        more = "" if self.prove_with is None else f" To prove it: {self.prove_with}"
        return f"{self.status}: {self.because}.{more}"


def check_updates(given: object) -> None:
    """Refuse what is not known.

    Raises:
        SourceConfigurationError: it is neither None nor 'trusted'.
    """
    if given is not None and given not in UPDATES:
        raise SourceConfigurationError(
            f"updates={given!r} is not known: leave it out, or write updates='trusted' if every change sets the cursor "
            "column to the database's clock."
        )


def proof_of_updates(
    facts: CursorFacts | None, dialect_name: str, table: str | None, schema: str | None, *, is_trusted: bool
) -> UpdateProof:
    """Return what is proved about updates of rows that a cursor column finds."""
    if facts is None or table is None:
        return _unproved("a query's cursor column cannot be inspected", "rows that the query finds", None, is_trusted)
    column = facts.name
    covers = _covers(facts, dialect_name)
    if facts.generated_id:
        return UpdateProof("inserts only", f"'{column}' is given out once, so an update does not change it", covers)
    if facts.kept_by is not None and facts.escapes is None:
        return UpdateProof("proved", f"{facts.kept_by} writes '{column}' whenever a row changes", covers)
    if facts.kept_by is not None:
        reason = f"{facts.escapes} changes rows without {facts.kept_by.rstrip(',')}"
        return _unproved(reason, covers, None, is_trusted)
    if facts.is_of_view:
        return _unproved(f"'{table}' is a view, and what keeps '{column}' is not known of it", covers, None, is_trusted)
    command = f"holdfast trigger install-cursor {quote(qualified(table, schema))} --column {quote(column)}"
    if dialect_name not in DIALECTS or facts.escapes is not None:
        command = ""
    return _unproved(_unkept(facts), covers, command or None, is_trusted)


def _covers(facts: CursorFacts, dialect_name: str) -> str:
    """Return of which rows a claim about the column holds.

    On MariaDB and MySQL every session may set the time that NOW() tells it, which triggers and ON UPDATE write, too.
    """
    covers = "every row" if facts.is_forced else f"rows that leave '{facts.name}' to the database"
    if facts.part_apart is not None and not facts.is_forced:
        covers += f", but for those written into '{facts.part_apart}' itself, where its default is another"
    has_clock = facts.clock is not None and dialect_name in ("mysql", "mariadb")
    return f"{covers}, from sessions that do not set 'timestamp'" if has_clock else covers


def _unkept(facts: CursorFacts) -> str:
    if facts.installed is not None and facts.installed.fault is not None:
        return facts.installed.fault
    filled = f"DEFAULT {facts.default}" if facts.default is not None else "no default"
    return (
        f"'{facts.name}' has {filled} and nothing that surely writes it on UPDATE, so an update that leaves it alone, "
        "or writes another clock's time, may never be seen"
    )


def _unproved(reason: str, covers: str, command: str | None, is_trusted: bool) -> UpdateProof:
    if is_trusted:
        return UpdateProof("trusted", f"updates='trusted' was said, although {reason}", covers, command)
    return UpdateProof("not proved", reason, covers, command)
