"""Files that Holdfast creates are their owner's alone (0600), whatever the umask says; others keep their mode."""

from __future__ import annotations

import os
from contextlib import suppress

_OWNER_ONLY = 0o600


def private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file and return its descriptor: what creates files, also as ``open(..., opener=private)``.

    Raises:
        OSError: as ``os.open`` does.
    """
    return os.open(path, flags, _OWNER_ONLY)


def create_private(path: str | os.PathLike[str]) -> None:
    """Create an empty file unless there is one. Where that cannot be done, whoever opens it next says why."""
    with suppress(OSError):
        os.close(private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
