"""No committed row is ever skipped, however late it commits: the first promise, on every kind of cursor.

The rules: [HORIZON-PG-XID] [HORIZON-PG-TIME] [HORIZON-PG-IDENTITY] [HORIZON-MY-TIME] [HORIZON-MY-IDENTITY]
[HORIZON-SQLITE-TIME].
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trigger.late_commits import kinds, scenarios
from tests.trigger.late_commits.items import Count, Items
from tests.trigger.late_commits.kinds import CursorKind
from tests.trigger.late_commits.workload import Size, write_and_read

SHORT = Size(seconds=1.5, rows=800)
FULL = Size(seconds=20.0, rows=5000)
SEED = 20260

on_every_kind = pytest.mark.parametrize("kind", kinds.ALL, ids=str)


@pytest.fixture
def items(kind: CursorKind, request: pytest.FixtureRequest) -> Iterator[Items]:
    opened = Items(kind, request.getfixturevalue(kind.url_fixture))
    yield opened
    opened.close()


def check_nothing_lost(items: Items, size: Size, seed: int) -> None:
    count = write_and_read(items, size, seed)
    print(f"{items.kind}: {count}")
    assert count.lost == frozenset()
    assert count.rows >= size.on(items.engine.dialect.name).rows


@on_every_kind
def test_six_writers_that_commit_out_of_order_lose_nothing(items: Items) -> None:
    check_nothing_lost(items, SHORT, SEED)


@pytest.mark.prove
@on_every_kind
def test_six_writers_lose_nothing_at_full_size(items: Items) -> None:
    check_nothing_lost(items, FULL, SEED + 1)


SOUND_WITHOUT = (kinds.SQLITE_IDENTITY, kinds.SQLITE_MILLISECONDS)
"""One writer at a time, and ticks too short to be met by chance."""


@pytest.mark.prove
@pytest.mark.parametrize("kind", [kind for kind in kinds.ALL if kind not in SOUND_WITHOUT], ids=str)
def test_without_a_horizon_six_writers_lose_rows(items: Items) -> None:
    count = write_and_read(items, FULL, SEED + 2, horizon="none")
    print(f"{items.kind} without a horizon: {count}")
    assert count.lost


@pytest.mark.parametrize("kind", kinds.POSTGRES, ids=str)
def test_a_late_commit_is_delivered_on_postgres_15(kind: CursorKind, postgres15_url: str) -> None:
    items = Items(kind, postgres15_url)
    assert scenarios.late_commit(items, items.poller()) == Count(2, 2, 0, frozenset())
    items.close()
