"""Texts as every database takes them."""

from __future__ import annotations

_MOST_CHARACTERS = 20_000


def storable(text: str) -> str:
    """Return a text that every database takes: without NUL, without halves of surrogate pairs, and not endless."""
    return whole(text)[:_MOST_CHARACTERS]


def whole(text: str) -> str:
    """Return a text that every database takes, however long it is."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
