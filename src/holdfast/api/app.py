"""Putting the API together: the routers, the middleware around them, and how errors are answered."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from sqlalchemy import select
from starlette.exceptions import HTTPException
from starlette.routing import Match

from .._version import __version__
from ..core.clock import Clock, SystemClock
from ..core.errors import DbError
from ..records.database import reading
from . import audit, dlq, engines, history, registry
from .authentication import Authentication
from .continuation import Signer
from .envelope import EscapedJson, failed
from .errors import CODES, ApiError, from_ours, from_validation
from .health import Health
from .limits import RequestLimits
from .middleware import ApiMiddleware, exchange_of
from .openapi import completed
from .ports import Application, Services
from .rate_limit import Buckets, RateLimit
from .tokens import ApiTokens

logger = logging.getLogger("holdfast.api")

OPENAPI_PATH = "/api/openapi.json"
ROUTERS = (dlq.router, history.router, engines.router, registry.router, audit.router)
_USUAL_RATE = RateLimit()
_USUAL_LIMITS = RequestLimits()
_NO_TOKENS = ApiTokens()
_DESCRIPTION = (
    "Dead letters and history of every workload, engines and their registry. Every answer is an envelope: `status`, "
    "`correlationId`, `timestamp`, and `data` or `error`."
)


class _Api(FastAPI):
    """FastAPI, with an OpenAPI document that says what is answered."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        if self.openapi_schema is None:
            self.openapi_schema = completed(super().openapi())
        return self.openapi_schema


def create_app(
    hf: Application,
    *,
    tokens: ApiTokens = _NO_TOKENS,
    rate_limit: RateLimit | None = _USUAL_RATE,
    limits: RequestLimits = _USUAL_LIMITS,
    is_loopback: bool = False,
    continuation_key: str | None = None,
    clock: Clock | None = None,
) -> FastAPI:
    """Return the HTTP API of an application, to be run by an ASGI server. Nothing connects until something is asked.

    Args:
        hf: the application, such as a ``Holdfast``.
        tokens: the bearer tokens that are accepted.
        rate_limit: for each token, and for each address without one; None for no limit.
        limits: how long a request may take, and how many run at once.
        is_loopback: whether the server can be reached from this machine only. Then, and without tokens, whoever asks
            from this machine may do everything.
        continuation_key: a secret that all instances share, so that each can go on with the other's listings. Left
            out, a continuation token is good for the process that gave it out.
        clock: where the time comes from.

    Raises:
        ConfigurationError: there are no tokens and the server can be reached from elsewhere, or the key is too short.
    """
    clock = clock or SystemClock()
    api = _Api(
        title="Holdfast",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=OPENAPI_PATH,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        default_response_class=EscapedJson,
        exception_handlers={
            ApiError: _answer_refusal,
            DbError: _answer_error_of_ours,
            RequestValidationError: _answer_validation,
            HTTPException: _answer_framework,
        },
    )
    api.state.services = Services(application=hf, clock=clock, signer=Signer(continuation_key))
    buckets = None if rate_limit is None else Buckets(rate_limit, clock)
    health = Health(lambda: _ask(hf))
    api.add_middleware(
        ApiMiddleware,
        authentication=Authentication(tokens, is_loopback),
        buckets=buckets,
        limits=limits,
        health=health,
        clock=clock,
    )
    for router in ROUTERS:
        api.include_router(router)
    return api


def _ask(hf: Application) -> None:
    with reading(hf.database) as connection:
        connection.execute(select(1))


def _operation_id(route: APIRoute) -> str:
    return route.name


async def _answer_refusal(request: Request, error: ApiError) -> JSONResponse:
    return failed(error, exchange_of(request).correlation_id, request.app.state.services.clock.now())


async def _answer_error_of_ours(request: Request, error: DbError) -> JSONResponse:
    refusal = from_ours(error)
    if refusal.status >= 500:
        extra = {"correlation_id": exchange_of(request).correlation_id, "error_type": type(error).__name__}
        logger.error("A request could not be done: %s", error, extra=extra)
    return await _answer_refusal(request, refusal)


async def _answer_validation(request: Request, error: RequestValidationError) -> JSONResponse:
    return await _answer_refusal(request, from_validation(error.errors()))


async def _answer_framework(request: Request, error: HTTPException) -> JSONResponse:
    """Answer what the framework refuses: an unknown path, a method that is not there."""
    if error.status_code == 404:
        refusal = ApiError(404, "There is nothing at this path.", request.url.path)
    elif error.status_code == 405:
        headers = _allowed(request) or error.headers
        refusal = ApiError(405, f"{request.method} is not possible here.", request.url.path, headers=headers)
    elif error.status_code in CODES:
        refusal = ApiError(error.status_code, str(error.detail), headers=error.headers)
    else:
        refusal = ApiError.internal()
    return await _answer_refusal(request, refusal)


def _allowed(request: Request) -> dict[str, str]:
    """Return the methods of a path: the framework names those of one route, and a path can have several."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    fitting = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    found = {method for route in fitting for method in route.methods or ()}
    return {"Allow": ", ".join(sorted(found))} if found else {}
