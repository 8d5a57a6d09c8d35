"""Texts that come back exactly as they were given, although not every table takes every character.

PostgreSQL keeps no NUL, and no table keeps half of a surrogate pair. A message that has one is a poison message, and
must be kept all the more: it is written in base64 behind a mark. A text that begins with the mark itself is too, so
that the way back is never in doubt.
"""

from __future__ import annotations

import base64
import binascii

from ..core.errors import ConfigurationError
from ..core.key_text import is_plain
from ..core.redaction import without_secrets

LONGEST_NOTES = 100_000
_MARK = "holdfast:base64:"


def kept(text: str) -> str:
    """Return a text in a form that every table takes; ``given`` gives it back."""
    if is_plain(text) and not text.startswith(_MARK):
        return text
    return _MARK + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii")


def given(text: str) -> str:
    """Return the text that ``kept`` was given."""
    if not text.startswith(_MARK):
        return text
    try:
        return base64.b64decode(text.removeprefix(_MARK), validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return text  # not written by us


def legible(text: str) -> str:
    """Return a text for people, such as an error: without secrets, and as every table takes it."""
    return plain(without_secrets(text))


def legible_notes(notes: str) -> str:
    """Return what a person wrote down, as it is stored.

    Raises:
        ConfigurationError: it is too long; nothing of it is cut off.
    """
    if len(notes) > LONGEST_NOTES:
        raise ConfigurationError(
            f"Notes of {len(notes):,} characters are too long: {LONGEST_NOTES:,} is the most. Keep the rest elsewhere, "
            "and say here where."
        )
    return legible(notes)


def plain(text: str) -> str:
    """Return a text with a replacement for what not every table takes."""
    return text if is_plain(text) else text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
