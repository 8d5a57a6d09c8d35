"""What fits into the columns of the records, checked alike on every database: SQLite would take any length."""

from __future__ import annotations

from ..core.errors import ConfigurationError
from ..core.key_text import key_problem, shown_key
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
    if problem := key_problem(value, most):
        raise ConfigurationError(
            f"The {name.replace('_', ' ')} {shown_key(value)} cannot be used for a record: {problem}."
        )
