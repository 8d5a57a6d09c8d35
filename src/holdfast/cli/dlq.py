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
from ..records.dead_letters import DeadLetter, LetterFilter, LetterStatus
from ..records.times import database_now
from .exits import EXIT_CODES_HELP
from .filters import (
    DEFAULT_LIMIT,
    AfterOption,
    CorrelationOption,
    EngineOption,
    ErrorOption,
    FromOption,
    InstanceOption,
    LimitOption,
    OlderThanOption,
    ToOption,
    one_of,
)
from .guard import YesOption, confirm, conflicts_refused, refused
from .options import AppOption, JsonOption, help_when_alone
from .output import print_fields, print_json, print_line, print_note
from .records import app_with_tables, counted, described_fields, print_page, shown_fields, shown_moment, shown_text

dlq_app = typer.Typer(help="See dead letters and deal with them.", epilog=EXIT_CODES_HELP, invoke_without_command=True)

_COLUMNS = ("last failure", "engine", "status", "attempts", "correlation id", "row key", "error")
_PAYLOAD = ("original_message",)

_StatusOption = Annotated[
    LetterStatus | None,
    typer.Option(
        "--status",
        parser=one_of(LetterStatus),
        metavar="STATUS",
        help="Only these: Pending, Resolved, Expired or Unknown.",
        show_default=False,
    ),
]
_EngineArgument = Annotated[str, typer.Argument(metavar="ENGINE", help="Such as jobs:email.", show_default=False)]
_RowKeyArgument = Annotated[str, typer.Argument(metavar="ROWKEY", help="From a listing.", show_default=False)]
_OneEngineArgument = Annotated[
    str | None, typer.Argument(metavar="ENGINE", help="One letter: its engine…", show_default=False)
]
_OneRowKeyArgument = Annotated[
    str | None, typer.Argument(metavar="ROWKEY", help="…and its row key.", show_default=False)
]
_NotesOption = Annotated[
    str, typer.Option("--notes", metavar="TEXT", help="What was done about it.", show_default=False)
]

_ForceOption = Annotated[
    bool, typer.Option("--force", help="Although a retry of it was begun that can never be finished.")
]

dlq_app.callback()(help_when_alone)


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
def show(engine: _EngineArgument, row_key: _RowKeyArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show one dead letter, with the message that could not be processed."""
    letter = _found(app_with_tables(app), engine, row_key)
    described = described_fields(letter)
    if as_json:
        print_json(described)
    else:
        print_fields(shown_fields(described))


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
    engine: _EngineArgument,
    row_key: _RowKeyArgument,
    notes: _NotesOption,
    app: AppOption = None,
    force: _ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Mark a Pending dead letter as dealt with. Nothing is run again."""
    hf = app_with_tables(app)
    try:
        with conflicts_refused():
            letter = hf.dead_letters.resolve(engine, row_key, notes, present_user(), despite_retry=force)
    except NotFoundError:
        raise _unknown(engine, row_key) from None
    if as_json:
        print_json(described_letter(letter))
    else:
        print_line(f"Resolved: {engine} {row_key}, noted as '{notes}' by {letter.resolved_by}.")


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
    if as_json:
        print_json({"engine": engine, "expired": expired})
    else:
        print_line(f"{counted(expired, 'dead letter')} expired.")


def _retry_one(hf: Holdfast, engine: str, row_key: str, as_json: bool) -> None:
    letter = _found(hf, engine, row_key)
    with conflicts_refused():
        retried_as = hf.putting_back.retry(letter, present_user())
    if as_json:
        print_json({"engine": engine, "row_key": row_key, "retried_as": retried_as})
    else:
        print_line(f"Put back: {retried_as} into '{letter.original_queue}'.")


def _retry_several(hf: Holdfast, wanted: LetterFilter, yes: bool, as_json: bool) -> None:
    count = hf.dead_letters.count(wanted)
    if count != 0:
        _confirm_several("would be put back", count, wanted.engine, yes)
    retried, refusals = 0, list[str]()
    try:
        for batch in hf.putting_back.retry_all(wanted, present_user()) if count != 0 else ():
            retried += batch.count
            refusals += batch.refusals
    except DbError as error:
        others = "one was begun, the others" if isinstance(error, UnfinishedRetry) else "the others"
        print_note(f"{counted(retried, 'dead letter')} had been put back by then; {others} are as they were.")
        raise
    if as_json:
        print_json({"retried": retried, "refused": refusals})
    else:
        print_line(f"{counted(retried, 'dead letter')} put back.")
    if refusals:
        raise refused(f"{counted(len(refusals), 'dead letter')} not put back, and left as before. {refusals[0]}")


def _confirm_several(effect: str, count: int | None, engine: str | None, yes: bool) -> None:
    """Ask before several letters are changed. How many is None where the table would have to read them all to tell."""
    told = "All Pending dead letters that fit" if count is None else counted(count, "Pending dead letter")
    if engine is not None:
        word, what = engine, "the engine's name"
    else:
        word, what = ("all", "the word") if count is None else (str(count), "how many")
    confirm(f"{told} {effect}.", word=word, what=what, yes=yes)


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
    return described_fields(letter, without=_PAYLOAD)


def _row(letter: DeadLetter) -> tuple[str, ...]:
    return (
        shown_moment(letter.last_failure_at),
        letter.engine,
        letter.status.value,
        str(letter.dequeue_count),
        letter.correlation_id,
        letter.row_key,
        shown_text(letter.error_message),
    )
