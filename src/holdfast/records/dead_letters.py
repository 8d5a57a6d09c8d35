"""Dead letters: what could not be done, with its payload and its error, until a person deals with it.

A letter is Pending until it is resolved, retried or expired, each of which happens once: whoever changes one holds it,
looks whether it is Pending, and whoever comes second is told.

A retry whose queue is not in this database takes two such changes: the first writes down who retries and under which
message id while the letter is still Pending, the second settles it when the message is in the queue. Whoever finds the
first without the second, after a crash, enqueues under the same id and settles it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, func, insert, select, tuple_, update
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from ..core.errors import ConfigurationError, Conflict, NotFoundError
from . import audit
from .database import changing, reading, translated
from .exact import given, kept, legible
from .fitting import check_fits
from .paging import DEFAULT_LIMIT, Page, checked_limit, moment_in, position_in, token_of
from .row_keys import LONGEST_KEY, dead_letter_key
from .schema import ID_LENGTH, PUBLISHER, dead_letters_table
from .times import database_now, database_time, days_before

RETRIED = "Retried"
_KIND = "dead letters"
_MOST_OF_ONE_ITEM = 1000
_columns = dead_letters_table.c
_newest_first = (_columns.last_failure_at.desc(), _columns.engine.desc(), _columns.row_key.desc())


class LetterStatus(StrEnum):
    """Where a dead letter stands. ``UNKNOWN`` is what another program wrote and we cannot read: nobody changes it."""

    PENDING = "Pending"
    RESOLVED = "Resolved"
    EXPIRED = "Expired"
    UNKNOWN = "Unknown"


SETTLED_BY_HAND = {LetterStatus.RESOLVED: "dlq resolve", LetterStatus.EXPIRED: "dlq expire"}
"""What the audit calls the change that gave a letter its status."""

SETTLED_BY_FORCE = "If it can never be finished, settle it with 'holdfast dlq resolve --force' (over HTTP: \"force\")."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One item that could not be done. ``retried_as`` names the item it was put back as.

    ``retry_message_id`` is the id chosen for that; on a Pending letter it says that a retry was begun and not finished.
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
    status: LetterStatus = LetterStatus.PENDING
    resolution_notes: str | None = None
    resolved_at: datetime | None = None
    resolved_by: str | None = None
    correlation_id: str
    item_id: str | None = None
    retried_as: str | None = None
    retry_message_id: str | None = None
    retry_begun_at: datetime | None = None
    retry_begun_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which letters are wanted: those that fit everything that is not None.

    ``since`` and ``until`` are about the last failure; ``error`` is a part of the error's text, in any case;
    ``is_retry_begun`` tells letters with a retry, finished or not, from those without.
    """

    engine: str | None = None
    status: LetterStatus | None = None
    instance_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    correlation_id: str | None = None
    error: str | None = None
    is_retry_begun: bool | None = None


_EVERY_LETTER = LetterFilter()


