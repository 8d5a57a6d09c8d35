"""What a database's answer, or the lack of one, means for the queue."""

from __future__ import annotations

from contextlib import AbstractContextManager

from sqlalchemy.engine import Engine

from ...core.errors import Ambiguous, DbError, JobError, Unavailable
from ...database.errors import PASSING, Failure, Kind, translating


def translated(engine: Engine, *, is_commit: bool = False) -> AbstractContextManager[None]:
    """Turn driver errors into ours.

    Args:
        engine: where the queue is.
        is_commit: whether this is the end of a transaction: a connection that breaks then leaves its fate unknown.

    Raises:
        Ambiguous: the connection broke; a write may or may not have landed.
        Unavailable: nothing was written; a retry can help.
        JobError: a retry cannot help.
    """
    return translating(engine, _at_commit if is_commit else _as_ours)


def _at_commit(failure: Failure) -> DbError:
    return _unanswered(failure) if failure.kind is Kind.BROKEN else _as_ours(failure)


def _as_ours(failure: Failure) -> DbError:
    where, why = failure.where, failure.why
    match failure.kind:
        case Kind.MISSING_TABLE if failure.is_ours:
            return JobError(f"The tables of the queue are missing in {where}. Create them with 'holdfast migrate'.")
        case Kind.MISSING_COLUMN if failure.is_ours:
            return JobError(f"The tables of the queue in {where} are older than it is. Run 'holdfast migrate'.")
        case Kind.CONSTRAINT if "held" in why:
            return JobError(
                "Another job of that topic holds the same unique key. Wait until it has ended, or cancel it."
            )
        case Kind.CONSTRAINT:
            return JobError(f"A rule of the queue's tables in {where} refused a change: {why}. Nothing was changed.")
        case Kind.TOO_LARGE:
            return JobError(f"{where} does not take so much at once: {why}.")
        case Kind.DENIED:
            return JobError(failure.sentence)
        case Kind.BROKEN if failure.was_sent:
            return _unanswered(failure)
        case kind if kind in PASSING:
            return Unavailable(failure.sentence)
    return JobError(f"The queue in {where} could not be used: {why}")


def _unanswered(failure: Failure) -> Ambiguous:
    return Ambiguous(f"The connection to {failure.where} broke before an answer came: {failure.why}")
