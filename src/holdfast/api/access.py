"""What endpoints ask for: the desk to work at, and a caller with a role."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import Depends, Request, Security
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase

from .envelope import Succeeded
from .errors import ApiError
from .gate import exchange_of
from .ports import Desk
from .tokens import Caller, Role

_Data = TypeVar("_Data")


class Needs(SecurityBase):
    """Lets callers with a role through, and is named in the OpenAPI document as what a request needs."""

    def __init__(self, role: Role) -> None:
        self.model = HTTPBearer(description="A token with the role that the operation names.")
        self.scheme_name = "bearer"
        self._role = role

    async def __call__(self, request: Request) -> Caller:
        """Return the caller.

        Raises:
            ApiError: 403, the caller does not have the role.
        """
        caller = exchange_of(request).caller
        if caller is None or not caller.may(self._role):
            raise ApiError(403, f"This needs a token with the role '{self._role}'.")
        return caller


def _desk_of(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


async def _desk(request: Request) -> Desk:  # async, so that no thread is started for it
    return _desk_of(request)


AtDesk = Annotated[Desk, Depends(_desk)]
Reader = Annotated[Caller, Security(Needs(Role.READ))]
Operator = Annotated[Caller, Security(Needs(Role.OPERATE))]
Admin = Annotated[Caller, Security(Needs(Role.ADMIN))]


def succeeded(request: Request, data: _Data) -> Succeeded[_Data]:
    """Return the answer to a request that was done."""
    desk = _desk_of(request)
    return Succeeded(
        status="Succeeded",
        correlation_id=exchange_of(request).correlation_id,
        timestamp=desk.clock.now(),
        data=data,
    )
