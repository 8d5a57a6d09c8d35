"""The tables of Holdfast from release to release: what is newer, what is too new, and the way back."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, event, inspect, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SAWarning

from holdfast.core.config import DbConfig
from holdfast.core.errors import ConfigurationError
from holdfast.database.migrations import Difference, Migration, difference, migrate, step_back
from holdfast.database.pools import EngineProvider
from holdfast.schema import MIGRATIONS
from tests.components.prepared import mariadb_url as mariadb_url
from tests.components.prepared import postgres_url as postgres_url
from tests.components.prepared import sqlite_url as sqlite_url
from tests.components.processes import wait_until

NUMBERS = [step.number for step in MIGRATIONS]
FIRST, NEWEST = min(NUMBERS), max(NUMBERS)


def _nothing(connection: Connection) -> None:
    """What a migration does that only says which releases can work."""


ADDED = Migration(9001, "added", _nothing)
USED = Migration(9002, "used", _nothing, needs=9001)


@pytest.fixture(params=["postgres_url", "mariadb_url", "sqlite_url"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    provider = EngineProvider()
    yield provider.get_engine(DbConfig(connection_url=request.getfixturevalue(request.param)))
    provider.dispose_all()


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Engine]:
    provider = EngineProvider()
    yield provider.get_engine(DbConfig(connection_url=sqlite_url))
    provider.dispose_all()


def described(engine: Engine) -> dict[str, object]:
    """Return every table of ours with its columns and indexes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SAWarning)  # of types and indexes that SQLAlchemy does not know
        return _described(engine)


def _described(engine: Engine) -> dict[str, object]:
    inspected = inspect(engine)
    return {
        table: (
            [(column["name"], str(column["type"])) for column in inspected.get_columns(table)],
            sorted((str(index["name"]), str(index["column_names"])) for index in inspected.get_indexes(table)),
        )
        for table in inspected.get_table_names()
    }


def test_15_every_migration_can_be_forgotten_and_applied_once_more(engine: Engine) -> None:
    before = described(engine)
    forgotten = step_back(engine, FIRST)
    assert len(forgotten) == len(MIGRATIONS) - 1
    assert difference(engine, MIGRATIONS, MIGRATIONS).missing == forgotten
    assert described(engine) == before
    assert migrate(engine, MIGRATIONS) == forgotten
    assert described(engine) == before


@pytest.mark.parametrize("engine", ["postgres_url", "mariadb_url"], indirect=True)
def test_15_who_comes_second_waits_until_the_first_has_committed(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """On MariaDB the lock was let go before the COMMIT, and both wrote the same row (1062)."""
    caplog.set_level(logging.INFO)
    second = create_engine(engine.url)
    has_written, others = threading.Event(), Others(second)

    @event.listens_for(engine, "after_cursor_execute")
    def _note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.startswith("INSERT INTO holdfast_migrations"):
            has_written.set()

    @event.listens_for(engine, "commit")
    def _meanwhile(_connection: object) -> None:
        if has_written.is_set() and not others.is_asked:
            others.ask()
            wait_until(lambda: others.has_written or "this one waits" in caplog.text, "the second to come so far")

    assert migrate(engine, [ADDED]) == ["9001 added"]
    assert others.told() == []
    second.dispose()


class Others:
    """Another process that migrates, as a thread with connections of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(1)
        self._asked: list[Future[list[str]]] = []
        self.has_written = False
        event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, _connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        self.has_written |= statement.startswith("INSERT INTO holdfast_migrations")

    @property
    def is_asked(self) -> bool:
        return bool(self._asked)

    def ask(self) -> None:
        self._asked.append(self._threads.submit(migrate, self._engine, [ADDED]))

    def told(self) -> list[str]:
        self._threads.shutdown()
        return self._asked[0].result()


def test_15_what_is_newer_is_known_by_name_and_is_too_new_only_if_it_says_so(sqlite: Engine) -> None:
    migrate(sqlite, [ADDED])
    assert difference(sqlite, MIGRATIONS, MIGRATIONS) == Difference([], ["9001 added"], [])
    migrate(sqlite, [USED])
    assert difference(sqlite, MIGRATIONS, MIGRATIONS) == Difference([], ["9001 added", "9002 used"], ["9002 used"])
    assert difference(sqlite, MIGRATIONS, (*MIGRATIONS, ADDED)) == Difference([], ["9002 used"], [])


def test_15_there_is_no_way_back_behind_what_only_later_releases_can_use(sqlite: Engine) -> None:
    migrate(sqlite, [ADDED, USED])
    with pytest.raises(ConfigurationError, match=r"since '9002 used' only releases that know migration 9001 can work"):
        step_back(sqlite, NEWEST)
    with pytest.raises(ConfigurationError, match=r"no migration 8000 to go back to.*9002 used\."):
        step_back(sqlite, 8000)
    assert difference(sqlite, MIGRATIONS, MIGRATIONS).newer == ["9001 added", "9002 used"]
    assert step_back(sqlite, 9001) == ["9002 used"]


def test_15_tables_of_a_release_that_did_not_say_what_it_needs(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE holdfast_migrations DROP COLUMN needs"))
    assert difference(engine, MIGRATIONS, MIGRATIONS) == Difference([], [], [])
    assert migrate(engine, [ADDED, USED]) == ["9001 added", "9002 used"]
    assert difference(engine, MIGRATIONS, MIGRATIONS).too_new == ["9002 used"]
