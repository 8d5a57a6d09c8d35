"""``/api/dlq``: dead letters, and what people do about them (sections 2 and 3 of the standard)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from ..core.errors import ConfigurationError, Conflict, JobError, MessageError, NotFoundError
from ..engines.queues.protocol import MissingQueueError
from ..records.dead_letters import DeadLetter, LetterStatus
from .access import AtDesk, Operator, Reader, succeeded
from .continuation import tokens_of_this_filter
from .documented import refusals
from .envelope import Succeeded, Wire
from .errors import ApiError
from .parameters import EnginePath, Expiry, LetterChange, LetterQuery, RowKeyPath, only
from .ports import Desk
from .tokens import Caller, Role

router = APIRouter(prefix="/api/dlq", tags=["Dead letters"])

_LISTING = "dlq"


class LetterItem(Wire):
    """A dead letter in a listing."""

    engine: str
    row_key: str
    instance_id: str
    original_queue: str
    error_message: str
    dequeue_count: int
    status: LetterStatus
    first_failure_at_utc: datetime
    last_failure_at_utc: datetime
    correlation_id: str


class LetterDetails(LetterItem):
    """A dead letter with everything that is kept of it."""

    resolution_notes: str | None
    resolved_at_utc: datetime | None
    resolved_by: str | None
    item_id: str | None = Field(description="The item that it is about, such as `job-7`.")
    retried_as: str | None = Field(description="The message that it was put back as.")
    original_message: str = Field(default="", description="The message. Left out unless the token may see payloads.")


class LetterPage(Wire):
    """Some dead letters: the last failure first in a database, by engine and row key in an Azure table."""

    items: list[LetterItem]
    continuation_token: str | None = Field(description="To go on with; null on the last page.")


class Retried(Wire):
    """What a dead letter was put back as."""

    engine: str
    row_key: str
    message_id: str = Field(description="The id of the message that is in the queue now.")


class Expired(Wire):
    """How many dead letters were given up on."""

    expired: int


@router.get(
    "",
    summary="List dead letters",
    response_model=Succeeded[LetterPage],
    responses=refusals(400),
    dependencies=[Depends(only(LetterQuery))],
)
def list_letters(
    query: Annotated[LetterQuery, Query()], request: Request, desk: AtDesk, _caller: Reader
) -> Succeeded[LetterPage]:
    """List dead letters. Needs the role `read`.

    In a database the last failure comes first; those in an Azure table come by engine and row key, before the others.
    """
    after = desk.signer.checked(_LISTING, query.continuation_token)
    with tokens_of_this_filter():
        page = desk.letters.page(query.wanted(), query.limit, after)
    found = LetterPage(
        items=[_item(letter) for letter in page.items],
        continuation_token=desk.signer.signed(_LISTING, page.continuation_token),
    )
    return succeeded(request, found)


@router.get(
    "/{engine}/{rowKey}",
    summary="Get one dead letter",
    response_model=Succeeded[LetterDetails],
    response_model_exclude_unset=True,
    responses=refusals(400, 404),
    dependencies=[Depends(only())],
)
def get_letter(
    engine: EnginePath, row_key: RowKeyPath, request: Request, desk: AtDesk, caller: Reader
) -> Succeeded[LetterDetails]:
    """Show one dead letter. Needs the role `read`; the message itself comes with the role `payload` only."""
    return succeeded(request, _details(_found(desk, engine, row_key), caller))


@router.patch(
    "/{engine}/{rowKey}",
    summary="Resolve or expire one dead letter",
    response_model=Succeeded[LetterDetails],
    response_model_exclude_unset=True,
    responses=refusals(400, 404, 409, 413, 415),
    dependencies=[Depends(only())],
)
def change_letter(
    engine: EnginePath, row_key: RowKeyPath, change: LetterChange, request: Request, desk: AtDesk, caller: Operator
) -> Succeeded[LetterDetails]:
    """Settle a Pending dead letter by hand: nothing is run again. Needs the role `operate`; `force` needs `admin`.

    While a retry of it is begun and not finished that is a 409. With `force` it is settled all the same: the retry's
    message may be in the queue, and is then executed.
    """
    if change.force and not caller.may(Role.ADMIN):
        raise ApiError(403, f"To overrule a retry that was begun needs a token with the role '{Role.ADMIN}'.", "force")
    letter = _found(desk, engine, row_key)
    with _about(letter):
        settle = desk.letters.resolve if change.status == "Resolved" else desk.letters.expire_one
        notes = change.resolution_notes
        settled = settle(letter.engine, letter.row_key, notes, caller.name, despite_retry=change.force)
    return succeeded(request, _details(settled, caller))


@router.post(
    "/{engine}/{rowKey}/retry",
    summary="Put one dead letter back",
    response_model=Succeeded[Retried],
    responses=refusals(400, 404, 409, 413, 415),
    dependencies=[Depends(only())],
)
def retry_letter(
    engine: EnginePath, row_key: RowKeyPath, request: Request, desk: AtDesk, caller: Operator
) -> Succeeded[Retried]:
    """Put a Pending dead letter back into its queue and resolve it as 'Retried'. Needs the role `operate`.

    A retry that was begun before and not finished is finished.
    """
    letter = _found(desk, engine, row_key)
    with _about(letter):
        message_id = desk.retry(letter, caller.name)
    return succeeded(request, Retried(engine=engine, row_key=row_key, message_id=message_id))


@router.post(
    "/expire",
    summary="Expire old dead letters",
    response_model=Succeeded[Expired],
    responses=refusals(400, 413, 415),
    dependencies=[Depends(only())],
)
def expire_letters(expiry: Expiry, request: Request, desk: AtDesk, caller: Operator) -> Succeeded[Expired]:
    """Give up on every Pending dead letter that failed longer ago. Needs the role `operate`."""
    expired = desk.letters.expire(expiry.older_than_days, expiry.engine, actor=caller.name)
    return succeeded(request, Expired(expired=expired))


def _found(desk: Desk, engine: str, row_key: str) -> DeadLetter:
    """Return the letter of exactly that name: some databases take 'hmac ' for 'hmac'.

    Raises:
        ApiError: 404, there is none.
    """
    letter = desk.letters.get(engine, row_key)
    if letter is None or (letter.engine, letter.row_key) != (engine, row_key):
        raise ApiError(404, f"There is no dead letter '{row_key}' of engine '{engine}'.", f"{engine}/{row_key}")
    return letter


@contextmanager
def _about(letter: DeadLetter) -> Iterator[None]:
    """Answer a change that cannot be made as things are with a refusal that names the letter; nothing was changed.

    Raises:
        ApiError: 404, the letter is gone; 409, it is in no state for that, or there is nowhere to put it; 413, its
            message is too large to be put back.
    """
    name = f"{letter.engine}/{letter.row_key}"
    try:
        yield
    except NotFoundError as error:
        raise ApiError(404, str(error), name) from error
    except MissingQueueError as error:
        raise ApiError(409, f"{error} Nothing was changed.", name) from error
    except MessageError as error:
        raise ApiError(413, str(error), name) from error
    except (ConfigurationError, Conflict, JobError) as error:
        if isinstance(error, ConfigurationError) and error.__cause__ is not None:  # not the letter: the database
            raise
        raise ApiError(409, str(error), name) from error


def _item(letter: DeadLetter) -> LetterItem:
    return LetterItem(**_fields(letter))


def _details(letter: DeadLetter, caller: Caller) -> LetterDetails:
    payload: dict[str, Any] = {"original_message": letter.original_message} if caller.may(Role.PAYLOAD) else {}
    return LetterDetails(
        **_fields(letter),
        resolution_notes=letter.resolution_notes,
        resolved_at_utc=letter.resolved_at,
        resolved_by=letter.resolved_by,
        item_id=letter.item_id,
        retried_as=letter.retried_as,
        **payload,
    )


def _fields(letter: DeadLetter) -> dict[str, Any]:
    return {
        "engine": letter.engine,
        "row_key": letter.row_key,
        "instance_id": letter.instance_id,
        "original_queue": letter.original_queue,
        "error_message": letter.error_message,
        "dequeue_count": letter.dequeue_count,
        "status": letter.status,
        "first_failure_at_utc": letter.first_failure_at,
        "last_failure_at_utc": letter.last_failure_at,
        "correlation_id": letter.correlation_id,
    }
