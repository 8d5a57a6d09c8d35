"""What a database's answer, or the lack of one, means for the queue."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from sqlalchemy.engine import Engine

from ...core.errors import Ambiguous, DbError, JobError
from ...database.errors import ANSWERS_WHEN_PASSING, Answer, Failure, Kind, translating

_WORDS = {
    Kind.MISSING_TABLE: "The tables of the queue are missing in {where}. Create them with 'holdfast migrate'.",
    Kind.MISSING_COLUMN: "The tables of the queue in {where} are older than it is. Run 'holdfast migrate'.",
    Kind.CONSTRAINT: "A rule of the queue's tables in {where} refused a change: {why}. Nothing was changed.",
    Kind.TOO_LARGE: "{where} does not take so much at once: {why}.",
    Kind.DENIED: "{sentence}",
}
_ANSWERS: dict[Kind, Answer] = ANSWERS_WHEN_PASSING | {kind: (JobError, words) for kind, words in _WORDS.items()}


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
    return translating(engine, partial(_as_ours, is_commit))


def _as_ours(is_commit: bool, failure: Failure) -> DbError:
    if failure.kind is Kind.BROKEN and (is_commit or failure.was_sent):
        return Ambiguous(f"The connection to {failure.where} broke before an answer came: {failure.why}")
    if failure.kind is Kind.CONSTRAINT and "held" in failure.why:
        return JobError("Another job of that topic holds the same unique key. Wait until it has ended, or cancel it.")
    return failure.answered(_ANSWERS, (JobError, "The queue in {where} could not be used: {why}"))
