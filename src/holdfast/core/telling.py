"""Errors of users' code, in words that can be kept."""

from __future__ import annotations


def told(error: BaseException) -> str:
    """Return the kind of an error and what it says."""
    try:
        words = str(error)
    except Exception:  # an exception of the user's own may fail at this too
        words = "it cannot be shown"
    return f"{type(error).__name__}: {words}"


def first_line(text: str) -> str:
    """Return the first line: a driver's error goes on with the statement and its values."""
    return next(iter(text.strip().splitlines()), "")
