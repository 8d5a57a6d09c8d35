"""No committed row is ever skipped, however late it commits: the first promise, on every kind of cursor.

The rules: [HORIZON-PG-XID] [HORIZON-PG-TIME] [HORIZON-PG-IDENTITY] [HORIZON-MY-TIME] [HORIZON-MY-IDENTITY]
[HORIZON-SQLITE-TIME].
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trigger.late_commits import kinds
from tests.trigger.late_commits.items import Items
from tests.trigger.late_commits.kinds import CursorKind
from tests.trigger.late_commits.workload import Size, write_and_read

SHORT = Size(seconds=2.0)
FULL = Size(seconds=20.0)
SEED = 20260

on_every_kind = pytest.mark.parametrize("kind", kinds.ALL, ids=str)


@pytest.fixture
def items(kind: CursorKind, request: pytest.FixtureRequest) -> Iterator[Items]:
    opened = Items(kind, request.getfixturevalue(kind.url_fixture))
    yield opened
    opened.close()


@on_every_kind
def test_six_writers_that_commit_out_of_order_lose_nothing(items: Items) -> None:
    count = write_and_read(items, SHORT, SEED)
    print(f"{items.kind}: {count}")
    assert count.lost == frozenset()
    assert count.rows >= (250 if items.engine.dialect.name == "sqlite" else 800)


@pytest.mark.prove
@on_every_kind
@pytest.mark.parametrize("seed", [SEED + 1])
def test_six_writers_lose_nothing_at_full_size(items: Items, seed: int) -> None:
    count = write_and_read(items, FULL, seed)
    print(f"{items.kind}: {count}")
    assert count.lost == frozenset()
    assert count.rows >= (2500 if items.engine.dialect.name == "sqlite" else 5000)
