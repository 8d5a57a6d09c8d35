"""``/api/history``: what happened (sections 4 and 5 of the standard)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field

from ..records.history import HistoryEntry, HistoryStatus
from .access import Reader, WithServices, check_search, error_for, found, succeeded
from .envelope import Succeeded, Wire, described
from .openapi import answers
from .parameters import EnginePath, HistoryQuery, RowKeyPath
from .tokens import Caller, Role

router = APIRouter(prefix="/api/history", tags=["History"])

_LISTING = "history"
_PAYLOAD = ("input", "output", "traceback")


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

    error: str | None = Field(description="Without the values in it unless the token may see payloads.")
    item_id: str | None = Field(description="The item that it is about, such as `job-7`.")
    attempt: int | None = Field(description="Which try of the item it was.")
    application: str | None = Field(description="Of engines, the application whose message it was.")
    worker: str | None = Field(description="Of jobs, the worker that had it: a remote one with its token's name.")
    input: str | None = Field(default=None, description="JSON. Left out unless the token may see payloads.")
    output: str | None = Field(default=None, description="JSON. Left out unless the token may see payloads.")
    traceback: str | None = Field(default=None, description="Left out unless the token may see payloads.")


class EntryPage(Wire):
    """Some entries of the history: the newest first in a database, by engine and row key in an Azure table."""

    items: list[EntryItem]
    continuation_token: str | None = Field(description="To go on with; null on the last page.")
    unreadable: tuple[str, ...] = Field(
        default=(), description="A sentence for each row of the page that cannot be read. Left out when there is none."
    )


@router.get(
    "", summary="List history entries", **answers(Succeeded[EntryPage], 400, query=HistoryQuery, leaves_out=True)
)
def list_entries(
    query: Annotated[HistoryQuery, Query()], request: Request, services: WithServices, caller: Reader
) -> Succeeded[EntryPage]:
    """List attempts that ended. Needs the role `read`.

    In a database the newest comes first; those in an Azure table come by engine and row key, before the others.
    """
    check_search(caller, query.error)
    page = services.signer.page(
        _LISTING, query.continuation_token, lambda after: services.entries.page(query.wanted(), query.limit, after)
    )
    items = [EntryItem(**described(EntryItem, entry)) for entry in page.items]
    unreadable: dict[str, Any] = {"unreadable": page.unreadable} if page.unreadable else {}
    answer = EntryPage(items=items, continuation_token=page.continuation_token, **unreadable)
    return succeeded(request, answer)


@router.get(
    "/{engine}/{rowKey}", summary="Get one history entry", **answers(Succeeded[EntryDetails], 400, 404, leaves_out=True)
)
def get_entry(
    engine: EnginePath, row_key: RowKeyPath, request: Request, services: WithServices, caller: Reader
) -> Succeeded[EntryDetails]:
    """Show one attempt. Needs the role `read`; input, output and traceback come with the role `payload` only."""
    entry = found(services.entries.get(engine, row_key), "history entry", engine, row_key)
    return succeeded(request, _details(entry, caller))


def _details(entry: HistoryEntry, caller: Caller) -> EntryDetails:
    details = described(EntryDetails, entry, without=() if caller.may(Role.PAYLOAD) else _PAYLOAD)
    return EntryDetails(**{**details, "error": None if entry.error is None else error_for(caller, entry.error)})
