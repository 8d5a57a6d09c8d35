"""Re-reading a window behind the newest row, where no horizon is sound. Pure: what to read, what to drop, what to keep.

Each pass starts ``lookback`` behind the row that was the newest when the pass before it began: whatever was written
since then, and was not further behind than the window, is found. A pass drops what was delivered before, and ends after
about as many new rows as there are in the window, so that under a steady load the next one begins. What was delivered
is remembered in the checkpoint, at most ``limit`` rows of it: when more fall into the window, the window gets shorter
(and the source says so), because remembering too little would deliver the same rows again on every pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from ...core.cursor import KeysetCursor, parse_cursor
from ...core.errors import SerializationError, SourceConfigurationError
from ...core.types import JsonObject
from ...core.values import from_json, to_json, to_text
from .text_times import in_layout_of

_HASH_DIGITS = 16
_SHORTEST_PASS = 1000
_DATE_LENGTH = len("2026-01-31")


@dataclass(frozen=True, slots=True)
class Window:
    """Where a lookback trigger stands: the newest row, what was delivered near it, and how far this pass has read.

    ``base`` is the cursor value of the row that was the newest when the present pass (or, between passes, the last one)
    began; ``room`` is how many more rows the present pass may deliver.
    """

    newest: KeysetCursor | None = None
    position: KeysetCursor | None = None
    delivered: dict[str, object] = field(default_factory=dict)
    shortened_to: KeysetCursor | None = None
    base: Any = None
    room: int = 0

    def start_of_pass(self, lookback: timedelta | float) -> KeysetCursor | None:
        """Return where a new pass starts: at a value (no keys), behind a row (with keys), or None: at the beginning."""
        if self.base is None:
            return None
        start: Any = shifted_back(self.base, lookback)
        if self.shortened_to is not None and _order(self.shortened_to) > (start, ()):
            return self.shortened_to
        return KeysetCursor(start, ())

    def is_new(self, row: KeysetCursor) -> bool:
        """Return whether the row was not delivered yet."""
        return identity(row) not in self.delivered

    def after(
        self,
        rows: Sequence[KeysetCursor],
        position: KeysetCursor | None,
        lookback: timedelta | float,
        limit: int,
    ) -> Window:
        """Return the window once ``rows`` were delivered and the pass has read up to ``position``."""
        base, room = self.base, self.room
        if self.position is None:
            base = rows[0].value if self.newest is None else self.newest.value
            room = min(max(len(self.delivered), _SHORTEST_PASS), limit // 2)
        room -= len(rows)
        newest = max([*rows, *([self.newest] if self.newest else [])], key=_order)
        delivered = {**self.delivered, **{identity(row): row.value for row in rows}}
        moved = replace(self, newest=newest, delivered=delivered, base=base, room=room)
        moved = replace(moved, position=position if room > 0 else None)
        return _bounded(moved, newest, moved.start_of_pass(lookback), limit)


def _order(row: KeysetCursor) -> tuple[Any, tuple[Any, ...]]:
    return row.value, row.key_values


def _bounded(window: Window, newest: KeysetCursor, start: KeysetCursor | None, limit: int) -> Window:
    """Return the window with at most ``limit`` delivered rows kept: those that this pass or the next will meet again.

    Where one cursor value alone has more, reading goes on behind the newest row: nothing before it is read again. A
    pass that is behind what is kept ends, because it would take the others for new.
    """
    edges: list[Any] = [row.value for row in (start, window.position) if row is not None]
    remembered: dict[str, Any] = window.delivered
    kept = {key: value for key, value in remembered.items() if not edges or value >= min(edges)}
    if len(kept) <= limit:
        return replace(window, delivered=kept)
    values = sorted(kept.values())
    cut = values[len(values) - limit - 1]
    newer = {key: value for key, value in kept.items() if value > cut}
    shortened_to = KeysetCursor(min(newer.values()), ()) if newer else newest
    position = window.position
    if position is not None and _order(position) < _order(shortened_to):
        position = None
    return replace(window, delivered=newer, shortened_to=shortened_to, position=position)


def identity(row: KeysetCursor) -> str:
    """Return a short hash of a row's cursor and keys."""
    parts = [*to_text(row.value)]
    for _, key in row.keys:
        parts.extend(to_text(key))
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:_HASH_DIGITS]


def shifted_back(value: Any, lookback: timedelta | float) -> Any:
    """Return ``value`` moved back: times by a duration, numbers by an amount, SQLite's time texts in their own format.

    Raises:
        SourceConfigurationError: the value is neither a time nor a number.
    """
    duration = lookback if isinstance(lookback, timedelta) else timedelta(seconds=lookback)
    if isinstance(value, str):
        return _shifted_text(value, duration)
    if isinstance(value, (date, timedelta)):  # a datetime is a date too
        return _shifted_time(value, duration)
    is_number = isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
    if is_number and not isinstance(lookback, timedelta):
        return value - type(value)(lookback)
    raise SourceConfigurationError(
        f"lookback={lookback!r} does not fit a cursor of type {type(value).__name__}: a time column takes seconds or a "
        "timedelta, a number column takes a number."
    )


def _shifted_time(value: Any, back: timedelta) -> Any:
    if type(value) is date:
        back = max(back, timedelta(days=1))
    try:
        return value - back
    except OverflowError:  # there is nothing earlier than the first day
        first = type(value).min
        return first.replace(tzinfo=value.tzinfo) if isinstance(value, datetime) else first


def _shifted_text(value: str, back: timedelta) -> str:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise SourceConfigurationError(
            f"lookback needs a time or a number, but the cursor is the text {value!r}."
        ) from error
    if len(value) <= _DATE_LENGTH:
        return str(_shifted_time(moment.date(), back))
    return in_layout_of(value, _shifted_time(moment, back))


def to_checkpoint(window: Window) -> JsonObject:
    """Return the checkpoint that keeps the window."""
    if window.newest is None:
        return {}
    kept: JsonObject = {"delivered": [[key, to_json(value)] for key, value in window.delivered.items()]}
    if window.position is not None:
        kept["position"] = window.position.to_json()
    if window.shortened_to is not None:
        kept["shortened_to"] = window.shortened_to.to_json()
    if window.base is not None:
        kept |= {"base": to_json(window.base), "room": window.room}
    return {"cursor": window.newest.to_json(), "lookback": kept}


def from_checkpoint(checkpoint: JsonObject, keyset: Callable[[object], KeysetCursor | None]) -> Window:
    """Return the window kept in a checkpoint; ``keyset`` reads the source's own cursor.

    Raises:
        SerializationError: the kept window cannot be read.
    """
    newest = keyset(checkpoint.get("cursor"))
    kept = checkpoint.get("lookback") or {}
    try:
        edge = parse_cursor(kept.get("shortened_to"))
        base = from_json(kept["base"]) if "base" in kept else None if newest is None else newest.value
        return Window(
            newest,
            keyset(kept.get("position")),
            {key: from_json(value) for key, value in kept.get("delivered", [])},
            edge if isinstance(edge, KeysetCursor) else None,
            base,
            int(kept.get("room", 0)),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise SerializationError(
            "The lookback window in the checkpoint cannot be read. Reset the trigger to a cursor."
        ) from error
