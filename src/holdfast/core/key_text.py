"""Texts that rows are found by: what each of our databases can keep and compare, decided once for all of them.

PostgreSQL keeps no NUL, no database keeps half of a surrogate pair, and MariaDB's and MySQL's columns have a length, at
which some servers cut without a word. So whoever takes a key asks here first, whatever the database is.
"""

from __future__ import annotations

_LONGEST_SHOWN = 60


def is_plain(text: str) -> bool:
    """Return whether every table takes the text as it is."""
    try:
        return b"\x00" not in text.encode("utf-8")
    except UnicodeEncodeError:
        return False


def key_problem(key: object, longest: int) -> str | None:
    """Return why not every database can keep and find a key of at most ``longest`` characters; None when each can."""
    if not isinstance(key, str):
        return f"it must be text, not {type(key).__name__}"
    if not key:
        return "it is empty"
    if len(key) > longest:
        return f"it has {len(key)} characters, and {longest} are the most"
    if is_plain(key):
        return None
    return "it holds a NUL character" if "\x00" in key else "it holds half of a surrogate pair"


def shown_key(key: object) -> str:
    """Return a key, or a setting, as an error shows it: quoted, and not endless."""
    try:
        text = repr(key)
    except ValueError:  # Python shows no number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}…"
