"""Giving up on one dead letter, with a note: what ``DeadLetters.expire`` does for many by their age."""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.engine import Engine

from ..core.errors import Conflict, NotFoundError
from ..records import audit
from ..records.database import changing
from ..records.dead_letters import DeadLetter, DeadLetters, LetterStatus, told_state
from ..records.schema import ID_LENGTH, dead_letters_table
from ..records.times import database_time

_columns = dead_letters_table.c


def expire_letter(engine: Engine, letter: DeadLetter, notes: str, actor: str) -> DeadLetter:
    """Mark a Pending letter as Expired, audited, and return it: a compare-and-set, so of two who settle it one wins.

    Raises:
        NotFoundError: there is no such letter.
        Conflict: it is no longer Pending, or a retry of it was begun; nothing was changed.
    """
    with changing(engine) as connection:
        is_settlable = (
            _columns.engine == letter.engine,
            _columns.row_key == letter.row_key,
            _columns.status == LetterStatus.PENDING.value,
            _columns.retry_message_id.is_(None),
        )
        values = {
            "status": LetterStatus.EXPIRED.value,
            "resolution_notes": notes,
            "resolved_at": database_time(connection.dialect),
            "resolved_by": actor[:ID_LENGTH],
        }
        is_ours = connection.execute(update(dead_letters_table).where(*is_settlable).values(values)).rowcount == 1
        found = DeadLetters(engine).get(letter.engine, letter.row_key, connection)
        if found is None:
            raise NotFoundError(f"There is no dead letter '{letter.row_key}' of engine '{letter.engine}'.")
        if not is_ours:
            raise Conflict(f"{told_state(found)}; nothing was changed.")
        audit.record(connection, actor, "dlq expire", f"{letter.engine}/{letter.row_key}", {"notes": notes})
    return found
