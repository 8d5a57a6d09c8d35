"""Who is let in: by token, or from this very machine when there are no tokens; and nothing that another site sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from ..core.bearer import is_loopback_host
from ..core.errors import ConfigurationError
from ..core.refused_callers import address_to_count
from .errors import ApiError
from .tokens import EVERY_ROLE, ApiTokens, Caller

LOOPBACK_CALLER = Caller("loopback", EVERY_ROLE)
CHANGING_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_OWN_SITE = ("same-origin", "none")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class Authentication:
    """Tells who sends a request.

    Args:
        tokens: those that are accepted.
        is_loopback: whether the server can be reached from this machine only. Then, and without tokens, who asks from
            this machine may do everything.

    Raises:
        ConfigurationError: there are no tokens, and the server can be reached from elsewhere.
    """

    def __init__(self, tokens: ApiTokens, is_loopback: bool) -> None:
        if not tokens and not is_loopback:
            raise ConfigurationError(
                "The HTTP API can be reached from other machines and has no tokens: anyone could read and change "
                "records. Pass tokens=ApiTokens.read(…), or is_loopback=True when it listens on 127.0.0.1 only."
            )
        self._tokens = tokens

    @property
    def refusal(self) -> ApiError:
        """Return the answer to someone who is not known."""
        if self._tokens:
            return ApiError.unauthorized("Send a bearer token that is accepted here in the header Authorization.")
        return ApiError.unauthorized(
            "This server has no tokens, so it answers its own machine only, without a proxy. Start it with tokens."
        )

    def caller(self, scope: Scope, headers: Headers) -> Caller | None:
        """Return who sends a request; None when that is not known."""
        if self._tokens:
            presented = headers.getlist("authorization")
            return self._tokens.caller(presented[0]) if len(presented) == 1 else None
        return LOOPBACK_CALLER if _is_from_this_machine(scope, headers) else None


def _is_from_this_machine(scope: Scope, headers: Headers) -> bool:
    """Return whether both ends are on this machine, with no proxy between and under no name of someone else's.

    A page that a browser here has open could otherwise reach us under its own name, pointed at this machine.
    """
    ends = (scope.get("client"), scope.get("server"))
    return (
        all(end is not None and is_loopback_host(str(end[0])) for end in ends)
        and is_loopback_host(_host_of(headers.get("host", "")))
        and not any(name in headers for name in _FORWARDED)
    )


def _host_of(authority: str) -> str:
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def address_of(scope: Mapping[str, Any]) -> str:
    """Return where a request comes from, to count by."""
    client = scope.get("client")
    return "unknown" if client is None else address_to_count(str(client[0]))


def check_origin(method: str, headers: Headers) -> None:
    """Let no page of another site change anything here through a visitor's browser.

    Raises:
        ApiError: 403, the request comes from such a page.
    """
    if method not in CHANGING_METHODS:
        return
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    is_foreign = site is not None and site not in _OWN_SITE
    if not is_foreign and origin is not None:
        is_foreign = _authority_of(origin) != headers.get("host", "").lower()
    if is_foreign:
        raise ApiError(403, "The request comes from another site, which may not change anything here.", "Origin")


def _authority_of(origin: str) -> str | None:
    """Return the host, and the port if it is named, of an origin; None when it is none."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") and parts.netloc else None
