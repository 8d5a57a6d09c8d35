"""Re-reading a window behind the newest row, where no horizon is sound. Pure: what to read, what to drop, what to keep.

Each pass starts ``lookback`` behind the row that was the newest when the pass before it began: whatever was written
since then, and was not further behind than the window, is found. A pass drops what was delivered before, and ends after
about as many new rows as there are in the window, so that under a steady load the next one begins. What was delivered
is remembered in the checkpoint, at most ``limit`` rows of it: when more fall into the window, the window gets shorter
(and the source says so), because remembering too little would deliver the same rows again on every pass.

Nothing is put in order here: rows come in the order of the database, whose collations differ from Python's order of
texts, and the database marks each row as behind the newest one or not, and as one that the next pass meets or not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from ...core.cursor import KeysetCursor, parse_cursor
from ...core.errors import SerializationError, SourceConfigurationError
from ...core.types import JsonObject
from ...core.values import from_json, to_json, to_text
from .text_times import in_layout_of

_HASH_DIGITS = 16
_SHORTEST_PASS = 1000
_MICROSECOND_DIGITS = 6
_DATE_LENGTH = len("2026-01-31")


@dataclass(frozen=True, slots=True)
class WindowRow:
    """A row that was read, what it holds where a second change within a tick can be told apart by that, and its marks.

    ``is_newer``: it lies behind the newest row that was delivered. ``comes_again``: the next pass meets it, too.
    """

    keyset: KeysetCursor
    content: Sequence[object] = ()
    is_newer: bool = True
    comes_again: bool = True


class Met(NamedTuple):
    """What a page brought: the places in it of new rows, the window then, and whether two rows look the same."""

    fresh: list[int]
    window: Window
    has_twins: bool


@dataclass(frozen=True, slots=True)
class Window:
    """Where a lookback trigger stands: the newest row, what was delivered near it, and how far this pass has read.

    ``base`` is the cursor value of the row that was the newest when the present pass (or, between passes, the last one)
    began; ``room`` is how many more rows the present pass may deliver. Of the rows that were delivered the pass has met
    those in ``met``, and not yet those in ``delivered``: in this order they are in the order of the database.
    """

    newest: KeysetCursor | None = None
    position: KeysetCursor | None = None
    delivered: dict[str, object] = field(default_factory=dict)
    shortened_to: KeysetCursor | None = None
    base: Any = None
    room: int = 0
    met: dict[str, object] = field(default_factory=dict)

    def start_of_pass(self, lookback: timedelta | float) -> KeysetCursor | None:
        """Return where a new pass starts: at a value; None: at the beginning.

        It starts at ``shortened_to`` if that is later, which only the database can tell.
        """
        return None if self.base is None else KeysetCursor(shifted_back(self.base, lookback), ())

    def begun(self, limit: int) -> Window:
        """Return the window at the beginning of a pass, which has met nothing yet."""
        known = {**self.met, **self.delivered}
        room = min(max(len(known), _SHORTEST_PASS), limit // 2)
        base = None if self.newest is None else self.newest.value
        return replace(self, delivered=known, met={}, base=base, room=room)

    def is_new(self, row: KeysetCursor, content: Sequence[object] = ()) -> bool:
        """Return whether the row was not delivered yet as it is; older versions did not keep what was in it."""
        return self._known_as(row, content) is None

    def _known_as(self, row: KeysetCursor, content: Sequence[object]) -> str | None:
        names = (identity(row, content), identity(row))
        return next((name for name in names if name in self.met or name in self.delivered), None)

    def meet(self, rows: Sequence[WindowRow]) -> Met:
        """Return which rows of a page are new, and the window once the page has been read.

        Behind the newest row, whatever this pass has not met is gone: it was changed or deleted.
        """
        met, ahead = dict(self.met), dict(self.delivered)
        fresh, names = [], set[str]()
        for at, row in enumerate(rows):
            known = self._known_as(row.keyset, row.content)
            if known is None:
                fresh.append(at)
            name = known or identity(row.keyset, row.content)
            names.add(name)
            met.pop(name, None)
            ahead.pop(name, None)
            if row.comes_again:
                met[name] = row.keyset.value
        read = replace(self, met=met, delivered=ahead)
        if rows and rows[-1].is_newer:
            read = replace(read, newest=rows[-1].keyset, delivered={})
        if rows and read.base is None:
            read = replace(read, base=rows[0].keyset.value)
        return Met(fresh, read, has_twins=len(names) < len(rows))

    def after(self, delivered: int, position: WindowRow | None, limit: int) -> Window:
        """Return the window once so many rows were delivered and the pass has read up to ``position`` (None: its end).

        A pass that has delivered enough ends, but not before the next one meets what it has not read.
        """
        room = self.room - delivered
        is_over = position is None or (room <= 0 and position.comes_again)
        moved = replace(self, room=room, position=None if is_over or position is None else position.keyset)
        return _bounded(moved, limit)


def _bounded(window: Window, limit: int) -> Window:
    """Return the window with at most ``limit`` delivered rows kept: the last ones, and none of a value cut in two.

    Where one cursor value alone has more, reading goes on behind the newest row: nothing before it is read again. A
    pass that is behind what is kept ends, because it would take the others for new.
    """
    remembered = [*window.met.items(), *window.delivered.items()]
    cut = len(remembered) - limit
    if cut <= 0:
        return window
    value = remembered[cut - 1][1]
    while cut < len(remembered) and remembered[cut][1] == value:
        cut += 1
    met = len(window.met)
    return replace(
        window,
        met=dict(remembered[cut:met]),
        delivered=dict(remembered[max(cut, met) :]),
        shortened_to=KeysetCursor(remembered[cut][1], ()) if cut < len(remembered) else window.newest,
        position=window.position if cut <= met else None,
    )


def identity(row: KeysetCursor, content: Sequence[object] = ()) -> str:
    """Return a short hash of a row's cursor and keys, and of what it holds where it can change twice within a tick."""
    parts = [*to_text(row.value)]
    for _, key in row.keys:
        parts.extend(to_text(key))
    if content and _is_coarse(row.value):
        parts.append(repr(tuple(content)))
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:_HASH_DIGITS]


def _is_coarse(value: object) -> bool:
    """Return whether a row can change twice under one value: a day, a second, a millisecond, a whole number."""
    if isinstance(value, datetime):
        return value.microsecond % 1000 == 0
    if isinstance(value, str):
        return len(value.partition(".")[2].rstrip("Zz")) < _MICROSECOND_DIGITS
    return isinstance(value, (date, int))


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
    remembered = [[key, to_json(value)] for key, value in (*window.met.items(), *window.delivered.items())]
    kept: JsonObject = {"delivered": remembered, "met": len(window.met)}
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
        remembered = [(str(key), from_json(value)) for key, value in kept.get("delivered", [])]
        met = int(kept.get("met", len(remembered)))  # an older version did not tell: none of it may be forgotten
        return Window(
            newest,
            keyset(kept.get("position")),
            dict(remembered[met:]),
            edge if isinstance(edge, KeysetCursor) else None,
            base,
            int(kept.get("room", 0)),
            dict(remembered[:met]),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise SerializationError(
            "The lookback window in the checkpoint cannot be read. Reset the trigger to a cursor."
        ) from error
