"""What a source without a sound horizon misses, in words: a lookback promises its window and nothing more."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy.types import Float, Integer, Numeric

from .inspection import CursorFacts


def missed_rows(horizon: str, lookback: timedelta | float | None, limit: int, facts: CursorFacts | None) -> str | None:
    """Return which rows are missed; None where a sound horizon says that none is."""
    if horizon != "none":
        return None
    if lookback is None:
        return "a row that commits late can be missed"
    return (
        f"a row that commits {_window(lookback, facts)} is missed, and one that comes after {limit:,} others of its "
        "window (lookback_limit)"
    )


def _window(lookback: timedelta | float, facts: CursorFacts | None) -> str:
    if isinstance(lookback, timedelta) or (facts is not None and not _counts(facts)):
        seconds = lookback.total_seconds() if isinstance(lookback, timedelta) else lookback
        return f"more than {seconds:g} s late"
    unit = "" if facts is not None else ", or seconds,"
    return f"more than {lookback:g}{unit} behind the newest"


def _counts(facts: CursorFacts) -> bool:
    """Return whether the cursor is a number and no time: its lookback is an amount."""
    return isinstance(facts.type, (Integer, Numeric, Float)) and not facts.is_time
