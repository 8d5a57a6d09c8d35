"""``/api/audit``: who changed what by hand, and when."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from ..records import audit
from ..records.audit import AuditRow
from ..records.paging import DEFAULT_LIMIT, MAX_LIMIT
from .access import Reader, WithServices, succeeded
from .envelope import Succeeded, Wire, described
from .openapi import answers
from .parameters import whole_number
from .tokens import Caller, Role

router = APIRouter(prefix="/api/audit", tags=["Audit"])

_LISTING = "audit"
_PAYLOAD = ("details",)
_Text = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00]+$")]
_Token = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class AuditQuery(BaseModel):
    """Which changes are wanted."""

    model_config = ConfigDict(alias_generator=to_camel)

    action: _Text | None = Field(None, description="Only of this kind, such as `dlq resolve`.")
    target: _Text | None = Field(None, description="Only of this thing.")
    limit: Annotated[int, BeforeValidator(whole_number)] = Field(
        DEFAULT_LIMIT, ge=1, le=MAX_LIMIT, description="How many at most."
    )
    continuation_token: _Token | None = Field(None, description="Go on behind the page that ended with it.")


class AuditItem(Wire):
    """One change made by hand."""

    id: int
    at_utc: datetime
    actor: str
    action: str
    target: str
    details: dict[str, Any] | None = Field(default=None, description="Left out unless the token may see payloads.")


class AuditPage(Wire):
    """Some changes, the newest first."""

    items: list[AuditItem]
    continuation_token: str | None = Field(description="To go on with; null on the last page.")


@router.get(
    "",
    summary="List changes made by hand",
    **answers(Succeeded[AuditPage], 400, query=AuditQuery, leaves_out=True),
)
def list_audit(
    query: Annotated[AuditQuery, Query()], request: Request, services: WithServices, caller: Reader
) -> Succeeded[AuditPage]:
    """List changes made by hand, the newest first. Needs the role `read`; details come with `payload` only."""
    page = services.signer.page(
        _LISTING,
        query.continuation_token,
        lambda after: audit.page(
            services.database, action=query.action, target=query.target, limit=query.limit, after=after
        ),
    )
    items = [_item(row, caller) for row in page.items]
    return succeeded(request, AuditPage(items=items, continuation_token=page.continuation_token))


def _item(row: AuditRow, caller: Caller) -> AuditItem:
    return AuditItem(**described(AuditItem, row, without=() if caller.may(Role.PAYLOAD) else _PAYLOAD))
