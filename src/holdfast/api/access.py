"""What endpoints ask for: the services to work at, and a caller with a role."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import Depends, Request, Security
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase

from ..core.redaction import public, shown
from ..records.dead_letters import DeadLetter
from ..records.history import HistoryEntry
from .envelope import Succeeded
from .errors import ApiError
from .middleware import exchange_of
from .ports import Services
from .tokens import Caller, Role

_Data = TypeVar("_Data")
_Record = TypeVar("_Record", DeadLetter, HistoryEntry)


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


def _services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _services(request: Request) -> Services:  # async, so that no thread is started for it
    return _services_of(request)


WithServices = Annotated[Services, Depends(_services)]
Reader = Annotated[Caller, Security(Needs(Role.READ))]
Operator = Annotated[Caller, Security(Needs(Role.OPERATE))]
Admin = Annotated[Caller, Security(Needs(Role.ADMIN))]


def error_for(caller: Caller, text: str) -> str:
    """Return an error as the caller may see it: whole, or without what may be personal data in it."""
    return shown(text) if caller.may(Role.PAYLOAD) else public(text)


def check_search(caller: Caller, error: str | None) -> None:
    """Let errors be searched only by those who may see them: the answer would tell what is in them.

    Raises:
        ApiError: 403, the caller may not see payloads.
    """
    if error is not None and not caller.may(Role.PAYLOAD):
        raise ApiError(403, f"To search in errors needs a token with the role '{Role.PAYLOAD}'.", "error")


def found(record: _Record | None, what: str, engine: str, row_key: str) -> _Record:
    """Return the record of exactly that name: some databases take 'hmac ' for 'hmac'.

    Raises:
        ApiError: 404, there is none.
    """
    if record is None or (record.engine, record.row_key) != (engine, row_key):
        raise ApiError(404, f"There is no {what} '{row_key}' of engine '{engine}'.", f"{engine}/{row_key}")
    return record


def succeeded(request: Request, data: _Data) -> Succeeded[_Data]:
    """Return the answer to a request that was done."""
    services = _services_of(request)
    return Succeeded(
        status="Succeeded",
        correlation_id=exchange_of(request).correlation_id,
        timestamp=services.clock.now(),
        data=data,
    )
