"""An application with an outbox, on every database."""

from collections.abc import Iterator

import pytest

from tests.components.prepared import mariadb_url as mariadb_url
from tests.components.prepared import postgres_url as postgres_url
from tests.components.prepared import sqlite_url as sqlite_url
from tests.outbox.shops import Shop, open_shop

DATABASES = [
    pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
    pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
    "sqlite_url",
]


@pytest.fixture(params=DATABASES)
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """On PostgreSQL, MariaDB and SQLite."""
    with open_shop(request.getfixturevalue(request.param)) as opened:
        yield opened


@pytest.fixture
def postgres_shop(postgres_url: str) -> Iterator[Shop]:
    with open_shop(postgres_url) as opened:
        yield opened


@pytest.fixture
def mariadb_shop(mariadb_url: str) -> Iterator[Shop]:
    with open_shop(mariadb_url) as opened:
        yield opened


@pytest.fixture
def sqlite_shop(sqlite_url: str) -> Iterator[Shop]:
    with open_shop(sqlite_url) as opened:
        yield opened
