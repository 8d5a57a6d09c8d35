"""A fresh database of each kind; every test must give back the connections it took."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.binding.databases import Database


def _opened(url: str) -> Iterator[Database]:
    database = Database(url)
    yield database
    leaked = database.connections_in_use
    database.close()
    assert leaked == 0, f"{leaked} connections were not given back"


@pytest.fixture(params=["sqlite_url", "postgres_url", "mariadb_url"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A fresh database of each kind."""
    yield from _opened(request.getfixturevalue(request.param))


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Database]:
    yield from _opened(sqlite_url)


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Database]:
    yield from _opened(postgres_url)


@pytest.fixture
def mariadb(mariadb_url: str) -> Iterator[Database]:
    yield from _opened(mariadb_url)
