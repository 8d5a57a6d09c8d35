"""[14.5] The database alone orders keysets, keys prove that rows differ, and a query's values keep their types.

The rule: [KEYSET-1].
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError

from holdfast import EngineProvider, SqlAlchemySource
from holdfast.core.errors import SourceConfigurationError
from holdfast.core.types import JsonObject
from tests.trigger.test_lookback import SQLITE, Table

MANY = 200
"""More rows than any table here has."""


class Place:
    """An empty database and sources over it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.provider = EngineProvider()
        self.engine = create_engine(url, isolation_level="AUTOCOMMIT")

    def close(self) -> None:
        self.engine.dispose()
        self.provider.dispose_all()

    def run(self, *statements: str) -> None:
        with self.engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def insert(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        names = [f"v{at}" for at in range(len(rows[0]))]
        statement = text(f"INSERT INTO {table} VALUES ({', '.join(f':{name}' for name in names)})")
        with self.engine.connect() as connection:
            connection.execute(statement, [dict(zip(names, row, strict=True)) for row in rows])

    def scalars(self, statement: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(statement)).scalars())

    def source(self, *keys: str, cursor: str = "changed", **options: Any) -> SqlAlchemySource:
        options = {"table": "items", "horizon": "none", **options}
        if "query" in options:
            del options["table"]
        return SqlAlchemySource(
            url=self.url, cursor_column=cursor, pk_columns=list(keys), engine_provider=self.provider, **options
        )


@contextmanager
def opened(url: str) -> Iterator[Place]:
    place = Place(url)
    try:
        yield place
    finally:
        place.close()


