"""The tables of records in each database: every test that takes `engine` runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.engine import Engine

from holdfast.core.config import DbConfig
from holdfast.database.pools import EngineProvider
from tests.components.prepared import mariadb_url as mariadb_url
from tests.components.prepared import postgres_url as postgres_url
from tests.components.prepared import sqlite_url as sqlite_url

DATABASES = ("postgres_url", "mariadb_url", "sqlite_url")


@pytest.fixture(params=[f"empty_{database}" for database in DATABASES])
def empty_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A database without Holdfast's tables."""
    provider = EngineProvider()
    yield provider.get_engine(DbConfig(connection_url=request.getfixturevalue(request.param)))
    provider.dispose_all()


@pytest.fixture(params=DATABASES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    provider = EngineProvider()
    yield provider.get_engine(DbConfig(connection_url=request.getfixturevalue(request.param)))
    provider.dispose_all()
