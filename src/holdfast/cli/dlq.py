"""``holdfast dlq``: dead letters, and what people do about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from ..app import Holdfast
from ..core.errors import ConfigurationError, DbError, NotFoundError, UnfinishedRetry
from ..core.types import JsonObject
from ..records.audit import present_user
from ..records.database import reading
from ..records.dead_letters import DeadLetter, Decision, LetterFilter, LetterStatus
from ..records.times import database_now
from .confirmation import YesOption, confirm, conflicts_refused, refused
from .filters import (
    DEFAULT_LIMIT,
    AfterOption,
    CorrelationOption,
    EngineArgument,
    EngineOption,
    ErrorOption,
    FromOption,
    InstanceOption,
    LimitOption,
    OlderThanOption,
    RowKeyArgument,
    ToOption,
    status_option,
)
from .options import AppOption, JsonOption, argument, group, option
from .output import print_answer, print_note
from .records import (
    app_with_tables,
    counted,
    described_fields,
    described_in_listing,
    print_one,
    print_page,
    shown_error,
    shown_moment,
)

dlq_app = group("See dead letters and deal with them.")

_COLUMNS = ("last failure", "engine", "status", "attempts", "correlation id", "row key", "error")
LETTER_PAYLOAD = ("original_message", "traceback")

_StatusOption = Annotated[LetterStatus | None, status_option(LetterStatus)]
_OneEngineArgument = Annotated[str | None, argument(metavar="ENGINE", help="One letter: its engine…")]
_OneRowKeyArgument = Annotated[str | None, argument(metavar="ROWKEY", help="…and its row key.")]
_NotesOption = Annotated[str, option("--notes", metavar="TEXT", help="What was done about it.")]

_ReopenForceOption = Annotated[
    bool, typer.Option("--force", help="Although it was put back: its message is lost, or may run twice.")
]
_ForceOption = Annotated[
    bool, typer.Option("--force", help="Although a retry of it was begun that can never be finished.")
]


@dlq_app.command("list")
def list_letters(
    app: AppOption = None,
    engine: EngineOption = None,
    status: _StatusOption = None,
    instance_id: InstanceOption = None,
    correlation_id: CorrelationOption = None,
    error: ErrorOption = None,
    since: FromOption = None,
    until: ToOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    after: AfterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, the last failure first; by engine and key in Azure. Messages: see 'dlq show'."""
    hf = app_with_tables(app)
    wanted = LetterFilter(
        engine=engine,
        status=status,
        instance_id=instance_id,
        correlation_id=correlation_id,
        error=error,
        since=since,
        until=until,
    )
    page = hf.dead_letters.page(wanted, limit, after)
    print_page(page, _COLUMNS, _row, described_letter, nothing="No dead letter fits.", as_json=as_json)


