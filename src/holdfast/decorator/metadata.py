"""What a decorated handler says about itself, for tools that look at it without importing this package.

The attribute and its shape are a convention shared by several Azure Functions packages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..core.config import safe_url
from ..core.errors import ConfigurationError

_REFERENCE = re.compile(r"%\w+%")
METADATA_ATTRIBUTE = "_azure_functions_metadata"
NAMESPACE = "db"
VERSION = 1


def add_metadata(
    function: Callable[..., Any],
    *,
    binding: dict[str, Any] | None = None,
    injection: dict[str, Any] | None = None,
) -> None:
    """Add a binding or an injection to what the function says about itself; other namespaces are kept."""
    found = getattr(function, METADATA_ATTRIBUTE, None)
    namespaces: dict[str, Any] = dict(found) if isinstance(found, dict) else {}
    ours = namespaces.get(NAMESPACE) or {}
    namespaces[NAMESPACE] = {
        "version": VERSION,
        "bindings": [*ours.get("bindings", []), *([binding] if binding else [])],
        "injections": [*ours.get("injections", []), *([injection] if injection else [])],
    }
    setattr(function, METADATA_ATTRIBUTE, namespaces)


def shown_url(url: str | None) -> str | None:
    """Return how a database is named in metadata: a reference such as ``%DB_URL%`` as it is, a URL without secrets.

    Raises:
        ConfigurationError: it is not a URL, and no environment variable can make it one.
    """
    if url is None:
        return None
    references = _REFERENCE.findall(url)
    if url in references:
        return url
    try:
        return safe_url(url)
    except ConfigurationError:
        if not references:
            raise
        return "…".join(references)  # what is between them may be a password


def get_db_metadata(func: Any) -> dict[str, Any] | None:
    """Return what ``DbBindings`` decorators recorded on a handler, or None when there is nothing."""
    found = getattr(func, METADATA_ATTRIBUTE, None)
    ours = found.get(NAMESPACE) if isinstance(found, dict) else None
    return dict(ours) if isinstance(ours, dict) else None