@pytest.fixture(params=["sqlite_url", "postgres_url", "mariadb_url"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with opened(request.getfixturevalue(request.param)) as found:
        yield found


def delivered(source: SqlAlchemySource, limit: int, seen: list[Any] | None = None) -> list[Any]:
    """Return the ids of all rows that come, page by page; each page begins with the checkpoint alone."""
    checkpoint: JsonObject = {}
    seen = [] if seen is None else seen
    while len(seen) < MANY:
        found = source.fetch_changes(json.loads(json.dumps(checkpoint)), limit)
        seen += [row["id"] for row in found.records]
        if found.next_checkpoint is None:
            return seen
        checkpoint = found.next_checkpoint
    raise AssertionError(f"rows come again and again: {seen[:20]}")


SORTED_IN_ANOTHER_WAY: dict[str, tuple[str, Callable[[int], str]]] = {
    "sqlite": ("TEXT COLLATE NOCASE", lambda at: f"{'aB'[at % 2]}{at:03}"),
    "postgresql": ("pg_lsn", lambda at: f"0/{at:X}"),
    "mysql": ("VARCHAR(9) COLLATE utf8mb4_general_ci", lambda at: f"{'aB'[at % 2]}{at:03}"),
}
ROWS = 61


def many_of_one_moment(place: Place) -> list[Any]:
    """Fill a table with rows of one moment, under keys that Python would sort in another way."""
    declared, key = SORTED_IN_ANOTHER_WAY[place.engine.dialect.name]
    place.run(f"CREATE TABLE items (id {declared} NOT NULL PRIMARY KEY, changed INT NOT NULL)")
    place.insert("items", [(key(at), 7) for at in range(ROWS)])
    expected = place.scalars("SELECT id FROM items ORDER BY changed, id")
    assert sorted(expected) != expected
    return expected


@pytest.mark.parametrize("limit", [5, 40])
def test_14_5_more_rows_of_one_moment_than_a_window_holds_come_once_whatever_their_collation(
    place: Place, limit: int
) -> None:
    expected = many_of_one_moment(place)
    assert sorted(delivered(place.source("id", lookback=3, lookback_limit=limit), 4)) == sorted(expected)


def test_14_5_late_rows_of_a_window_come_once_whatever_their_collation(place: Place) -> None:
    expected = many_of_one_moment(place)
    late, first = expected[::7], expected[1::7]
    place.run("DELETE FROM items")
    place.insert("items", [(key, 7) for key in first])
    source = place.source("id", lookback=3)
    seen: list[Any] = []
    found = source.fetch_changes({}, 5)
    place.insert("items", [(key, 7) for key in late])
    while found.next_checkpoint is not None:
        seen += [row["id"] for row in found.records]
        found = source.fetch_changes(json.loads(json.dumps(found.next_checkpoint)), 5)
    assert sorted(seen) == sorted([*late, *first])


def test_14_5_a_burst_of_late_rows_is_read_to_its_end_before_the_window_moves_on(sqlite_url: str) -> None:
    table = Table(sqlite_url, SQLITE[0])
    source = table.source(limit=60)
    table.write([100])
    table.poll(source, 10)
    table.write([110])
    table.poll(source, 10)
    late = table.write([91 + at % 8 for at in range(40)])
    table.catch_up(10, limit=60)
    assert set(late) <= table.delivered.keys()
    assert set(table.delivered.values()) == {1}
    table.close()


def test_14_5_a_window_that_an_older_version_left_is_read_on(sqlite_url: str) -> None:
    """It remembered rows as they came, and did not tell which of them the pass had met."""
    table = Table(sqlite_url, SQLITE[0])
    source = table.source()
    table.write(list(range(20, 30)))
    table.poll(source, 4)
    table.poll(source, 4)
    table.checkpoint["lookback"].pop("met")
    table.write([21, 31])
    table.catch_up(4)
    assert set(table.delivered.values()) == {1}
    assert len(table.delivered) == 12
    table.close()


CHECKED = "CREATE TABLE items (id INT NOT NULL, changed INT NOT NULL, code VARCHAR(9) NOT NULL, kept INT)"
NOT_PROVING = {
    "partial on PostgreSQL": ("postgres_url", (CHECKED, "CREATE UNIQUE INDEX own ON items (code) WHERE kept = 1")),
    "partial on SQLite": ("sqlite_url", (CHECKED, "CREATE UNIQUE INDEX own ON items (code) WHERE kept = 1")),
    "an expression on PostgreSQL": ("postgres_url", (CHECKED, "CREATE UNIQUE INDEX own ON items (code, (id + 1))")),
    "an expression on SQLite": ("sqlite_url", (CHECKED, "CREATE UNIQUE INDEX own ON items (code, (id + 1))")),
    "inherited from on PostgreSQL": (
        "postgres_url",
        (CHECKED, "ALTER TABLE items ADD PRIMARY KEY (code)", "CREATE TABLE older () INHERITS (items)"),
    ),
    "stricter than its column on PostgreSQL": (
        "postgres_url",
        (
            'CREATE COLLATION any_case FROM "C"',  # as one of ICU would be, which this build may lack
            "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'any_case'",
            CHECKED.replace("VARCHAR(9)", "TEXT COLLATE any_case"),
            'CREATE UNIQUE INDEX own ON items (code COLLATE "C")',
        ),
    ),
    "stricter than its column on SQLite": (
        "sqlite_url",
        (
            CHECKED.replace("VARCHAR(9)", "TEXT COLLATE NOCASE"),
            "CREATE UNIQUE INDEX own ON items (code COLLATE BINARY)",
        ),
    ),
    "of periods on MariaDB": (
        "mariadb_url",
        (
            "CREATE TABLE items (code VARCHAR(9) NOT NULL, changed INT NOT NULL, since DATE, until DATE, "
            "PERIOD FOR valid (since, until), PRIMARY KEY (code, valid WITHOUT OVERLAPS))",
        ),
    ),
}


@pytest.mark.parametrize(("database", "statements"), NOT_PROVING.values(), ids=NOT_PROVING)
def test_14_5_a_unique_index_that_proves_nothing_is_refused_as_a_key(
    database: str, statements: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    with opened(request.getfixturevalue(database)) as place:
        place.run(*statements)
        with pytest.raises(SourceConfigurationError, match="No unique constraint of table 'items' lies within"):
            place.source("code").open()


def test_14_5_an_index_that_was_not_completed_is_refused_until_it_is(postgres_url: str) -> None:
    with opened(postgres_url) as place:
        place.run(CHECKED, "INSERT INTO items VALUES (1, 1, 'a', 1), (2, 2, 'a', 1)")
        with suppress(IntegrityError):
            place.run("CREATE UNIQUE INDEX CONCURRENTLY own ON items (code)")
        with pytest.raises(SourceConfigurationError, match="unique index 'own' is not complete"):
            place.source("code").open()
        place.run("DELETE FROM items WHERE id = 2", "REINDEX INDEX own")
        place.source("code").open()


def test_14_5_whole_unique_indexes_prove_a_key(place: Place) -> None:
    place.run(CHECKED, "CREATE UNIQUE INDEX own ON items (id, code)")
    place.source("code", "id").open()
    with pytest.raises(SourceConfigurationError, match="No unique constraint"):
        place.source("code").open()


def test_14_5_rows_with_null_in_a_unique_key_are_refused(place: Place) -> None:
    """They may repeat, so the index proves nothing of them; they have no place in the order either."""
    columns = "id VARCHAR(9) PRIMARY KEY" if place.engine.dialect.name == "sqlite" else "id VARCHAR(9) UNIQUE"
    place.run(f"CREATE TABLE items ({columns}, changed INT NOT NULL)")
    place.insert("items", [("a", 1), (None, 1), (None, 1)])
    with pytest.raises(SourceConfigurationError, match="rows with NULL in its cursor 'changed' or key"):
        place.source("id").fetch_changes({}, 1)


VIEW_OR_QUERY = pytest.mark.parametrize(
    "what", [{"table": "shown"}, {"query": "SELECT * FROM items"}], ids=["view", "query"]
)


def fill(place: Place, keys: list[str]) -> None:
    """Write rows of one moment under these keys, and a view over them, which has no keys of its own."""
    collation = {"sqlite": " COLLATE NOCASE", "mysql": " COLLATE utf8mb4_general_ci"}.get(place.engine.dialect.name, "")
    place.run(
        f"CREATE TABLE items (id INT PRIMARY KEY, code VARCHAR(9){collation} NOT NULL, changed INT NOT NULL)",
        "CREATE VIEW shown AS SELECT * FROM items",
    )
    place.insert("items", [(at, key, 7) for at, key in enumerate(keys)])


@VIEW_OR_QUERY
@pytest.mark.parametrize("limit", [1, 4])
def test_14_5_equal_keysets_across_a_page_are_refused_before_one_is_skipped(
    place: Place, what: dict[str, str], limit: int
) -> None:
    fill(place, ["a", "b", "c", *["d"] * 4, "e", "f", "g"])
    source = place.source("code", **what)
    seen: list[Any] = []
    with pytest.raises(SourceConfigurationError, match=r"'.*' have the same cursor and key \(changed, code\)"):
        delivered(source, limit, seen)
    assert seen == list(range(len(seen)))
    assert len(seen) <= 3


@VIEW_OR_QUERY
def test_14_5_keys_that_tell_rows_apart_bring_every_row_of_a_view_or_query(place: Place, what: dict[str, str]) -> None:
    fill(place, ["a", "b", "c", "d", "d", "e", "f", "g", "h", "i", "j"])
    assert delivered(place.source("code", "id", **what), 4) == list(range(11))


@VIEW_OR_QUERY
@pytest.mark.parametrize("database", ["sqlite_url", "mariadb_url"])
def test_14_5_texts_that_only_the_database_takes_for_equal_are_refused(
    database: str, what: dict[str, str], request: pytest.FixtureRequest
) -> None:
    with opened(request.getfixturevalue(database)) as place:
        fill(place, ["a", "b", "c", "C", "d"])
        source = place.source("code", **what)
        with pytest.raises(SourceConfigurationError, match="have the same cursor and key"):
            source.fetch_changes({}, 3)


def test_14_5_a_late_row_that_looks_like_a_delivered_one_is_refused(place: Place) -> None:
    fill(place, ["a", "b"])
    source = place.source("code", query="SELECT code, changed FROM items", lookback=3)
    first = source.fetch_changes({}, 10)
    place.insert("items", [(2, "b", 7)])
    with pytest.raises(SourceConfigurationError, match="have the same cursor and key"):
        source.fetch_changes(first.next_checkpoint or {}, 10)


TYPED_BY_THE_RESULT: dict[str, tuple[str, str, list[Any]]] = {
    "mariadb enum": ("mariadb_url", "ENUM('z', 'm', 'a')", ["z", "m", "a"]),
    "mariadb set": ("mariadb_url", "SET('b', 'a')", ["b", "a", "b,a"]),
    "mariadb bit": ("mariadb_url", "BIT(12)", [1, 40, 200, 256, 1000]),
    "mariadb float": ("mariadb_url", "FLOAT", [0.1, 0.2, 1.1, 3.3]),
    "mariadb double": ("mariadb_url", "DOUBLE", [0.1, 1 / 3, 1e300]),
    "mariadb time": ("mariadb_url", "TIME", ["-20:00:00", "06:00:00", "30:00:00"]),
    "postgresql real": ("postgres_url", "real", [0.1, 0.2, 3.3]),
    "postgresql interval": ("postgres_url", "interval", [timedelta(1), timedelta(29, 1), "1 mon", "1 year"]),
    "postgresql enum": ("postgres_url", "mood", ["sad", "ok", "happy"]),
    "sqlite real": ("sqlite_url", "REAL", [0.1, 1 / 3, 1e300]),
}


@pytest.mark.parametrize(("database", "declared", "values"), TYPED_BY_THE_RESULT.values(), ids=TYPED_BY_THE_RESULT)
def test_14_5_a_querys_cursor_and_key_are_compared_by_their_own_types(
    database: str, declared: str, values: list[Any], request: pytest.FixtureRequest
) -> None:
    with opened(request.getfixturevalue(database)) as place:
        if place.engine.dialect.name == "postgresql":
            place.run("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')")
        place.run(f"CREATE TABLE items (id INT PRIMARY KEY, v {declared} NOT NULL)")
        place.insert("items", [(2 * at + copy, value) for at, value in enumerate(values) for copy in (0, 1)])
        rows, query = list(range(2 * len(values))), "SELECT id, v, id % 2 AS half FROM items"
        by_half = [*rows[::2], *rows[1::2]]
        for limit in (1, 2, 3):
            assert delivered(place.source("id", cursor="v", query=query), limit) == rows
            assert delivered(place.source("v", cursor="half", query=query), limit) == by_half
