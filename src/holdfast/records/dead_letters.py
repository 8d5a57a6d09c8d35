"""Dead letters: what could not be done, with its payload and its error, until a person deals with it.

A letter is Pending until it is resolved, retried or expired, each of which happens once: whoever changes one holds it,
looks whether it is Pending, and whoever comes second is refused. A person may reopen a settled one, to Pending.

A retry whose queue is not in this database takes two such changes: the first writes down who retries and under which
message id while the letter is still Pending, the second settles it when the message is in the queue. Whoever finds the
first without the second, after a crash, enqueues under the same id and settles it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum

from sqlalchemy import ColumnElement, and_, insert, select, tuple_, update
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from ..core.errors import ConfigurationError, Conflict, NotFoundError
from . import audit
from .column_limits import check_fits
from .database import reading, translated
from .filters import RecordFilter
from .readable import StoredRow, read, rows_in
from .record_kind import RecordKind
from .row_keys import LONGEST_KEY, key_beside
from .schema import ID_LENGTH, PUBLISHER, dead_letters_table
from .storable_text import legible_notes, plain
from .times import database_time

RETRIED = "Retried"
_MOST_AT_ONCE = 1000
_columns = dead_letters_table.c
NEWEST_FIRST = (_columns.last_failure_at.desc(), _columns.engine.desc(), _columns.row_key.desc())


SETTLED_FIELDS = (
    "resolution_notes",
    "resolved_at",
    "resolved_by",
    "retried_as",
    "retry_message_id",
    "retry_begun_at",
    "retry_begun_by",
)
"""What a letter says about its settling, and no Pending one does but for a retry that was begun."""


class LetterStatus(StrEnum):
    """Where a dead letter stands. ``UNKNOWN`` is what another program wrote and we cannot read: nobody changes it."""

    PENDING = "Pending"
    RESOLVED = "Resolved"
    EXPIRED = "Expired"
    UNKNOWN = "Unknown"


DECIDED = {
    LetterStatus.RESOLVED: "dlq resolve",
    LetterStatus.EXPIRED: "dlq expire",
    LetterStatus.PENDING: "dlq reopen",
}
"""What the audit calls an operator's change that gave a letter its status."""

