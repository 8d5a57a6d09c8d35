"""Places for engines: every test that takes ``bench`` runs in SQLite, PostgreSQL, and Azure's queue and tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import EngineProvider, Holdfast
from tests.components.azurite import AzuriteServer
from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer
from tests.components.prepared import mariadb_url as mariadb_url
from tests.components.prepared import postgres_url as postgres_url
from tests.components.prepared import sqlite_url as sqlite_url
from tests.engines.places import Bench, Place

PLACES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.component("postgres18")),
    pytest.param("azure", marks=pytest.mark.component("azurite")),
]
EVERY_PLACE = pytest.mark.parametrize(
    "place", [*PLACES, pytest.param("mariadb", marks=pytest.mark.component("mariadb"))], indirect=True
)
_Databases = dict[str, tuple[str, EngineProvider]]


@pytest.fixture(scope="session")
def engine_databases() -> Iterator[_Databases]:
    """Databases with Holdfast's tables, made when first asked for and emptied after each test."""
    made: _Databases = {}
    yield made
    for _, provider in made.values():
        provider.dispose_all()


def open_place(kind: str, request: pytest.FixtureRequest) -> Place:
    """Return an empty place."""
    database = "sqlite" if kind == "azure" else kind
    databases: _Databases = request.getfixturevalue("engine_databases")
    if database != "sqlite":
        server: PostgresServer | MariadbServer = request.getfixturevalue(f"{database}_server")
        server.start()  # a test before this one may have left it stopped
    if database not in databases:
        if database != "sqlite":
            url = server.url(server.create_database())
        else:
            factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
            url = f"sqlite:///{factory.mktemp('engines') / 'test.db'}"
        provider = EngineProvider()
        Holdfast(url, engine_provider=provider).migrate()
        databases[database] = (url, provider)
    url, provider = databases[database]
    if kind != "azure":
        return Place(kind, url, provider=provider)
    azurite: AzuriteServer = request.getfixturevalue("azurite")
    return Place(kind, url, azurite.connection_string, provider)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    opened = open_place(request.param, request)
    yield opened
    opened.empty()


@pytest.fixture
def bench(place: Place) -> Bench:
    """Engine ``hmac``, whose messages may be dequeued three times."""
    return Bench(place)


@pytest.fixture
def singleton(place: Place) -> Bench:
    """Engine ``hmac`` as a singleton that locks the registry."""
    return Bench(place, singleton=True, lock_seconds=60)
