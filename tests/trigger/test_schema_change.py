"""A table that changes while it is polled: looked up again and read in the same tick, without an error on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Engine, make_url

from holdfast import DbConfig, EngineProvider, FetchError, SourceConfigurationError, SqlAlchemySource
from holdfast.core.types import JsonObject
from tests.binding.test_types import CASES
from tests.clocks import SteppedClock

LONG_AFTER = 61.0
SESSIONS = 3
POLLS_UNTIL_PREPARED = 10  # psycopg prepares a statement that it has seen five times


@dataclass
class Orders:
    """A table, somebody who alters it, and a source that polls it with sessions of its own."""

    url: str
    clock: SteppedClock = field(default_factory=SteppedClock)
    provider: EngineProvider = field(default_factory=EngineProvider)
    _others: EngineProvider = field(default_factory=EngineProvider)

    def __post_init__(self) -> None:
        self.source = self.follow(table="orders")
        self.execute("CREATE TABLE orders (id integer PRIMARY KEY, status varchar(20), amount integer)")
        self.execute("INSERT INTO orders VALUES (1, 'new', 10), (2, 'new', 20)")

    def follow(self, **settings: Any) -> SqlAlchemySource:
        return SqlAlchemySource(
            url=self.url,
            cursor_column="id",
            pk_columns=["id"],
            horizon="none",
            engine_provider=self.provider,
            clock=self.clock,
            **settings,
        )

    def execute(self, statement: str) -> None:
        with self._others.get_engine(DbConfig(connection_url=self.url)).begin() as connection:
            connection.execute(text(statement))

    @property
    def engine(self) -> Engine:
        found: Engine = self.source._ready().engine
        return found

    def close(self) -> None:
        self.provider.dispose_all()
        self._others.dispose_all()


@pytest.fixture(params=["sqlite_url", "postgres_url", "mariadb_url"])
def orders(request: pytest.FixtureRequest) -> Iterator[Orders]:
    opened = Orders(request.getfixturevalue(request.param))
    yield opened
    opened.close()


@pytest.fixture
def postgres_orders(postgres_url: str) -> Iterator[Orders]:
    opened = Orders(postgres_url)
    yield opened
    opened.close()


def rows(source: SqlAlchemySource, checkpoint: JsonObject | None = None) -> list[dict[str, object]]:
    return [dict(record) for record in source.fetch_changes(checkpoint or {}, 10).records]


def test_a_plan_from_before_a_type_change_does_not_cost_a_tick(postgres_orders: Orders) -> None:
    """PostgreSQL refuses a session's kept plan when the type of a result column has changed."""
    source = postgres_orders.source
    with ExitStack() as holding:
        sessions = [holding.enter_context(postgres_orders.engine.connect()) for _ in range(SESSIONS)]
        for session in sessions:  # each in its turn is the only one that is free
            session.close()
            for _ in range(POLLS_UNTIL_PREPARED):
                rows(source)
            holding.enter_context(postgres_orders.engine.connect())
    refused: list[str] = []
    event.listen(
        postgres_orders.engine, "handle_error", lambda context: refused.append(str(context.original_exception))
    )
    postgres_orders.execute("ALTER TABLE orders ALTER amount TYPE bigint")
    postgres_orders.execute("UPDATE orders SET amount = 5000000000 WHERE id = 1")
    for _ in range(POLLS_UNTIL_PREPARED):
        assert [row["amount"] for row in rows(source)] == [5_000_000_000, 20]
    assert 1 <= len(refused) <= SESSIONS, "no session refuses twice"
    assert all("cached plan" in said for said in refused)


def test_a_column_that_was_dropped_is_missing_from_the_next_read(orders: Orders) -> None:
    assert rows(orders.source)[0] == {"id": 1, "status": "new", "amount": 10}
    orders.execute("ALTER TABLE orders DROP COLUMN amount")
    assert rows(orders.source) == [{"id": 1, "status": "new"}, {"id": 2, "status": "new"}]


def test_a_column_that_was_added_is_read_after_a_while(orders: Orders) -> None:
    rows(orders.source)
    orders.execute("ALTER TABLE orders ADD COLUMN color varchar(10)")
    orders.clock.advance(LONG_AFTER)
    assert rows(orders.source)[0] == {"id": 1, "status": "new", "amount": 10, "color": None}


def test_a_column_that_a_query_gained_is_read_after_a_while(orders: Orders) -> None:
    source = orders.follow(query="SELECT * FROM orders WHERE amount > 10;")
    assert rows(source) == [{"id": 2, "status": "new", "amount": 20}]
    orders.execute("ALTER TABLE orders ADD COLUMN color varchar(10)")
    orders.clock.advance(LONG_AFTER)
    assert rows(source) == [{"id": 2, "status": "new", "amount": 20, "color": None}]


def test_a_table_as_it_was_is_not_looked_up_anew(orders: Orders) -> None:
    """Whatever the types of its columns: two looks at them must compare equal."""
    orders.execute("DROP TABLE orders")
    kind = make_url(orders.url).get_backend_name()
    columns = ", ".join(f"{name} {case[0]} NULL" for name, case in CASES[kind].items())
    orders.execute(f"CREATE TABLE orders (id integer PRIMARY KEY, {columns})")
    rows(orders.source)
    before = orders.source._ready()
    orders.clock.advance(LONG_AFTER)
    rows(orders.source)
    assert orders.source._ready() is before


def test_a_cursor_column_that_is_gone_is_said_to_be_gone(orders: Orders) -> None:
    rows(orders.source)
    orders.execute("DROP TABLE orders")
    orders.execute("CREATE TABLE orders (number integer PRIMARY KEY)")
    with pytest.raises(SourceConfigurationError, match="id"):
        rows(orders.source)


def test_a_table_that_is_gone_is_said_to_be_gone(orders: Orders) -> None:
    rows(orders.source)
    orders.execute("DROP TABLE orders")
    for seconds in (0.0, LONG_AFTER):
        orders.clock.advance(seconds)
        with pytest.raises(SourceConfigurationError, match="Table 'orders' not found"):
            rows(orders.source)


def test_an_error_that_a_second_look_does_not_mend_is_raised_after_it(postgres_orders: Orders) -> None:
    postgres_orders.execute("CREATE VIEW shown AS SELECT id, amount / (id - 1) AS share FROM orders")
    with pytest.raises(FetchError, match="division by zero"):
        rows(postgres_orders.follow(table="shown"))
    tries: list[str] = []
    rows(postgres_orders.source)
    event.listen(postgres_orders.engine, "handle_error", lambda context: tries.append(str(context.original_exception)))
    filtered = postgres_orders.follow(table="orders", where="no_such_column = 1")
    with pytest.raises(FetchError, match="no_such_column"):
        rows(filtered)
    assert len(tries) == 2, "once, and once more after a second look"
