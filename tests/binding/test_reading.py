"""Reading: by primary key, by query, one row, one value, and streams that do not hold what they yield."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from holdfast import ConfigurationError, DbConfig, DbConnectionError, DbReader, QueryError
from tests.binding.databases import Database

PEOPLE = "CREATE TABLE people (id integer PRIMARY KEY, name varchar(40) NOT NULL)"


@pytest.fixture
def people(database: Database) -> Database:
    database.execute(PEOPLE)
    database.execute("INSERT INTO people (id, name) VALUES (1, 'Ada'), (2, 'Grace'), (3, 'Edsger')")
    return database


def test_get_returns_the_row_or_none(people: Database) -> None:
    with people.reader("people") as reader:
        assert reader.get(pk={"id": 2}) == {"id": 2, "name": "Grace"}
        assert reader.get(pk={"id": 99}) is None


def test_get_by_a_composite_key_takes_its_parts_in_any_order(database: Database) -> None:
    database.execute(
        "CREATE TABLE order_lines (order_id integer, line_no integer, item text, PRIMARY KEY (order_id, line_no))"
    )
    database.execute("INSERT INTO order_lines VALUES (1, 1, 'nut'), (1, 2, 'bolt'), (2, 1, 'gear')")
    reader = database.reader("order_lines")
    assert reader.get(pk={"line_no": 2, "order_id": 1}) == {"order_id": 1, "line_no": 2, "item": "bolt"}
    assert reader.get(pk={"order_id": 2, "line_no": 2}) is None


def test_a_schema_names_which_of_two_tables(postgres: Database) -> None:
    for schema in ("north", "south"):
        postgres.execute(f"CREATE SCHEMA {schema}")
        postgres.execute(f"CREATE TABLE {schema}.sites (id integer PRIMARY KEY, place text)")
        postgres.writer("sites", schema=schema).insert(data={"id": 1, "place": schema})
    assert postgres.reader("sites", schema="south").get(pk={"id": 1}) == {"id": 1, "place": "south"}
    assert postgres.rows("SELECT place FROM north.sites") == [("north",)]


def test_a_schema_of_mariadb_is_another_database(mariadb: Database) -> None:
    mariadb.execute("CREATE DATABASE IF NOT EXISTS elsewhere")
    try:
        mariadb.execute("CREATE TABLE elsewhere.sites (id integer PRIMARY KEY)")
        mariadb.writer("sites", schema="elsewhere").insert(data={"id": 7})
        assert mariadb.reader("sites", schema="elsewhere").get(pk={"id": 7}) == {"id": 7}
    finally:
        mariadb.execute("DROP DATABASE elsewhere")


def test_query_returns_all_rows_with_parameters_or_without(people: Database) -> None:
    reader = people.reader()
    assert reader.query("SELECT name FROM people ORDER BY id") == [
        {"name": "Ada"},
        {"name": "Grace"},
        {"name": "Edsger"},
    ]
    assert reader.query("SELECT id FROM people WHERE name = :name", params={"name": "Ada"}) == [{"id": 1}]
    assert reader.query("SELECT id FROM people WHERE id < 0") == []


def test_a_parameter_is_never_part_of_the_statement(people: Database) -> None:
    hostile = "Ada'; DROP TABLE people; --"
    assert people.reader().query("SELECT id FROM people WHERE name = :name", params={"name": hostile}) == []
    assert people.value("SELECT count(*) FROM people") == 3


def test_one_and_one_or_none_insist_on_their_number(people: Database) -> None:
    reader = people.reader()
    one, several, none = ("SELECT id FROM people WHERE id " + rest for rest in ("= 1", "> 1", "< 0"))
    assert reader.one(one) == {"id": 1}
    assert reader.one_or_none(one) == {"id": 1}
    assert reader.one_or_none(none) is None
    with pytest.raises(QueryError, match=r"found no row\. Use one_or_none"):
        reader.one(none)
    for read in (reader.one, reader.one_or_none, reader.scalar):
        with pytest.raises(QueryError, match=r"more than one row .* Narrow it, or use query"):
            read(several)


def test_scalar_is_the_first_column_of_the_one_row(people: Database) -> None:
    reader = people.reader()
    assert reader.scalar("SELECT count(*), 'ignored' FROM people") == 3
    assert reader.scalar("SELECT id FROM people WHERE id < 0") is None
    assert reader.scalar("SELECT NULL AS missing") is None


def test_a_stream_yields_every_row_in_order(database: Database) -> None:
    database.execute("CREATE TABLE numbers (n integer PRIMARY KEY)")
    database.writer("numbers").insert_many(rows=[{"n": n} for n in range(2500)])
    with database.reader() as reader:
        streamed = [
            row["n"] for row in reader.stream("SELECT n FROM numbers WHERE n >= :low ORDER BY n", params={"low": 5})
        ]
        assert streamed == list(range(5, 2500))
        assert [row["n"] for row in reader.stream("SELECT n FROM numbers ORDER BY n", chunk_size=1)] == list(
            range(2500)
        )


def test_a_stream_on_postgres_reads_no_further_than_its_chunk(postgres: Database) -> None:
    """The sequence counts the rows the server has made."""
    postgres.execute("CREATE SEQUENCE made")
    rows = postgres.reader().stream("SELECT nextval('made') AS n FROM generate_series(1, 100000)", chunk_size=100)
    assert [next(rows)["n"] for _ in range(150)] == list(range(1, 151))
    assert postgres.value("SELECT last_value FROM made") <= 400
    rows.close()


def test_a_stream_on_sqlite_reads_no_further_than_its_chunk(sqlite: Database) -> None:
    """The query has no end: whoever wants all of it never comes back."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    rows = sqlite.reader().stream(endless, chunk_size=100)
    assert [next(rows)["i"] for _ in range(150)] == list(range(1, 151))
    rows.close()


