"""The tables of records in each database: every test that takes `engine` runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.engine import Engine

from holdfast.core.config import DbConfig
from holdfast.core.engine import EngineProvider
from holdfast.core.migrations import migrate
from holdfast.records.schema import MIGRATIONS

DATABASES = ("postgres_url", "mariadb_url", "sqlite_url")


@pytest.fixture(params=DATABASES)
def empty_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A database without Holdfast's tables."""
    provider = EngineProvider()
    yield provider.get_engine(DbConfig(connection_url=request.getfixturevalue(request.param)))
    provider.dispose_all()


@pytest.fixture
def engine(empty_engine: Engine) -> Engine:
    migrate(empty_engine, MIGRATIONS)
    return empty_engine
