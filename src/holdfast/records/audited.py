"""Dead letters outside of SQL whose changes by hand are written down in the audit, which is in SQL."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sqlalchemy.engine import Engine

from ..core.errors import DbError
from . import audit
from .database import changing
from .dead_letters import SETTLED_BY_HAND, DeadLetter, LetterFilter, LetterStatus, settling_details
from .exact import legible
from .paging import DEFAULT_LIMIT, Page
from .protocol import EVERY_LETTER, LetterTable
from .retention import RETENTION_DAYS

logger = logging.getLogger("holdfast.records")


class AuditedLetters(LetterTable):
    """Letters of a table that keeps no audit of its own, such as an Azure table; do not wrap one that does.

    The row of the audit is written after the change took effect, because no transaction spans both places. When the
    process dies in between there is none: the letter itself carries who changed it and when. When the database does
    not take the row, the change is made all the same, and the log tells what the row would have.

    Args:
        letters: the table.
        engine: the database with the audit.
    """

    def __init__(self, letters: LetterTable, engine: Engine) -> None:
        self._letters = letters
        self._engine = engine

    def add(self, letter: DeadLetter) -> bool:
        """Add a letter; that is nobody's change by hand."""
        return self._letters.add(letter)

    def get(self, engine: str, row_key: str) -> DeadLetter | None:
        """Return one letter."""
        return self._letters.get(engine, row_key)

    def page(
        self, wanted: LetterFilter = EVERY_LETTER, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[DeadLetter]:
        """Return letters, in the table's order."""
        return self._letters.page(wanted, limit, after)

    def count(self, wanted: LetterFilter = EVERY_LETTER) -> int | None:
        """Return how many letters are wanted, if the table can tell."""
        return self._letters.count(wanted)

    def resolve(self, engine: str, row_key: str, notes: str, actor: str, *, despite_retry: bool = False) -> DeadLetter:
        """Mark a Pending letter as dealt with, audited."""
        settled = self._letters.resolve(engine, row_key, notes, actor, despite_retry=despite_retry)
        self._record(actor, SETTLED_BY_HAND[LetterStatus.RESOLVED], _name(settled), settling_details(settled, notes))
        return settled

    def expire_one(
        self, engine: str, row_key: str, notes: str, actor: str, *, despite_retry: bool = False
    ) -> DeadLetter:
        """Give up on one Pending letter, audited."""
        settled = self._letters.expire_one(engine, row_key, notes, actor, despite_retry=despite_retry)
        self._record(actor, SETTLED_BY_HAND[LetterStatus.EXPIRED], _name(settled), settling_details(settled, notes))
        return settled

    def expire(self, older_than_days: float, engine: str | None = None, *, actor: str) -> int:
        """Give up on old Pending letters; one row of the audit says how many."""
        expired = self._letters.expire(older_than_days, engine, actor=actor)
        if expired:
            details = {"older_than_days": older_than_days, "expired": expired}
            self._record(actor, SETTLED_BY_HAND[LetterStatus.EXPIRED], engine or "every engine", details)
        return expired

    def begin_retry(self, engine: str, row_key: str, actor: str, new_message_id: str) -> DeadLetter:
        """Write down who retries a letter and under which id, audited unless somebody had begun before."""
        before = self._letters.get(engine, row_key)
        begun = self._letters.begin_retry(engine, row_key, actor, new_message_id)
        is_ours = before is not None and before.retry_message_id is None and begun.retry_message_id == new_message_id
        if is_ours:
            self._record(actor, "dlq retry", _name(begun), {"retried_as": new_message_id})
        return begun

    def finish_retry(self, engine: str, row_key: str, message_id: str) -> DeadLetter:
        """Mark a letter as retried; the audit has it since the retry was begun."""
        return self._letters.finish_retry(engine, row_key, message_id)

    def unfinished_retries(
        self, older_than_seconds: float = 0.0, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[DeadLetter]:
        """Return Pending letters whose retry was begun at least so long ago."""
        return self._letters.unfinished_retries(older_than_seconds, limit, after)

    def prune(self, retention_days: float = RETENTION_DAYS) -> int:
        """Forget settled letters; that is nobody's change by hand."""
        return self._letters.prune(retention_days)

    def _record(self, actor: str, action: str, target: str, details: Mapping[str, object]) -> None:
        try:
            with changing(self._engine) as connection:
                audit.record(connection, legible(actor), action, target, details)
        except DbError as error:
            told = f"'{action}' of {target} by {actor}"
            extra = {"actor": actor, "action": action, "target": target, "details": dict(details)}
            logger.error("%s was done and could not be audited: %s", told, error, extra=extra)


def _name(letter: DeadLetter) -> str:
    return f"{letter.engine}/{letter.row_key}"
