"""``/api/dlq``: dead letters, and what people do about them (sections 2 and 3 of the standard)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field

from ..core.errors import ConfigurationError, Conflict, JobError, MessageError, NotFoundError
from ..engines.queues.protocol import MissingQueueError
from ..records.dead_letters import DeadLetter, Decision, LetterStatus
from .access import Operator, Reader, WithServices, check_search, error_for, found, succeeded
from .envelope import Succeeded, Wire, described
from .errors import ApiError
from .openapi import answers
from .parameters import EnginePath, Expiry, LetterChange, LetterQuery, RowKeyPath
from .ports import Services
from .tokens import Caller, Role

router = APIRouter(prefix="/api/dlq", tags=["Dead letters"])

_LISTING = "dlq"
_PAYLOAD = ("original_message", "traceback")


class LetterItem(Wire):
    """A dead letter in a listing."""

    engine: str
    row_key: str
    instance_id: str
    original_queue: str
    error_message: str = Field(description="Without the values in it unless the token may see payloads.")
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
    application: str | None = Field(
        description="Of engines, the application that gave it up; only that one puts it back."
    )
    retried_as: str | None = Field(description="The message that it was put back as.")
    original_message: str = Field(default="", description="The message. Left out unless the token may see payloads.")
    traceback: str | None = Field(default=None, description="Left out unless the token may see payloads.")


class LetterPage(Wire):
    """Some dead letters: the last failure first in a database, by engine and row key in an Azure table."""

    items: list[LetterItem]
    continuation_token: str | None = Field(description="To go on with; null on the last page.")
    unreadable: tuple[str, ...] = Field(
        default=(), description="A sentence for each row of the page that cannot be read. Left out when there is none."
    )


class Retried(Wire):
    """What a dead letter was put back as."""

    engine: str
    row_key: str
    message_id: str = Field(description="The id of the message that is in the queue now.")


class Expired(Wire):
    """How many dead letters were given up on."""

    expired: int


@router.get("", summary="List dead letters", **answers(Succeeded[LetterPage], 400, query=LetterQuery, leaves_out=True))
def list_letters(
    query: Annotated[LetterQuery, Query()], request: Request, services: WithServices, caller: Reader
) -> Succeeded[LetterPage]:
    """List dead letters. Needs the role `read`; their errors come whole with the role `payload` only.

    In a database the last failure comes first; those in an Azure table come by engine and row key, before the others.
    """
    check_search(caller, query.error)
    page = services.signer.page(
        _LISTING, query.continuation_token, lambda after: services.letters.page(query.wanted(), query.limit, after)
    )
    items = [_item(letter, caller) for letter in page.items]
    unreadable: dict[str, Any] = {"unreadable": page.unreadable} if page.unreadable else {}
    answer = LetterPage(items=items, continuation_token=page.continuation_token, **unreadable)
    return succeeded(request, answer)


@router.get(
    "/{engine}/{rowKey}", summary="Get one dead letter", **answers(Succeeded[LetterDetails], 400, 404, leaves_out=True)
)
def get_letter(
    engine: EnginePath, row_key: RowKeyPath, request: Request, services: WithServices, caller: Reader
) -> Succeeded[LetterDetails]:
    """Show one dead letter. Needs the role `read`; message and traceback come with the role `payload` only."""
    return succeeded(request, _details(_found(services, engine, row_key), caller))


@router.patch(
    "/{engine}/{rowKey}",
    summary="Resolve, expire or reopen one dead letter",
    **answers(Succeeded[LetterDetails], 400, 404, 409, 413, 415, leaves_out=True),
)
def change_letter(
    engine: EnginePath,
    row_key: RowKeyPath,
    change: LetterChange,
    request: Request,
    services: WithServices,
    caller: Operator,
) -> Succeeded[LetterDetails]:
    """Settle a Pending dead letter by hand: nothing is run again. Needs the role `operate`; `force` needs `admin`.

    `Pending` reopens a settled one: it can be retried again, and retention leaves it alone; one that was put back needs
    `force`. While a retry of it is begun and not finished, to settle it is a 409. With `force` it is settled all the
    same: the retry's message may be in the queue, and is then executed.
    """
    if change.force and not caller.may(Role.ADMIN):
        raise ApiError(403, f"To overrule a retry that was begun needs a token with the role '{Role.ADMIN}'.", "force")
    letter = _found(services, engine, row_key)
    with _about(letter):
        status, notes = LetterStatus(change.status), change.resolution_notes
        decision = Decision(letter.engine, letter.row_key, status, notes, caller.name, change.force)
        settled = services.letters.decide(decision)
    return succeeded(request, _details(settled, caller))


@router.post(
    "/{engine}/{rowKey}/retry",
    summary="Put one dead letter back",
    **answers(Succeeded[Retried], 400, 404, 409, 413, 415),
)
def retry_letter(
    engine: EnginePath, row_key: RowKeyPath, request: Request, services: WithServices, caller: Operator
) -> Succeeded[Retried]:
    """Put a Pending dead letter back into its queue and resolve it as 'Retried'. Needs the role `operate`.

    A retry that was begun before and not finished is finished.
    """
    letter = _found(services, engine, row_key)
    with _about(letter):
        message_id = services.retry(letter, caller.name)
    return succeeded(request, Retried(engine=engine, row_key=row_key, message_id=message_id))


@router.post("/expire", summary="Expire old dead letters", **answers(Succeeded[Expired], 400, 413, 415))
def expire_letters(expiry: Expiry, request: Request, services: WithServices, caller: Operator) -> Succeeded[Expired]:
    """Give up on every Pending dead letter that failed longer ago. Needs the role `operate`."""
    expired = services.letters.expire(expiry.older_than_days, expiry.engine, actor=caller.name)
    return succeeded(request, Expired(expired=expired))


def _found(services: Services, engine: str, row_key: str) -> DeadLetter:
    return found(services.letters.get(engine, row_key), "dead letter", engine, row_key)


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


def _item(letter: DeadLetter, caller: Caller) -> LetterItem:
    return LetterItem(**{**described(LetterItem, letter), "error_message": error_for(caller, letter.error_message)})


def _details(letter: DeadLetter, caller: Caller) -> LetterDetails:
    details = described(LetterDetails, letter, without=() if caller.may(Role.PAYLOAD) else _PAYLOAD)
    return LetterDetails(**{**details, "error_message": error_for(caller, letter.error_message)})