SETTLED_BY_FORCE = "If it can never be finished, settle it with 'holdfast dlq resolve --force' (over HTTP: \"force\")."


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLetter:
    """What is recorded of one item that could not be done; its letter is Pending then.

    ``traceback`` is that of the last failure, where a handler raised. ``application`` is whose engine gave it up;
    letters of other workloads and of earlier releases tell none.
    """

    engine: str
    row_key: str
    instance_id: str = PUBLISHER
    original_queue: str
    original_message: str
    error_message: str
    dequeue_count: int
    first_failure_at: datetime
    last_failure_at: datetime
    correlation_id: str
    item_id: str | None = None
    traceback: str | None = None
    application: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(NewLetter):
    """A letter as a table has it. ``retried_as`` names the item it was put back as.

    ``retry_message_id`` is the id chosen for that; on a Pending letter it says that a retry was begun and not finished.
    """

    status: LetterStatus = LetterStatus.PENDING
    resolution_notes: str | None = None
    resolved_at: datetime | None = None
    resolved_by: str | None = None
    retried_as: str | None = None
    retry_message_id: str | None = None
    retry_begun_at: datetime | None = None
    retry_begun_by: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator decides about one letter: Resolved or Expired settles a Pending one, Pending reopens a settled.

    ``despite_retry`` settles a letter whose retry was begun and can never be finished (its message may be in the
    queue), and reopens one that was put back, and whose message is lost (another may still be executed).
    """

    engine: str
    row_key: str
    status: LetterStatus
    notes: str
    actor: str
    despite_retry: bool = False

    @property
    def action(self) -> str:
        """Return what the audit calls it."""
        return DECIDED[self.status]

    @property
    def is_reopening(self) -> bool:
        """Return whether a settled letter becomes Pending again."""
        return self.status is LetterStatus.PENDING

    def check(self, letter: DeadLetter) -> None:
        """Check that the letter is in a state for it.

        Raises:
            Conflict: it is not; nothing was changed.
        """
        if self.is_reopening:
            _check_reopenable(letter, despite_retry=self.despite_retry)
        elif has_begun_retry(letter) and not self.despite_retry:
            raise Conflict(f"{state_of(letter)}; nothing was changed. {SETTLED_BY_FORCE}")

    def details(self, letter: DeadLetter) -> dict[str, object]:
        """Return what the audit says: also what a reopened letter said of its settling, and of a retry overruled.

        Raises:
            ConfigurationError: the notes are too long.
        """
        was = {"despite_retry_as": letter.retry_message_id}
        if self.is_reopening:
            names = ("resolution_notes", "resolved_by", "retried_as")
            was = {"was": letter.status.value, **{name: getattr(letter, name) for name in names}}
        return {"notes": legible_notes(self.notes), **{name: value for name, value in was.items() if value}}


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter(RecordFilter):
    """Which letters are wanted. ``since`` and ``until`` are about the last failure.

    ``is_retry_begun`` tells letters with a retry, finished or not, from those without.
    """

    status: LetterStatus | None = None
    is_retry_begun: bool | None = None


LETTERS = RecordKind(
    "The dead letter '{row_key}'",
    dead_letters_table,
    LetterStatus,
    moment="last_failure_at",
    error="error_message",
    exact_texts=("original_message",),
)


def letter_conditions(wanted: LetterFilter) -> Iterator[ColumnElement[bool]]:
    """Yield what holds for the letters that are wanted."""
    yield from LETTERS.conditions(wanted)
    retry = _columns.retry_message_id
    if wanted.is_retry_begun is not None:
        yield retry.is_not(None) if wanted.is_retry_begun else retry.is_(None)


def is_letter_wanted(letter: DeadLetter, wanted: LetterFilter) -> bool:
    """Return whether a letter fits everything that is asked for."""
    has_retry = letter.retry_message_id is not None
    return LETTERS.is_wanted(letter, wanted) and wanted.is_retry_begun in (None, has_retry)


class DeadLetters:
    """The dead letters in a database.

    Every method raises ``ConfigurationError`` when the tables are missing and ``DbConnectionError`` when the database
    does not answer.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, connection: Connection, letter: NewLetter) -> bool:
        """Add a letter to the caller's transaction; False when it is there already, and then nothing is changed.

        Raises:
            ConfigurationError: an id is empty or too long; nothing was written.
        """
        _check(letter)
        with translated(self._engine, writes=True):
            try:
                with connection.begin_nested():
                    connection.execute(insert(dead_letters_table).values(LETTERS.row_of(asdict(pending(letter)))))
            except IntegrityError:
                there = self.get(letter.engine, letter.row_key, connection)
                if there is None:
                    raise
                apart = kept_apart(letter, there)
                return apart is not None and self.add(connection, apart)
        return True

    def get(self, engine_name: str, row_key: str, connection: Connection | None = None) -> DeadLetter | None:
        """Return one letter."""
        query = select(dead_letters_table).where(_named(engine_name, row_key))
        with reading(self._engine, connection) as open_connection:
            return next(map(letter_of, rows_in(open_connection, query)), None)

    def of_item(self, item_id: str, connection: Connection | None = None) -> list[DeadLetter]:
        """Return the letters of one item, oldest first; at most the first 1,000."""
        query = select(dead_letters_table).where(_columns.item_id == item_id)
        query = query.order_by(_columns.last_failure_at, _columns.row_key).limit(_MOST_AT_ONCE)
        with reading(self._engine, connection) as open_connection:
            return [letter_of(row) for row in rows_in(open_connection, query)]

    def begin_retry(
        self, connection: Connection, engine_name: str, row_key: str, actor: str, new_message_id: str
    ) -> DeadLetter:
        """Write down, audited, who retries a letter and under which id; the transaction holds it until it ends.

        Returns the letter with the id to use: that of an earlier retry which was not finished, else the new one.

        Raises:
            ConfigurationError: the id is empty or too long.
            NotFoundError: there is no such letter.
            Conflict: it is no longer Pending; nothing was changed.
        """
        check_fits(engine_name, message_id=new_message_id)
        letter = self._held(connection, engine_name, row_key)
        if has_begun_retry(letter):
            return letter
        values = {
            "retry_message_id": new_message_id,
            "retry_begun_at": database_time(connection.dialect),
            "retry_begun_by": plain(actor)[:ID_LENGTH],
        }
        with translated(self._engine, writes=True):
            _set_held(connection, letter, values)
            audit.record(connection, actor, "dlq retry", f"{engine_name}/{row_key}", {"retried_as": new_message_id})
        return self._held(connection, engine_name, row_key)

    def finish_retry(self, connection: Connection, engine_name: str, row_key: str, message_id: str) -> DeadLetter:
        """Settle a letter whose message is back in its queue; nothing happens when that was recorded before.

        Raises:
            NotFoundError: there is no such letter.
            Conflict: no retry with that id was begun, or someone else settled the letter; nothing was changed.
        """
        letter = self._held(connection, engine_name, row_key)
        if has_finished_retry(letter, message_id):
            return letter
        self.mark_retried(connection, letter, message_id, letter.retry_begun_by or "")
        return self._held(connection, engine_name, row_key)

    def decide(self, connection: Connection, decision: Decision) -> DeadLetter:
        """Do with a letter what an operator decided, audited, and return it.

        Raises:
            NotFoundError: there is no such letter.
            Conflict: it is in no state for that; nothing was changed.
        """
        letter = self._held(connection, decision.engine, decision.row_key)
        decision.check(letter)
        _set_held(connection, letter, _decided_columns(connection, decision))
        target = f"{letter.engine}/{letter.row_key}"
        audit.record(connection, decision.actor, decision.action, target, decision.details(letter))
        return self._held(connection, letter.engine, letter.row_key)

    def _held(self, connection: Connection, engine_name: str, row_key: str) -> DeadLetter:
        """Return a letter that is the transaction's until it ends."""
        query = select(dead_letters_table).where(_named(engine_name, row_key)).with_for_update()
        with translated(self._engine, writes=True):
            rows = rows_in(connection, query)
        if not rows:
            raise no_such_letter(engine_name, row_key)
        return letter_of(rows[0])

    def mark_retried(self, connection: Connection, letter: DeadLetter, retried_as: str, actor: str) -> None:
        """Mark a letter that this transaction holds as put back."""
        settled = settled_columns(connection, LetterStatus.RESOLVED, RETRIED, actor)
        with translated(self._engine, writes=True):
            _set_held(connection, letter, {**settled, "retried_as": retried_as})

    def pending_keys(self, engine_name: str, row_keys: Sequence[str], connection: Connection) -> set[str]:
        """Return the keys of those letters of an engine that are Pending now."""
        found: set[str] = set()
        for start in range(0, len(row_keys), _MOST_AT_ONCE):
            some = row_keys[start : start + _MOST_AT_ONCE]
            is_wanted = and_(_columns.engine == engine_name, _columns.row_key.in_(some))
            is_pending = _columns.status == LetterStatus.PENDING.value
            found.update(connection.execute(select(_columns.row_key).where(is_wanted, is_pending)).scalars())
        return found

    def lock_pending(self, connection: Connection, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Return those of the letters that are still Pending; the transaction holds them until it ends."""
        keys = [(letter.engine, letter.row_key) for letter in letters]
        query = select(dead_letters_table).where(
            tuple_(_columns.engine, _columns.row_key).in_(keys), _columns.status == LetterStatus.PENDING.value
        )
        with translated(self._engine, writes=True):
            return [letter_of(row) for row in rows_in(connection, query.order_by(*NEWEST_FIRST).with_for_update())]


def pending(letter: NewLetter) -> DeadLetter:
    """Return a letter as a table is to have it."""
    return letter if isinstance(letter, DeadLetter) else DeadLetter(**asdict(letter))


def kept_apart(letter: NewLetter, there: DeadLetter) -> NewLetter | None:
    """Return a letter under a key of its own whose key another application's letter has; None if it is the same one.

    The key has the message's id and its time, and two applications may give each other's messages the same of both.
    """
    if letter.application is None or there.application in (None, letter.application):
        return None
    return replace(letter, row_key=key_beside(letter.row_key, letter.application))


def state_of(letter: DeadLetter) -> str:
    """Return for people what became of a letter."""
    name = f"The dead letter '{letter.row_key}' of engine '{letter.engine}'"
    if letter.status is LetterStatus.PENDING and letter.retry_message_id is not None:
        return f"{name} is being retried by {letter.retry_begun_by} as '{letter.retry_message_id}'"
    by = f" by {letter.resolved_by}" if letter.resolved_by else ""
    notes = f" ({letter.resolution_notes})" if letter.resolution_notes else ""
    return f"{name} is {letter.status.value}{by}{notes}"


def is_pending(letter: DeadLetter) -> bool:
    """Return whether a letter may still be settled."""
    return letter.status is LetterStatus.PENDING


def _check_reopenable(letter: DeadLetter, *, despite_retry: bool) -> None:
    if letter.status not in (LetterStatus.RESOLVED, LetterStatus.EXPIRED):
        raise Conflict(f"{state_of(letter)}, not settled; nothing was changed.")
    if letter.retried_as is not None and not despite_retry:
        raise Conflict(
            f"{state_of(letter)}: it was put back as '{letter.retried_as}', which has an end of its own; nothing was "
            "changed. If that message is lost, use 'holdfast dlq reopen --force' (over HTTP: \"force\")."
        )


def check_age(older_than_days: float) -> None:
    """Check from which age on letters are to be given up.

    Raises:
        ConfigurationError: the number of days is negative.
    """
    if older_than_days < 0:
        raise ConfigurationError(f"Letters cannot be older than {older_than_days:g} days. Pass 0 or more.")


def expiry_notes(older_than_days: float) -> str:
    """Return what a letter says that was given up on for its age."""
    return f"failed more than {older_than_days:g} days before"


def is_retried_as(letter: DeadLetter, message_id: str) -> bool:
    """Return whether a letter was put back under that id."""
    return letter.status is LetterStatus.RESOLVED and letter.retried_as == message_id


def has_begun_retry(letter: DeadLetter) -> bool:
    """Return whether a retry of a Pending letter was begun and not finished.

    Raises:
        Conflict: it is no longer Pending.
    """
    if not is_pending(letter):
        raise Conflict(f"{state_of(letter)}; nothing was changed.")
    return letter.retry_message_id is not None


def has_finished_retry(letter: DeadLetter, message_id: str) -> bool:
    """Return whether the retry under that id was finished before; False if it is to be finished now.

    Raises:
        Conflict: no retry with that id was begun, or someone else settled the letter.
    """
    if is_retried_as(letter, message_id):
        return True
    if not is_pending(letter) or letter.retry_message_id != message_id:
        raise Conflict(f"{state_of(letter)}, not with the message '{message_id}'; nothing was changed.")
    return False


def no_such_letter(engine_name: str, row_key: str) -> NotFoundError:
    """Return the error for a letter that is not there."""
    return NotFoundError(f"There is no dead letter '{row_key}' of engine '{engine_name}'.")


def _named(engine_name: str, row_key: str) -> ColumnElement[bool]:
    return and_(_columns.engine == engine_name, _columns.row_key == row_key)


def _set_held(connection: Connection, letter: DeadLetter, values: Mapping[str, object]) -> None:
    """Change a letter that the transaction holds.

    The key alone names it: asked for the status too, MariaDB may go by that index, and meet others half-way.
    """
    connection.execute(update(dead_letters_table).where(_named(letter.engine, letter.row_key)).values(values))


def _decided_columns(connection: Connection, decision: Decision) -> dict[str, object]:
    if decision.is_reopening:
        return {"status": LetterStatus.PENDING.value, **dict.fromkeys(SETTLED_FIELDS)}
    return settled_columns(connection, decision.status, legible_notes(decision.notes), decision.actor)


def settled_columns(connection: Connection, status: LetterStatus, notes: str, actor: str) -> dict[str, object]:
    """Return the columns of a letter that is settled now."""
    return {
        "status": status.value,
        "resolution_notes": notes,
        "resolved_at": database_time(connection.dialect),
        "resolved_by": plain(actor)[:ID_LENGTH],
    }


def check_letter_ids(letter: NewLetter) -> None:
    """Check what a letter is looked up by.

    Raises:
        ConfigurationError: an id is empty or too long.
    """
    names = ("instance_id", "original_queue", "correlation_id", "item_id")
    check_fits(letter.engine, **{name: getattr(letter, name) for name in names})


def _check(letter: NewLetter) -> None:
    check_letter_ids(letter)
    if not 0 < len(letter.row_key) <= LONGEST_KEY:
        raise ConfigurationError(
            f"The row key '{letter.row_key[:40]}…' has {len(letter.row_key)} characters. Use 1 to {LONGEST_KEY}."
        )


def letter_of(row: StoredRow) -> DeadLetter:
    """Return the letter in a row.

    Raises:
        QueryError: it cannot be read; the row and the column are named.
    """
    return read(row, _letter, dead_letters_table.name, ["engine", "row_key"])


def _letter(row: StoredRow) -> DeadLetter:
    return DeadLetter(**LETTERS.fields_in(row))
