"""Databases that hold Holdfast's tables already, copied from one in which the migrations ran once.

A suite whose every test begins with the same migrations imports these fixtures into its ``conftest.py``, where they
take the place of the empty databases of the same names; ``empty_postgres_url`` and its like stay what they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import EngineProvider, Holdfast
from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer

_templates: dict[PostgresServer | MariadbServer, str] = {}
_SQLITE = "prepared.db"


def create_prepared(server: PostgresServer | MariadbServer) -> str:
    """Create a database with Holdfast's tables and return its name."""
    server.start()  # a test before this one may have left it stopped
    if server not in _templates:
        template = server.create_database()
        _migrate(server.url(template))
        server.terminate_sessions(template)
        _templates[server] = template
    return server.create_database(_templates[server])


def copy_prepared(database: Path, factory: pytest.TempPathFactory) -> str:
    """Make a database file with Holdfast's tables and return its URL."""
    template = factory.getbasetemp() / _SQLITE
    if not template.exists():
        _migrate(f"sqlite:///{template}")
    shutil.copy(template, database)
    return f"sqlite:///{database}"


def dropped_after(server: PostgresServer | MariadbServer, database: str) -> Iterator[str]:
    """Yield the URL of a database and drop it afterwards."""
    yield server.url(database)
    if server.running:
        server.terminate_sessions(database)
        server.drop_database(database)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """URL of a database of its own on PostgreSQL 18, with Holdfast's tables."""
    yield from dropped_after(postgres_server, create_prepared(postgres_server))


@pytest.fixture
def mariadb_url(mariadb_server: MariadbServer) -> Iterator[str]:
    """URL of a database of its own on MariaDB, with Holdfast's tables."""
    yield from dropped_after(mariadb_server, create_prepared(mariadb_server))


@pytest.fixture
def sqlite_url(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of a database file of its own with Holdfast's tables."""
    return copy_prepared(tmp_path / "test.db", tmp_path_factory)


def _migrate(url: str) -> None:
    provider = EngineProvider()
    Holdfast(url, engine_provider=provider).migrate()
    provider.dispose_all()
