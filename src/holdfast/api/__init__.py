"""The HTTP API: dead letters and history for people and for other systems, as the standard of engine operations says.

``create_app`` makes an ASGI application: ``holdfast serve`` runs it, and so does any ASGI server, or Azure Functions.
"""

from __future__ import annotations

from ..core.errors import MissingDependencyError

try:
    import fastapi as _fastapi  # noqa: F401 - asked for here, so that the modules below need not
except ImportError as error:
    raise MissingDependencyError("The HTTP API needs FastAPI: run \"pip install 'holdfast[server]'\".") from error

from .app import create_app
from .rate_limit import RateLimit
from .tokens import ApiToken, ApiTokens, Role, new_token

__all__ = ["ApiToken", "ApiTokens", "RateLimit", "Role", "create_app", "new_token"]
