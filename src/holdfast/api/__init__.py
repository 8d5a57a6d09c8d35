"""The HTTP API: dead letters and history for people and for other systems, as the standard of engine operations says.

``create_app`` makes an ASGI application: ``holdfast serve`` runs it, and so does any ASGI server, or Azure Functions.
"""

from __future__ import annotations

from ..core.extras import needed

with needed("The HTTP API needs FastAPI", "server"):
    import fastapi as _fastapi  # noqa: F401 - asked for here, so that the modules below need not

from .app import create_app
from .limits import RequestLimits
from .rate_limit import RateLimit
from .tokens import ApiToken, ApiTokens, Role, new_token

__all__ = ["ApiToken", "ApiTokens", "RateLimit", "RequestLimits", "Role", "create_app", "new_token"]
