"""A timer's ticks: what is wrong with a source is told by the first, and each reads up to its own present."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast import (
    DbConfig,
    EngineProvider,
    PollTrigger,
    RowChange,
    SourceConfigurationError,
    SqlAlchemySource,
    StateStore,
)
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.clocks import SteppedClock
from tests.trigger.shop import order_ids

URLS = ["sqlite_url", "postgres_url", "mariadb_url"]


class Polled:
    """A table, and a trigger on it that remembers what it delivered."""

    def __init__(self, url: str, columns: str, **settings: Any) -> None:
        self.provider = EngineProvider()
        self.engine: Engine = self.provider.get_engine(DbConfig(connection_url=url))
        self.execute(f"CREATE TABLE items (id INTEGER NOT NULL PRIMARY KEY, {columns})")
        self.clock = SteppedClock()
        source = SqlAlchemySource(
            url=url, table="items", pk_columns=["id"], engine_provider=self.provider, clock=self.clock, **settings
        )
        self.trigger = PollTrigger(
            name="items", source=source, checkpoint_store=StateStore(MemoryDocumentStore()), batch_size=2
        )

    def execute(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement))

    def tick(self) -> list[int]:
        delivered: list[int] = []

        def handle(changes: list[RowChange]) -> None:
            delivered.extend(order_ids(changes))

        self.trigger.run(timer=None, handler=handle)
        return delivered


@pytest.fixture
def opened() -> Iterator[list[Polled]]:
    made: list[Polled] = []
    yield made
    for each in made:
        each.provider.dispose_all()


@pytest.mark.parametrize("database", URLS)
def test_a_row_without_a_place_is_refused_from_the_first_tick_on(
    request: pytest.FixtureRequest, opened: list[Polled], database: str
) -> None:
    polled = Polled(request.getfixturevalue(database), "n INTEGER", cursor_column="n", horizon="none")
    opened.append(polled)
    polled.execute("INSERT INTO items VALUES (1, 1), (2, NULL)")
    for _ in range(2):
        with pytest.raises(SourceConfigurationError, match="has rows with NULL in its cursor 'n'"):
            polled.tick()
    polled.execute("UPDATE items SET n = 2 WHERE n IS NULL")
    assert polled.tick() == [1, 2]


def test_one_that_comes_later_is_told_every_minute_while_the_others_go_on(
    sqlite_url: str, opened: list[Polled]
) -> None:
    polled = Polled(sqlite_url, "n INTEGER", cursor_column="n", horizon="none")
    opened.append(polled)
    polled.execute("INSERT INTO items VALUES (1, 1)")
    assert polled.tick() == [1]
    polled.execute("INSERT INTO items VALUES (2, NULL), (3, 3)")
    assert polled.tick() == [3]
    polled.clock.advance(61)
    with pytest.raises(SourceConfigurationError, match="NULL"):
        polled.tick()
    polled.execute("INSERT INTO items VALUES (4, 4)")
    assert polled.tick() == [4]


def test_a_tick_after_a_full_batch_delivers_what_came_since(postgres_url: str, opened: list[Polled]) -> None:
    """Not only what was safe to read at the time of the full batch."""
    polled = Polled(postgres_url, "x xid8 NOT NULL DEFAULT pg_current_xact_id()", cursor_column="x", horizon="auto")
    opened.append(polled)
    for number in (1, 2):
        polled.execute(f"INSERT INTO items (id) VALUES ({number})")
    assert polled.tick() == [1, 2]
    polled.execute("INSERT INTO items (id) VALUES (3)")
    assert polled.tick() == [3]
    assert polled.tick() == []
    for number in (4, 5, 6):
        polled.execute(f"INSERT INTO items (id) VALUES ({number})")
    assert (polled.tick(), polled.tick(), polled.tick()) == ([4, 5], [6], [])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pk_columns": "id"}, r"pk_columns must be a list of column names, as in \['id'\], not 'id'"),
        ({"pk_columns": [1]}, "pk_columns must be a list of column names"),
        ({"horizon": "magic"}, "horizon='magic' is not known: use one of auto, xid8"),
        ({"engine_provider": "x"}, "engine_provider must be an EngineProvider"),
        ({"url": None, "db_config": "sqlite://"}, "db_config must be a DbConfig, not str"),
    ],
)
def test_a_setting_that_cannot_be_right_is_refused_when_the_source_is_made(settings: dict[str, Any], said: str) -> None:
    right: dict[str, Any] = {"url": "sqlite://", "table": "items", "cursor_column": "n", "pk_columns": ["id"]}
    with pytest.raises(SourceConfigurationError, match=said):
        SqlAlchemySource(**(right | settings))