def test_a_stream_on_mariadb_reads_no_further_than_its_chunk(mariadb: Database) -> None:
    cursors: list[Any] = []
    event.listen(mariadb.engine, "after_cursor_execute", lambda _connection, cursor, *_: cursors.append(cursor))
    rows = mariadb.reader().stream("SELECT seq FROM seq_1_to_100000", chunk_size=100)
    assert [next(rows)["seq"] for _ in range(150)] == list(range(1, 151))
    assert cursors[-1].rownumber <= 400
    rows.close()


def test_a_stream_holds_a_connection_until_its_end(people: Database) -> None:
    reader = people.reader()
    rows = reader.stream("SELECT id FROM people")
    assert people.connections_in_use == 0, "nothing is opened before the first row is asked for"
    next(rows)
    assert people.connections_in_use == 1
    list(rows)
    assert people.connections_in_use == 0


def test_a_stream_left_early_gives_its_connection_back(people: Database) -> None:
    reader = people.reader()

    def first() -> object:
        for row in reader.stream("SELECT id FROM people ORDER BY id"):
            return row
        return None

    assert first() == {"id": 1}
    gc.collect()
    assert people.connections_in_use == 0


def test_closing_the_reader_ends_its_streams(people: Database) -> None:
    with people.reader() as reader:
        rows = reader.stream("SELECT id FROM people")
        next(rows)
    assert people.connections_in_use == 0
    assert list(rows) == []


def test_a_stream_that_breaks_off_in_the_middle_is_a_query_error(postgres: Database) -> None:
    rows = postgres.reader().stream("SELECT 1 / (500 - i) AS x FROM generate_series(1, 1000) AS i", chunk_size=10)
    with pytest.raises(QueryError, match="division by zero"):
        list(rows)
    assert postgres.connections_in_use == 0


def test_a_reader_without_provider_has_an_engine_of_its_own_and_closes_it(people: Database) -> None:
    reader = people.reader("people", engine_provider=None)
    assert reader.get(pk={"id": 1}) == {"id": 1, "name": "Ada"}
    reader.close()
    assert reader._own_engine is None
    reader.close()
    assert reader.query("SELECT count(*) AS n FROM people") == [{"n": 3}], "a closed reader opens again when used"
    reader.close()


def test_readers_of_one_provider_share_its_pool(people: Database) -> None:
    for _ in range(20):
        with people.reader("people") as reader:
            reader.get(pk={"id": 1})
    assert people.engine.pool.checkedin() == 1  # type: ignore[attr-defined]  # a QueuePool has it


