"""The shop that the tests of the command line run in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import EngineProvider
from tests.cli.desk import Desk
from tests.cli.shop import Shop
from tests.components.prepared import mariadb_url as mariadb_url
from tests.components.prepared import postgres_url as postgres_url
from tests.components.prepared import sqlite_url as sqlite_url


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    provider = EngineProvider()
    yield Shop(tmp_path, provider)
    provider.dispose_all()


@pytest.fixture
def bare_desk(
    empty_sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    """An application whose database has no tables yet."""
    provider = EngineProvider()
    yield Desk(empty_sqlite_url, provider, monkeypatch, capsys)
    provider.dispose_all()


@pytest.fixture(params=["postgres_url", "sqlite_url"])
def desk(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    """An application with an empty queue."""
    provider = EngineProvider()
    opened = Desk(request.getfixturevalue(request.param), provider, monkeypatch, capsys)
    opened.hf.migrate()
    yield opened
    provider.dispose_all()
