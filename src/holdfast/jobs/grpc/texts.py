"""Text that comes in from outside: whether it is JSON."""

from __future__ import annotations

from ...core.errors import PayloadError
from ...core.strict_json import strictly_loaded


def checked_json(what: str, text: str, *, most_bytes: int) -> object:
    """Return what a JSON text stands for.

    Raises:
        PayloadError: it is not JSON, or longer than ``most_bytes``.
    """
    size = len(text.encode())
    if size > most_bytes:
        raise PayloadError(
            f"{what} has {size:,} bytes, and {most_bytes:,} are the most. Store it elsewhere and pass where it is."
        )
    try:
        return strictly_loaded(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{what} is not JSON: {error}.") from error