def test_a_database_url_may_come_from_the_environment(people: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEOPLE_DB", people.url)
    with DbReader(url="%PEOPLE_DB%", table="people") as reader:
        assert reader.get(pk={"id": 3}) == {"id": 3, "name": "Edsger"}
    with DbReader(db_config=DbConfig(connection_url="%PEOPLE_DB%", pool_size=1), table="people") as reader:
        assert reader.get(pk={"id": 3}) == {"id": 3, "name": "Edsger"}


@pytest.fixture
def unreachable(request: pytest.FixtureRequest) -> Iterator[DbReader]:
    reader = DbReader(url=f"{request.param}://app:s3cret@127.0.0.1:1/shop", table="people")
    yield reader
    reader.close()


@pytest.mark.parametrize("unreachable", ["postgresql", "mysql"], indirect=True)
def test_a_database_that_does_not_answer_is_a_connection_error_without_its_password(unreachable: DbReader) -> None:
    for read in (lambda: unreachable.get(pk={"id": 1}), lambda: unreachable.query("SELECT 1")):
        with pytest.raises(DbConnectionError, match=r"127\.0\.0\.1:1") as caught:
            read()
        assert "s3cret" not in str(caught.value)


def test_an_exhausted_pool_says_what_to_do(people: Database) -> None:
    config = DbConfig(connection_url=people.url, pool_size=1, engine_kwargs={"max_overflow": 0, "pool_timeout": 0.01})
    with DbReader(db_config=config) as reader:
        rows = reader.stream("SELECT id FROM people")
        next(rows)
        with pytest.raises(DbConnectionError, match=r"No free connection .* raise pool_size"):
            reader.query("SELECT 1")


@pytest.mark.parametrize(
    ("sql", "params", "said"),
    [
        ("SELECT * FROM nowhere", None, "nowhere"),
        ("SELECT nothing FROM people", None, "nothing"),
        ("SELEC 1", None, "SELEC"),
        ("SELECT :x AS x", None, "bind parameter 'x'"),
        ("DELETE FROM people", None, ""),
        ("SELECT id FROM people WHERE name = :x", {"x": "\ud800"}, "surrogates not allowed"),
    ],
    ids=["table", "column", "syntax", "parameter missing", "no rows", "half a character"],
)
def test_a_query_that_fails_is_one_sentence(people: Database, sql: str, params: dict[str, object], said: str) -> None:
    reader = people.reader()
    for read in (
        reader.query,
        reader.one,
        reader.scalar,
        lambda text, params: list(reader.stream(text, params=params)),
    ):
        with pytest.raises(QueryError, match=r"^The query failed: .*\.$") as caught:
            read(sql, params=params)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_get_needs_a_table_and_the_whole_key(people: Database) -> None:
    people.execute("CREATE TABLE keyless (a integer)")
    with pytest.raises(ConfigurationError, match="has no table: pass table"):
        people.reader().get(pk={"id": 1})
    with pytest.raises(ConfigurationError, match=r"Table 'nowhere' not found .* Tables there: keyless, people"):
        people.reader("nowhere").get(pk={"id": 1})
    with pytest.raises(ConfigurationError, match=r"'keyless' has no primary key.*Use query"):
        people.reader("keyless").get(pk={"a": 1})
    keys: list[tuple[dict[str, object], str]] = [
        ({}, r"\(\)"),
        ({"name": "Ada"}, "name"),
        ({"id": 1, "name": "Ada"}, "id, name"),
    ]
    for pk, shown in keys:
        with pytest.raises(ConfigurationError, match=rf"The primary key of 'people' is \(id\), but pk has \(?{shown}"):
            people.reader("people").get(pk=pk)
    for wrong in (None, 7, [("id", 1)]):
        with pytest.raises(ConfigurationError, match="pk must be a dict of columns and their values, not"):
            people.reader("people").get(pk=wrong)  # type: ignore[arg-type]  # what a caller without types may do


def test_get_refuses_to_choose_between_rows_of_one_key(sqlite: Database) -> None:
    """SQLite takes NULL in a primary key, any number of times."""
    sqlite.execute("CREATE TABLE tags (name TEXT PRIMARY KEY, note TEXT)")
    sqlite.execute("INSERT INTO tags VALUES (NULL, 'a'), (NULL, 'b')")
    with pytest.raises(QueryError, match="More than one row of 'tags'"):
        sqlite.reader("tags").get(pk={"name": None})


@pytest.mark.parametrize("chunk_size", [0, -1])
def test_a_stream_in_chunks_of_nothing_is_refused(sqlite: Database, chunk_size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"chunk_size must be at least 1, not {chunk_size}"):
        sqlite.reader().stream("SELECT 1", chunk_size=chunk_size)


def test_url_and_db_config_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="mutually exclusive"):
        DbReader(url="sqlite:///x.db", db_config=DbConfig(connection_url="sqlite:///x.db"))
    with pytest.raises(ConfigurationError, match="exactly one of url or db_config"):
        DbReader()
    with pytest.raises(ConfigurationError, match="url must not be empty"):
        DbReader(url="")
    with pytest.raises(ConfigurationError, match="table must not be empty"):
        DbReader(url="sqlite:///x.db", table="")
    with pytest.raises(ConfigurationError, match="'NO_SUCH_DB' is not set"):
        DbReader(url="%NO_SUCH_DB%")