@dlq_app.command("show")
def show(engine: EngineArgument, row_key: RowKeyArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show one dead letter, with the message that could not be processed."""
    letter = _found(app_with_tables(app), engine, row_key)
    described = described_fields(letter, without=("traceback",))
    print_one({**described, "traceback": letter.traceback}, as_json)


@dlq_app.command("retry")
def retry(
    engine: _OneEngineArgument = None,
    row_key: _OneRowKeyArgument = None,
    app: AppOption = None,
    of_engine: EngineOption = None,
    instance_id: InstanceOption = None,
    correlation_id: CorrelationOption = None,
    error: ErrorOption = None,
    older_than: OlderThanOption = None,
    since: FromOption = None,
    until: ToOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put the item of one dead letter back where it came from, or of every Pending one that the options choose."""
    wanted = LetterFilter(
        engine=of_engine,
        status=LetterStatus.PENDING,
        instance_id=instance_id,
        correlation_id=correlation_id,
        error=error,
        since=since,
        until=until,
    )
    is_bulk = wanted != LetterFilter(status=LetterStatus.PENDING) or older_than is not None
    if (engine is None) != (row_key is None) or (engine is not None) == is_bulk:
        raise typer.BadParameter("name one letter by ENGINE and ROWKEY, or choose several by options such as --engine")
    hf = app_with_tables(app)
    if engine is not None and row_key is not None:
        _retry_one(hf, engine, row_key, as_json)
        return
    if older_than is not None:
        with reading(hf.database) as connection:
            before = database_now(connection) - older_than
        wanted = replace(wanted, until=before if until is None else min(before, until))
    _retry_several(hf, wanted, yes, as_json)


@dlq_app.command("resolve")
def resolve(
    engine: EngineArgument,
    row_key: RowKeyArgument,
    notes: _NotesOption,
    app: AppOption = None,
    force: _ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Mark a Pending dead letter as dealt with. Nothing is run again."""
    letter = _decided(app, Decision(engine, row_key, LetterStatus.RESOLVED, notes, present_user(), force))
    print_answer(
        described_letter(letter), as_json, f"Resolved: {engine} {row_key}, noted as '{notes}' by {letter.resolved_by}."
    )


@dlq_app.command("reopen")
def reopen(
    engine: EngineArgument,
    row_key: RowKeyArgument,
    notes: _NotesOption,
    app: AppOption = None,
    force: _ReopenForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a Resolved or Expired dead letter Pending again. Nothing is run; retention leaves it alone."""
    letter = _decided(app, Decision(engine, row_key, LetterStatus.PENDING, notes, present_user(), force))
    print_answer(described_letter(letter), as_json, f"Pending again: {engine} {row_key}.")


@dlq_app.command("expire")
def expire(
    older_than: OlderThanOption = None,
    app: AppOption = None,
    engine: EngineOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Give up on Pending dead letters that failed long ago. Nothing is run again; retention forgets them later."""
    if older_than is None:
        raise typer.BadParameter("say from which age on, such as --older-than 90d")
    hf = app_with_tables(app)
    letters = hf.dead_letters
    with reading(hf.database) as connection:
        until = database_now(connection) - older_than
    count = letters.count(LetterFilter(engine=engine, status=LetterStatus.PENDING, until=until))
    if count != 0:
        _confirm_several("would expire", count, engine, yes)
    expired = letters.expire(older_than.total_seconds() / 86400, engine, actor=present_user()) if count != 0 else 0
    print_answer({"engine": engine, "expired": expired}, as_json, f"{counted(expired, 'dead letter')} expired.")


def _decided(app: str | None, decision: Decision) -> DeadLetter:
    hf = app_with_tables(app)
    try:
        with conflicts_refused():
            return hf.dead_letters.decide(decision)
    except NotFoundError:
        raise _unknown(decision.engine, decision.row_key) from None


def _retry_one(hf: Holdfast, engine: str, row_key: str, as_json: bool) -> None:
    letter = _found(hf, engine, row_key)
    with conflicts_refused():
        retried_as = hf.redrive.retry(letter, present_user())
    print_answer(
        {"engine": engine, "row_key": row_key, "retried_as": retried_as},
        as_json,
        f"Put back: {retried_as} into '{letter.original_queue}'.",
    )


def _retry_several(hf: Holdfast, wanted: LetterFilter, yes: bool, as_json: bool) -> None:
    count = hf.dead_letters.count(wanted)
    if count != 0:
        _confirm_several("would be put back", count, wanted.engine, yes)
    retried, refusals = 0, list[str]()
    try:
        for batch in hf.redrive.retry_all(wanted, present_user()) if count != 0 else ():
            retried += batch.count
            refusals += batch.refusals
    except DbError as error:
        others = "one was begun, the others" if isinstance(error, UnfinishedRetry) else "the others"
        print_note(f"{counted(retried, 'dead letter')} had been put back by then; {others} are as they were.")
        raise
    print_answer({"retried": retried, "refused": refusals}, as_json, f"{counted(retried, 'dead letter')} put back.")
    if refusals:
        raise refused(f"{counted(len(refusals), 'dead letter')} not put back, and left as before. {refusals[0]}")


def _confirm_several(effect: str, count: int | None, engine: str | None, yes: bool) -> None:
    """Ask before several letters are changed. How many is None where the table would have to read them all."""
    sentence = "All Pending dead letters that fit" if count is None else counted(count, "Pending dead letter")
    if engine is not None:
        word, what = engine, "the engine's name"
    else:
        word, what = ("all", "the word") if count is None else (str(count), "how many")
    confirm(f"{sentence} {effect}.", word=word, what=what, yes=yes)


def _found(hf: Holdfast, engine: str, row_key: str) -> DeadLetter:
    letter = hf.dead_letters.get(engine, row_key)
    if letter is None:
        raise _unknown(engine, row_key)
    return letter


def _unknown(engine: str, row_key: str) -> ConfigurationError:
    return ConfigurationError(
        f"There is no dead letter '{row_key}' of engine '{engine}'; nothing was changed. Look with 'holdfast dlq list'."
    )


def described_letter(letter: DeadLetter) -> JsonObject:
    """Return a letter as JSON, without the message it holds."""
    return described_in_listing(letter, LETTER_PAYLOAD)


def _row(letter: DeadLetter) -> tuple[str, ...]:
    return (
        shown_moment(letter.last_failure_at),
        letter.engine,
        letter.status.value,
        str(letter.dequeue_count),
        letter.correlation_id,
        letter.row_key,
        shown_error(letter.error_message),
    )
