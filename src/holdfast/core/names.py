"""Names that become part of a storage path: what is allowed, and a sentence when it is not."""

from __future__ import annotations

import hashlib
import os
import re

from .errors import ConfigurationError

_ALLOWED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")


def checked_name(kind: str, name: object) -> str:
    """Return ``name`` when it can safely be one segment of a path.

    Raises:
        ConfigurationError: it is empty, too long, or holds ``/``, ``..`` or another unsafe character.
    """
    if isinstance(name, str) and _ALLOWED.fullmatch(name) and ".." not in name:
        return name
    raise ConfigurationError(
        f"{kind} {name!r} cannot be used: it becomes part of a storage path, so use 1 to 128 letters, digits, "
        "'_', '-' or single '.', not starting with '-' or '.'."
    )


def shortened(name: str, most: int) -> str:
    """Return a name of ``most`` characters at most, and never what another one becomes."""
    if len(name) <= most:
        return name
    return f"{name[: most - 17]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def default_app_name() -> str:
    """Return the Functions site's name when there is one, else ``default``."""
    return os.environ.get("WEBSITE_SITE_NAME") or "default"