def test_no_repr_shows_a_password() -> None:
    assert "s3cret" not in repr(DbReader(url="postgresql://app:s3cret@db/shop", table="t"))
    assert "s3cret" not in repr(DbReader(url="postgresql://app:s3cret@db:not-a-port/shop"))


READS: dict[str, Callable[[DbReader, str], object]] = {
    "query": lambda reader, sql: reader.query(sql),
    "one": lambda reader, sql: reader.one(sql),
    "one_or_none": lambda reader, sql: reader.one_or_none(sql),
    "scalar": lambda reader, sql: reader.scalar(sql),
    "stream": lambda reader, sql: list(reader.stream(sql)),
}


@pytest.mark.parametrize("read", READS)
def test_a_write_that_raises_is_rolled_back(people: Database, read: str) -> None:
    """Whoever is told that it failed would do it again."""
    with pytest.raises(QueryError) as caught:
        READS[read](people.reader(), "UPDATE people SET name = 'Nobody'")
    if read != "stream" or people.kind != "postgresql":  # which has cursors for queries only, and says so itself
        assert "this statement returns no rows" in str(caught.value)
        assert "use DbWriter to write" in str(caught.value)
    assert people.value("SELECT count(*) FROM people WHERE name = 'Nobody'") == 0


@pytest.mark.parametrize("read", ["one", "one_or_none", "scalar"])
def test_a_write_that_meets_too_many_rows_is_rolled_back(people: Database, read: str) -> None:
    statement = "UPDATE people SET name = 'Nobody' RETURNING id"
    if people.kind == "mysql":  # it has RETURNING for DELETE only
        statement = "DELETE FROM people RETURNING id"
    with pytest.raises(QueryError, match="more than one row"):
        READS[read](people.reader(), statement)
    assert people.value("SELECT count(*) FROM people WHERE name <> 'Nobody'") == 3


def test_a_write_that_returns_what_was_asked_for_is_kept(people: Database) -> None:
    assert people.reader().one("DELETE FROM people WHERE id = 1 RETURNING id") == {"id": 1}
    assert people.value("SELECT count(*) FROM people") == 2


@pytest.mark.parametrize("read", READS)
def test_a_second_statement_is_not_run_behind_the_first(people: Database, read: str) -> None:
    with pytest.raises(QueryError, match="The query failed"):
        READS[read](people.reader(), "SELECT 1 AS a; DELETE FROM people")
    assert people.value("SELECT count(*) FROM people") == 3


def test_params_that_are_no_dict_and_a_missing_one_are_told_in_plain_words(people: Database) -> None:
    with pytest.raises(ConfigurationError, match="params must be a dict of columns and their values, not list"):
        people.reader().query("SELECT 1", params=[1])  # type: ignore[arg-type]  # what the test is about
    with pytest.raises(QueryError, match=r"A value is required for bind parameter 'x'\.$"):
        people.reader().query("SELECT :x AS x")
