"""An office over each database: every test that takes `office` runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from sqlalchemy import inspect, text

from holdfast import EngineProvider, Holdfast
from tests.api.clients import Office
from tests.components.postgres import PostgresServer


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """An event loop on a thread, which requests run on."""
    with start_blocking_portal() as opened:
        yield opened


@contextmanager
def application(url: str) -> Iterator[Holdfast]:
    provider = EngineProvider()
    made = Holdfast(url, engine_provider=provider)
    made.migrate()
    yield made
    provider.dispose_all()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared_hf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holdfast]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('api') / 'test.db'}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        server.start()
        url = server.url(server.create_database())
    with application(url) as made:
        yield made


@pytest.fixture
def hf(shared_hf: Holdfast) -> Iterator[Holdfast]:
    """An application with empty tables, emptied again for the next test of the file."""
    yield shared_hf
    with shared_hf.database.begin() as connection:
        for table in inspect(connection).get_table_names():
            if table.startswith("holdfast_") and table != "holdfast_migrations":
                connection.execute(text(f"DELETE FROM {table}"))


@pytest.fixture
def office(hf: Holdfast, portal: BlockingPortal) -> Office:
    return Office(hf, portal)


@pytest.fixture
def small_hf(sqlite_url: str) -> Iterator[Holdfast]:
    """An application with empty tables in a file of its own, for what does not depend on the database."""
    with application(sqlite_url) as made:
        yield made


@pytest.fixture
def small_office(small_hf: Holdfast, portal: BlockingPortal) -> Office:
    return Office(small_hf, portal)
