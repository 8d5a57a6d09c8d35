"""What every table of dead letters and every table of history can do, wherever it is kept.

Each change is a whole: when the process dies in it, it has happened or it has not (``prune``, and ``expire`` where a
table has no transactions or there are two tables, are many of them, and may be called again).

Every method raises ``ConfigurationError`` when the table is missing or refuses us, and ``Unavailable`` or
``DbConnectionError`` when it does not answer and nothing was changed; a change raises ``Ambiguous`` when its answer was
lost and reading did not settle it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from ..core.moments_ahead import lies_ahead
from .dead_letters import DeadLetter, Decision, LetterFilter, LetterStatus, NewLetter
from .history import HistoryEntry, HistoryFilter, NewEntry, SuccessKey, successes_of
from .paging import DEFAULT_LIMIT, Page
from .retention import RETENTION_DAYS

EVERY_LETTER = LetterFilter()
EVERY_ENTRY = HistoryFilter()


class LetterTable(Protocol):
    """Dead letters. A letter leaves Pending once: of two who change it at a time, one gets ``Conflict``."""

    def now(self) -> datetime:
        """Return the present time as the table sees it, which decides what is old."""
        ...

    def add(self, letter: NewLetter) -> bool:
        """Add a letter; False when its key is there already, and then nothing is changed.

        Raises:
            ConfigurationError: an id does not fit, or the letter is larger than the table can hold; it is never cut.
        """
        ...

    def get(self, engine: str, row_key: str) -> DeadLetter | None:
        """Return one letter."""
        ...

    def page(
        self, wanted: LetterFilter = EVERY_LETTER, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[DeadLetter]:
        """Return letters that are wanted, in the table's own order, or those behind the token ``after``.

        A letter that is there from the first page to the last comes exactly once. A page may be shorter than the limit;
        the last is the one without a token. Dates the wrong way round give an empty page.

        Raises:
            ConfigurationError: the limit or the token is wrong.
        """
        ...

    def count(self, wanted: LetterFilter = EVERY_LETTER) -> int | None:
        """Return how many letters are wanted; None where that would mean to read them all."""
        ...

    def decide(self, decision: Decision) -> DeadLetter:
        """Do with a letter what an operator decided, and return it.

        Raises:
            NotFoundError: there is no such letter.
            Conflict: it is in no state for that: to be settled it must be Pending and without a retry that was begun,
                to be reopened it must be settled and not put back. Nothing was changed.
            ConfigurationError: the notes are too long; nothing was changed.
        """
        ...

    def settle(
        self, engine: str, row_key: str, status: LetterStatus, notes: str, actor: str, *, despite_retry: bool = False
    ) -> DeadLetter:
        """Give a letter another status as an operator decided; see ``decide`` and ``Decision``."""
        return self.decide(Decision(engine, row_key, status, notes, actor, despite_retry))

    def resolve(self, engine: str, row_key: str, notes: str, actor: str, *, despite_retry: bool = False) -> DeadLetter:
        """Mark a Pending letter as dealt with; see ``decide``."""
        return self.settle(engine, row_key, LetterStatus.RESOLVED, notes, actor, despite_retry=despite_retry)

    def expire_one(
        self, engine: str, row_key: str, notes: str, actor: str, *, despite_retry: bool = False
    ) -> DeadLetter:
        """Give up on one Pending letter; see ``decide``."""
        return self.settle(engine, row_key, LetterStatus.EXPIRED, notes, actor, despite_retry=despite_retry)

    def reopen(self, engine: str, row_key: str, notes: str, actor: str, *, despite_retry: bool = False) -> DeadLetter:
        """Make a settled letter Pending again; see ``decide``."""
        return self.settle(engine, row_key, LetterStatus.PENDING, notes, actor, despite_retry=despite_retry)

    def expire(self, older_than_days: float, engine: str | None = None, *, actor: str) -> int:
        """Give up on Pending letters that failed longer ago than that; return how many. Retries begun are left alone.

        Raises:
            ConfigurationError: the number of days is negative.
        """
        ...

    def begin_retry(self, engine: str, row_key: str, actor: str, new_message_id: str) -> DeadLetter:
        """Write down who retries a Pending letter and under which message id, and return the letter with that id.

        When a retry was begun before and not finished, its id is the one to use, and nothing is changed: the queue may
        have the message already.

        Raises:
            NotFoundError: there is no such letter.
            Conflict: it is no longer Pending, or someone else changed it in this moment; nothing was changed.
        """
        ...

    def finish_retry(self, engine: str, row_key: str, message_id: str) -> DeadLetter:
        """Mark a letter as Resolved, 'Retried', by whoever began it, once its message is in the queue; return it.

        A second call with the same id changes nothing.

        Raises:
            NotFoundError: there is no such letter.
            Conflict: no retry with that id was begun, or someone else settled the letter; nothing was changed.
        """
        ...

    def unfinished_retries(
        self, older_than_seconds: float = 0.0, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[DeadLetter]:
        """Return Pending letters whose retry was begun at least so long ago, paged like ``page``."""
        now = self.now()
        until = now - timedelta(seconds=older_than_seconds)

        def is_old(begun_at: datetime | None) -> bool:
            return begun_at is None or begun_at <= until or lies_ahead(begun_at, now)

        found = self.page(LetterFilter(status=LetterStatus.PENDING, is_retry_begun=True), limit, after)
        return replace(found, items=[letter for letter in found.items if is_old(letter.retry_begun_at)])

    def prune(self, retention_days: float = RETENTION_DAYS) -> int:
        """Forget letters that were settled longer ago than that; return how many. Pending ones stay.

        An Expired letter of another program that does not tell when it was settled is counted from its last failure.

        Raises:
            ConfigurationError: the number of days is negative.
        """
        ...


class HistoryTable(Protocol):
    """What engines did: one entry for every execution that ended. Entries are never changed."""

    def add(self, entry: NewEntry) -> HistoryEntry:
        """Add an entry and return it.

        Raises:
            ConfigurationError: an id does not fit, or the entry is larger than the table can hold; it is never cut.
        """
        ...

    def get(self, engine: str, row_key: str) -> HistoryEntry | None:
        """Return one entry; None when no entry has that key."""
        ...

    def page(
        self, wanted: HistoryFilter = EVERY_ENTRY, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[HistoryEntry]:
        """Return entries that are wanted, as ``LetterTable.page`` does.

        Raises:
            ConfigurationError: the limit or the token is wrong.
        """
        ...

    def in_order(self, wanted: HistoryFilter) -> list[HistoryEntry]:
        """Return what one engine did for one piece of business, oldest first; at most the first 1,000."""
        ...

    def last(self, wanted: HistoryFilter) -> HistoryEntry | None:
        """Return the last entry about one piece of business that is wanted; None when there is none."""
        ...

    def succeeded(
        self, engine: str, operation: str, correlation_id: str, application: str | None = None
    ) -> HistoryEntry | None:
        """Return the last success of an operation for one piece of business; None when there was none.

        With an ``application`` those of others do not count; those that tell none do.
        """
        return self.last(successes_of(SuccessKey(engine, operation, correlation_id, application)))

    def of_correlation(
        self, engine: str, correlation_id: str, operation: str | None = None, application: str | None = None
    ) -> list[HistoryEntry]:
        """Return what an engine did for one piece of business; see ``in_order``."""
        wanted = HistoryFilter(
            engine=engine, operation=operation, correlation_id=correlation_id, application=application
        )
        return self.in_order(wanted)

    def prune(self, retention_days: float = RETENTION_DAYS) -> int:
        """Forget entries older than that; return how many.

        Raises:
            ConfigurationError: the number of days is negative.
        """
        ...