class DeadLetters:
    """The dead letters in a database.

    Every method raises ``ConfigurationError`` when the tables are missing and ``DbConnectionError`` when the database
    does not answer.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, connection: Connection, letter: DeadLetter) -> bool:
        """Add a letter to the caller's transaction; False when it is there already, and then nothing is changed.

        Raises:
            ConfigurationError: an id is empty or too long; nothing was written.
        """
        _check(letter)
        with translated(self._engine, writes=True):
            try:
                with connection.begin_nested():
                    connection.execute(insert(dead_letters_table).values(_row_of(letter)))
            except IntegrityError:
                if self.get(letter.engine, letter.row_key, connection) is None:
                    raise
                return False
        return True

    def get(self, engine_name: str, row_key: str, connection: Connection | None = None) -> DeadLetter | None:
        """Return one letter."""
        query = select(dead_letters_table).where(_named(engine_name, row_key))
        with reading(self._engine, connection) as open_connection:
            row = open_connection.execute(query).one_or_none()
        return None if row is None else _letter(row)

    def page(
        self, wanted: LetterFilter = _EVERY_LETTER, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[DeadLetter]:
        """Return the letters that failed last, or those behind the page that ended with the token ``after``.

        Raises:
            ConfigurationError: the limit or the token is wrong.
        """
        query = select(dead_letters_table).where(*_conditions(wanted)).order_by(*_newest_first)
        if after is not None:
            query = query.where(_behind(after))
        with reading(self._engine) as connection:
            rows = connection.execute(query.limit(checked_limit(limit) + 1)).all()
        items = [_letter(row) for row in rows[:limit]]
        return Page(items, _token(items[-1]) if len(rows) > limit else None)

    def count(self, wanted: LetterFilter = _EVERY_LETTER) -> int:
        """Return how many letters are wanted."""
        query = select(func.count()).select_from(dead_letters_table).where(*_conditions(wanted))
        with reading(self._engine) as connection:
            return int(connection.execute(query).scalar_one())

    def of_item(self, item_id: str, connection: Connection | None = None) -> list[DeadLetter]:
        """Return the letters of one item, oldest first; at most the first 1,000."""
        query = select(dead_letters_table).where(_columns.item_id == item_id)
        query = query.order_by(_columns.last_failure_at, _columns.row_key).limit(_MOST_OF_ONE_ITEM)
        with reading(self._engine, connection) as open_connection:
            return [_letter(row) for row in open_connection.execute(query)]

    def resolve(
        self, engine_name: str, row_key: str, notes: str, actor: str, *, despite_retry: bool = False
    ) -> DeadLetter:
        """Mark a letter as dealt with, audited, and return it.

        ``despite_retry`` is for a retry that was begun and can never be finished: its message may be in the queue.

        Raises:
            NotFoundError: there is no such letter.
            Conflict: it is no longer Pending, or a retry of it was begun; nothing was changed.
        """
        with changing(self._engine) as connection:
            letter = self._held(connection, engine_name, row_key)
            check_settlable(letter, despite_retry=despite_retry)
            return self._settled(connection, letter, LetterStatus.RESOLVED, notes, actor)

    def expire_one(
        self, engine_name: str, row_key: str, notes: str, actor: str, *, despite_retry: bool = False
    ) -> DeadLetter:
        """Give up on one letter, audited, and return it; ``despite_retry`` as in ``resolve``.

        Raises:
            NotFoundError: there is no such letter.
            Conflict: it is no longer Pending, or a retry of it was begun; nothing was changed.
        """
        with changing(self._engine) as connection:
            letter = self._held(connection, engine_name, row_key)
            check_settlable(letter, despite_retry=despite_retry)
            return self._settled(connection, letter, LetterStatus.EXPIRED, notes, actor)

    def expire(self, older_than_days: float, engine_name: str | None = None, *, actor: str) -> int:
        """Give up on Pending letters that failed longer ago than that, audited; return how many.

        Letters with a retry that was begun are left alone: its message may be in the queue.

        Raises:
            ConfigurationError: the number of days is negative.
        """
        if older_than_days < 0:
            raise ConfigurationError(f"Letters cannot be older than {older_than_days:g} days. Pass 0 or more.")
        with changing(self._engine) as connection:
            until = days_before(database_now(connection), older_than_days)
            wanted = and_(*_conditions(LetterFilter(engine=engine_name, until=until, is_retry_begun=False)))
            pending = update(dead_letters_table).where(wanted, _columns.status == LetterStatus.PENDING.value)
            values = {
                "status": LetterStatus.EXPIRED.value,
                "resolution_notes": expiry_notes(older_than_days),
                "resolved_at": database_time(connection.dialect),
                "resolved_by": actor[:ID_LENGTH],
            }
            expired = connection.execute(pending.values(values)).rowcount
            if expired:
                details = {"older_than_days": older_than_days, "expired": expired}
                audit.record(connection, actor, "dlq expire", engine_name or "every engine", details)
        return expired

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
        if not is_pending(letter):
            raise Conflict(f"{told_state(letter)}; nothing was changed.")
        if letter.retry_message_id is not None:
            return letter
        values = {
            "retry_message_id": new_message_id,
            "retry_begun_at": database_time(connection.dialect),
            "retry_begun_by": actor[:ID_LENGTH],
        }
        with translated(self._engine, writes=True):
            _set_held(connection, letter, values)
            audit.record(connection, actor, "dlq retry", f"{engine_name}/{row_key}", {"retried_as": new_message_id})
        return self._held(connection, engine_name, row_key)

    def finish_retry(self, connection: Connection, engine_name: str, row_key: str, message_id: str) -> DeadLetter:
        """Settle a letter whose message is back in its queue; nothing happens when that was told before.

        Raises:
            NotFoundError: there is no such letter.
            Conflict: no retry with that id was begun, or someone else settled the letter; nothing was changed.
        """
        letter = self._held(connection, engine_name, row_key)
        if is_retried_as(letter, message_id):
            return letter
        if not is_pending(letter) or letter.retry_message_id != message_id:
            raise Conflict(f"{told_state(letter)}, not with the message '{message_id}'; nothing was changed.")
        self.mark_retried(connection, letter, message_id, letter.retry_begun_by or "")
        return self._held(connection, engine_name, row_key)

    def _settled(
        self, connection: Connection, letter: DeadLetter, status: LetterStatus, notes: str, actor: str
    ) -> DeadLetter:
        """Settle a letter that the transaction holds, as a person decided."""
        values = {
            "status": status.value,
            "resolution_notes": legible(notes),
            "resolved_at": database_time(connection.dialect),
            "resolved_by": actor[:ID_LENGTH],
        }
        _set_held(connection, letter, values)
        name = f"{letter.engine}/{letter.row_key}"
        audit.record(connection, actor, SETTLED_BY_HAND[status], name, settling_details(letter, notes))
        return self._held(connection, letter.engine, letter.row_key)

    def _held(self, connection: Connection, engine_name: str, row_key: str) -> DeadLetter:
        """Return a letter that is the transaction's until it ends."""
        query = select(dead_letters_table).where(_named(engine_name, row_key)).with_for_update()
        with translated(self._engine, writes=True):
            row = connection.execute(query).one_or_none()
        if row is None:
            raise no_such_letter(engine_name, row_key)
        return _letter(row)

    def mark_retried(self, connection: Connection, letter: DeadLetter, retried_as: str, actor: str) -> None:
        """Mark a letter that this transaction holds as put back."""
        values = {
            "status": LetterStatus.RESOLVED.value,
            "resolution_notes": RETRIED,
            "resolved_at": database_time(connection.dialect),
            "resolved_by": actor[:ID_LENGTH],
            "retried_as": retried_as,
        }
        with translated(self._engine, writes=True):
            _set_held(connection, letter, values)

    def lock_pending(self, connection: Connection, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Return those of the letters that are still Pending; the transaction holds them until it ends."""
        keys = [(letter.engine, letter.row_key) for letter in letters]
        query = select(dead_letters_table).where(
            tuple_(_columns.engine, _columns.row_key).in_(keys), _columns.status == LetterStatus.PENDING.value
        )
        with translated(self._engine, writes=True):
            rows = connection.execute(query.order_by(*_newest_first).with_for_update())
            return [_letter(row) for row in rows]


def new_letter(*, item: str, row_key: str | None = None, **fields: Any) -> DeadLetter:
    """Return a letter about ``item``, its row key made from the item and the moment of the last failure."""
    key = row_key or dead_letter_key(item, fields["last_failure_at"])
    return DeadLetter(row_key=key, item_id=item, **fields)


def told_state(letter: DeadLetter) -> str:
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


def check_settlable(letter: DeadLetter, *, despite_retry: bool = False) -> None:
    """Check that a person may settle a letter.

    Raises:
        Conflict: it is no longer Pending, or a retry of it was begun.
    """
    if not is_pending(letter):
        raise Conflict(f"{told_state(letter)}; nothing was changed.")
    if letter.retry_message_id is not None and not despite_retry:
        raise Conflict(f"{told_state(letter)}; nothing was changed. {SETTLED_BY_FORCE}")


def settling_details(letter: DeadLetter, notes: str) -> dict[str, object]:
    """Return what the audit says about a letter that a person settles: also of a retry that was overruled."""
    retry = {} if letter.retry_message_id is None else {"despite_retry_as": letter.retry_message_id}
    return {"notes": legible(notes), **retry}


def expiry_notes(older_than_days: float) -> str:
    """Return what a letter says that was given up on for its age."""
    return f"failed more than {older_than_days:g} days before"


def is_retried_as(letter: DeadLetter, message_id: str) -> bool:
    """Return whether a letter was put back under that id."""
    return letter.status is LetterStatus.RESOLVED and letter.retried_as == message_id


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


def _check(letter: DeadLetter) -> None:
    check_fits(
        letter.engine,
        instance_id=letter.instance_id,
        original_queue=letter.original_queue,
        correlation_id=letter.correlation_id,
        item_id=letter.item_id,
    )
    if not 0 < len(letter.row_key) <= LONGEST_KEY:
        raise ConfigurationError(
            f"The row key '{letter.row_key[:40]}…' has {len(letter.row_key)} characters. Use 1 to {LONGEST_KEY}."
        )


def _conditions(wanted: LetterFilter) -> Iterator[ColumnElement[bool]]:
    for name in ("engine", "status", "instance_id", "correlation_id"):
        value = getattr(wanted, name)
        if value is not None:
            yield _columns[name] == str(value)
    if wanted.since is not None:
        yield _columns.last_failure_at >= wanted.since
    if wanted.until is not None:
        yield _columns.last_failure_at < wanted.until
    if wanted.error is not None:
        yield _columns.error_message.icontains(wanted.error, autoescape=True)
    if wanted.is_retry_begun is not None:
        yield _columns.retry_message_id.is_not(None) if wanted.is_retry_begun else _columns.retry_message_id.is_(None)


def _token(letter: DeadLetter) -> str:
    return token_of(_KIND, letter.last_failure_at.isoformat(), letter.engine, letter.row_key)


def _behind(token: str) -> ColumnElement[bool]:
    text, engine_name, row_key = position_in(_KIND, token, [str, str, str])
    moment = moment_in(_KIND, token, text)
    # The first condition says nothing new, but every database can use an index for it.
    row = tuple_(_columns.last_failure_at, _columns.engine, _columns.row_key)
    return and_(_columns.last_failure_at <= moment, row < tuple_(moment, engine_name, row_key))


def _row_of(letter: DeadLetter) -> dict[str, Any]:
    return {
        **asdict(letter),
        "status": letter.status.value,
        "original_message": kept(letter.original_message),
        "error_message": legible(letter.error_message),
    }


def _letter(row: Row[Any]) -> DeadLetter:
    values = dict(row._mapping)
    try:
        status = LetterStatus(values.pop("status"))
    except ValueError as error:
        raise ConfigurationError(
            f"The dead letter '{values['row_key']}' has an unknown status ({error}). It was written by a newer "
            "version: upgrade."
        ) from error
    return DeadLetter(status=status, original_message=given(values.pop("original_message")), **values)
