"""Reading a lookback window page by page: dropping what was delivered, and beginning again at the end of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.cursor import KeysetCursor
from . import lookback
from .pages import Pages
from .preparation import Prepared
from .settings import SourceSettings


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows that were not delivered yet, the window once they are, and whether their page was full."""

    rows: list[Any]
    window: lookback.Window
    is_full: bool


class WindowPages:
    """Reads on from where a window stands."""

    def __init__(self, prepared: Prepared, settings: SourceSettings, pages: Pages, window: lookback.Window) -> None:
        self._prepared = prepared
        self._settings = settings
        self._pages = pages
        self._window = window
        self._place, self._is_inclusive = window.position, False
        self._is_whole_pass = window.position is None
        if self._is_whole_pass:
            self._begin_pass()

    def next(self, limit: int) -> NewRows | None:
        """Return the next page's new rows; None when a whole pass has found none.

        Raises:
            SourceConfigurationError: two rows have the same place in the order.
        """
        while True:
            rows, read = self._read(limit)
            fresh, self._window, has_twins = self._window.meet(read)
            if has_twins:
                raise self._pages.equal_keysets()
            is_full = len(rows) == limit
            if fresh:
                last = read[-1] if is_full else None
                moved = self._window.after(len(fresh), last, self._settings.lookback_limit)
                return NewRows([rows[at] for at in fresh], moved, is_full)
            if is_full:
                self._place, self._is_inclusive = read[-1].keyset, False
            elif self._is_whole_pass:
                return None
            else:
                self._is_whole_pass = True
                self._begin_pass()

    def _read(self, limit: int) -> tuple[Sequence[Any], list[lookback.WindowRow]]:
        """Return a page, and its rows with what the database says of their places."""
        newest, marks = self._window.newest, None
        if newest is not None:
            marks = (newest, lookback.shifted_back(self._window.base, self._settings.lookback or 0))
        rows = self._pages.read(self._place, limit, inclusive=self._is_inclusive, marks=marks)
        return rows, [self._window_row(row, is_marked=marks is not None) for row in rows]

    def _window_row(self, row: Sequence[Any], *, is_marked: bool) -> lookback.WindowRow:
        """Return a row with its marks, which come last and are no content."""
        keyset = self._prepared.shape.keyset(row)
        if not is_marked:
            return lookback.WindowRow(keyset, row)
        return lookback.WindowRow(keyset, row[:-2], bool(row[-2]), bool(row[-1]))

    def _begin_pass(self) -> None:
        """Begin where the window starts, or where its limit lets it start if that is later.

        A row that the limit lets the pass read, and that lies before its start, tells that the limit is behind it.
        """
        start, limit = self._window.start_of_pass(self._settings.lookback or 0), self._window.shortened_to
        self._window = self._window.begun(self._settings.lookback_limit)
        if limit is not None and start is not None:
            if self._pages.below(start.value).first(limit, inclusive=not limit.keys) is None:
                start = limit
            else:
                self._window = replace(self._window, shortened_to=None)
        self._place, self._is_inclusive = start, start is None or not start.keys


def moved_limit(before: lookback.Window, after: lookback.Window) -> KeysetCursor | None:
    """Return where the window was cut to just now; None when it was not."""
    return None if after.shortened_to == before.shortened_to else after.shortened_to
