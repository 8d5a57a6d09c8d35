"""Dead letters outside of SQL whose changes by operators are written down in the audit, which is in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime

from sqlalchemy.engine import Connection, Engine

from ..core.errors import DbError
from . import audit
from .audited_change import BEGUN, audited_change
from .database import changing
from .dead_letters import (
    DECIDED,
    DeadLetter,
    Decision,
    LetterFilter,
    LetterStatus,
    NewLetter,
    check_age,
    has_begun_retry,
    no_such_letter,
)
from .paging import DEFAULT_LIMIT, Page
from .protocol import EVERY_LETTER, LetterTable
from .retention import RETENTION_DAYS
from .storable_text import legible
from .times import days_before


class AuditedLetters(LetterTable):
    """Letters of a table that keeps no audit of its own, such as an Azure table; do not wrap one that does.

    The row of the audit is written before the change, because no transaction spans both places: there is no change
    without a row. What is refused before that has none; what was not done after all has a second row that says so.

    Args:
        letters: the table.
        engine: the database with the audit.
    """

    def __init__(self, letters: LetterTable, engine: Engine) -> None:
        self._letters = letters
        self._engine = engine

    def now(self) -> datetime:
        """Return the table's time."""
        return self._letters.now()

    def add(self, letter: NewLetter) -> bool:
        """Add a letter; no operator decided that."""
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

    def decide(self, decision: Decision) -> DeadLetter:
        """Do with a letter what an operator decided, audited with what it said before."""
        letter = self._there(decision.engine, decision.row_key)
        decision.check(letter)
        with self._audited(decision.actor, decision.action, letter, decision.details(letter)):
            return self._letters.decide(decision)

    def expire(self, older_than_days: float, engine: str | None = None, *, actor: str) -> int:
        """Give up on old Pending letters; a row says that it was begun, another one how many there were."""
        check_age(older_than_days)
        if not self._has_some_before(older_than_days, engine):
            return 0
        action, details = DECIDED[LetterStatus.EXPIRED], {"older_than_days": older_than_days}
        self._record(actor, f"{action} {BEGUN}", engine or "every engine", details)
        expired = self._letters.expire(older_than_days, engine, actor=actor)
        self._record(actor, action, engine or "every engine", {**details, "expired": expired})
        return expired

    def begin_retry(self, engine: str, row_key: str, actor: str, new_message_id: str) -> DeadLetter:
        """Write down who retries a letter and under which id, audited unless somebody had begun before."""
        letter = self._there(engine, row_key)
        if has_begun_retry(letter):
            return letter
        try:
            with self._audited(actor, "dlq retry", letter, {"retried_as": new_message_id}):
                begun = self._letters.begin_retry(engine, row_key, actor, new_message_id)
                if begun.retry_message_id != new_message_id:
                    raise _OthersWereFasterError(begun)
                return begun
        except _OthersWereFasterError as others:
            return others.begun

    def finish_retry(self, engine: str, row_key: str, message_id: str) -> DeadLetter:
        """Mark a letter as retried; the audit has it since the retry was begun."""
        return self._letters.finish_retry(engine, row_key, message_id)

    def prune(self, retention_days: float = RETENTION_DAYS) -> int:
        """Forget settled letters; no operator decided that."""
        return self._letters.prune(retention_days)

    def _there(self, engine: str, row_key: str) -> DeadLetter:
        letter = self._letters.get(engine, row_key)
        if letter is None:
            raise no_such_letter(engine, row_key)
        return letter

    def _has_some_before(self, days: float, engine: str | None) -> bool:
        until = days_before(self.now(), days)
        wanted = LetterFilter(engine=engine, status=LetterStatus.PENDING, until=until, is_retry_begun=False)
        page = self._letters.page(wanted, limit=1)
        return bool(page.items) or page.continuation_token is not None

    def _audited(
        self, actor: str, action: str, letter: DeadLetter, details: Mapping[str, object]
    ) -> AbstractContextManager[Connection | None]:
        target = f"{letter.engine}/{letter.row_key}"
        return audited_change(self._engine, legible(actor), action, target, details, is_in_database=False)

    def _record(self, actor: str, action: str, target: str, details: Mapping[str, object]) -> None:
        with changing(self._engine) as connection:
            audit.record(connection, legible(actor), action, target, details)


class _OthersWereFasterError(DbError):
    """Somebody else has begun the retry in this moment, so ours was not."""

    def __init__(self, begun: DeadLetter) -> None:
        super().__init__("Somebody else has begun the retry.")
        self.begun = begun
