"""An empty database of each kind; every test must give back the connections it took.

Making a database takes longer than most of these tests, so that a file shares one and each test empties it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.binding.databases import Database
from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer


@pytest.fixture(scope="module")
def shared_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    postgres_server.start()  # a test before this one may have left it stopped
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def shared_mariadb_url(mariadb_server: MariadbServer) -> Iterator[str]:
    mariadb_server.start()  # a test before this one may have left it stopped
    name = mariadb_server.create_database()
    yield mariadb_server.url(name)
    mariadb_server.terminate_sessions(name)
    mariadb_server.drop_database(name)


def _opened(url: str) -> Iterator[Database]:
    database = Database(url)
    database.empty()
    yield database
    leaked = database.connections_in_use
    database.close()
    assert leaked == 0, f"{leaked} connections were not given back"


URLS = {"sqlite": "sqlite_url", "postgres": "shared_postgres_url", "mariadb": "shared_mariadb_url"}


@pytest.fixture(params=list(URLS))
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """An empty database of each kind."""
    yield from _opened(request.getfixturevalue(URLS[request.param]))


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Database]:
    yield from _opened(sqlite_url)


@pytest.fixture
def postgres(shared_postgres_url: str) -> Iterator[Database]:
    yield from _opened(shared_postgres_url)


@pytest.fixture
def mariadb(shared_mariadb_url: str) -> Iterator[Database]:
    yield from _opened(shared_mariadb_url)
