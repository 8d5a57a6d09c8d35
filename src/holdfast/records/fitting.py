"""What fits into the columns of the records, checked alike on every database: SQLite would take any length."""

from __future__ import annotations

from ..core.errors import ConfigurationError
from .exact import is_plain
from .schema import ENGINE_LENGTH, ID_LENGTH


def check_fits(engine: str, **identifiers: str | None) -> None:
    """Check an engine's name and the ids of an entry.

    Raises:
        ConfigurationError: one is empty, too long, or has a NUL or half a surrogate pair; nothing was written.
    """
    _check("engine", engine, ENGINE_LENGTH)
    for name, value in identifiers.items():
        if value is not None:
            _check(name, value, ID_LENGTH)


def _check(name: str, value: str, most: int) -> None:
    shown = name.replace("_", " ")
    if not value:
        raise ConfigurationError(f"The {shown} of a record is empty. Name it.")
    if not is_plain(value):
        raise ConfigurationError(
            f"The {shown} {value[:40]!r} has a character that not every table takes. Leave it out."
        )
    if len(value) > most:
        raise ConfigurationError(
            f"The {shown} '{value[:40]}…' has {len(value)} characters: at most {most} can be kept. Use a shorter one."
        )
