"""Texts as every database takes them."""

from __future__ import annotations

from ..records.storable_text import legible

_MOST_CHARACTERS = 20_000


def storable(text: str) -> str:
    """Return a text that every database takes: without NUL, without halves of surrogate pairs, and not endless."""
    return legible(text)[:_MOST_CHARACTERS]
