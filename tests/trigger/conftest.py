"""A shop on each embedded or real database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.components.prepared import mariadb_url as mariadb_url
from tests.components.prepared import postgres_url as postgres_url
from tests.components.prepared import sqlite_url as sqlite_url
from tests.trigger.shop import Shop


@pytest.fixture(params=["sqlite_url", "postgres_url", "mariadb_url"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """An application on a fresh database of each kind."""
    opened = Shop(request.getfixturevalue(request.param))
    yield opened
    opened.close()


@pytest.fixture
def sqlite_shop(sqlite_url: str) -> Iterator[Shop]:
    """An application on SQLite."""
    opened = Shop(sqlite_url)
    yield opened
    opened.close()
