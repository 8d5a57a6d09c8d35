"""Bugs to plant: what every check must catch, or it is no check."""

from __future__ import annotations

import pytest

from holdfast.database import barrier as barriers
from holdfast.trigger.sources import statement


def read_up_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read rows at the bound, too, and not only those strictly below it."""
    strict = statement.KeysetQuery._conditions

    def inclusive(query: statement.KeysetQuery, has_cursor: bool, has_bound: bool, is_from: bool) -> list[object]:
        bound = [query.cursor <= query._bind(statement.BOUND_PARAM, query.cursor)] if has_bound else []
        return [*strict(query, has_cursor, False, is_from), *bound]

    monkeypatch.setattr(statement.KeysetQuery, "_conditions", inclusive)


def do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a position be read at once, whoever is still at work below it."""

    def learn(barrier: barriers.Barrier[object, tuple[object]], position: object, listing: object) -> None:
        barrier._bound = position

    monkeypatch.setattr(barriers.Barrier, "_learn", learn)
