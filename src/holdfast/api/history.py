"""``/api/history``: what happened (sections 4 and 5 of the standard)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from ..records.history import HistoryEntry, HistoryStatus
from .access import AtDesk, Reader, succeeded
from .continuation import tokens_of_this_filter
from .documented import refusals
from .envelope import Succeeded, Wire
from .errors import ApiError
from .parameters import EnginePath, HistoryQuery, RowKeyPath, only
from .tokens import Caller, Role

router = APIRouter(prefix="/api/history", tags=["History"])

_LISTING = "history"


class EntryItem(Wire):
    """An attempt that ended, in a listing."""

    engine: str
    row_key: str
    instance_id: str
    operation: str
    status: HistoryStatus
    duration_ms: int
    created_at_utc: datetime
    correlation_id: str


class EntryDetails(EntryItem):
    """An attempt that ended, with everything that is kept of it."""

    error: str | None
    item_id: str | None = Field(description="The item that it is about, such as `job-7`.")
    attempt: int | None = Field(description="Which try of the item it was.")
    input: str | None = Field(default=None, description="JSON. Left out unless the token may see payloads.")
    output: str | None = Field(default=None, description="JSON. Left out unless the token may see payloads.")


class EntryPage(Wire):
    """Some entries of the history: the newest first in a database, by engine and row key in an Azure table."""

    items: list[EntryItem]
    continuation_token: str | None = Field(description="To go on with; null on the last page.")


@router.get(
    "",
    summary="List history entries",
    response_model=Succeeded[EntryPage],
    responses=refusals(400),
    dependencies=[Depends(only(HistoryQuery))],
)
def list_entries(
    query: Annotated[HistoryQuery, Query()], request: Request, desk: AtDesk, _caller: Reader
) -> Succeeded[EntryPage]:
    """List attempts that ended. Needs the role `read`.

    In a database the newest comes first; those in an Azure table come by engine and row key, before the others.
    """
    after = desk.signer.checked(_LISTING, query.continuation_token)
    with tokens_of_this_filter():
        page = desk.entries.page(query.wanted(), query.limit, after)
    found = EntryPage(
        items=[EntryItem(**_fields(entry)) for entry in page.items],
        continuation_token=desk.signer.signed(_LISTING, page.continuation_token),
    )
    return succeeded(request, found)


@router.get(
    "/{engine}/{rowKey}",
    summary="Get one history entry",
    response_model=Succeeded[EntryDetails],
    response_model_exclude_unset=True,
    responses=refusals(400, 404),
    dependencies=[Depends(only())],
)
def get_entry(
    engine: EnginePath, row_key: RowKeyPath, request: Request, desk: AtDesk, caller: Reader
) -> Succeeded[EntryDetails]:
    """Show one attempt. Needs the role `read`; its input and output come with the role `payload` only."""
    entry = desk.entries.get(engine, row_key)
    if entry is None or entry.engine != engine:  # some databases take 'hmac ' for 'hmac'
        raise ApiError(404, f"There is no history entry '{row_key}' of engine '{engine}'.", f"{engine}/{row_key}")
    return succeeded(request, _details(entry, caller))


def _details(entry: HistoryEntry, caller: Caller) -> EntryDetails:
    payload: dict[str, Any] = {"input": entry.input, "output": entry.output} if caller.may(Role.PAYLOAD) else {}
    return EntryDetails(**_fields(entry), error=entry.error, item_id=entry.item_id, attempt=entry.attempt, **payload)


def _fields(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "engine": entry.engine,
        "row_key": entry.row_key,
        "instance_id": entry.instance_id,
        "operation": entry.operation,
        "status": entry.status,
        "duration_ms": entry.duration_ms,
        "created_at_utc": entry.created_at,
        "correlation_id": entry.correlation_id,
    }
