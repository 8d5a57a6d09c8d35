"""Settings that are wrong are told by name, in words, before anything is done; secrets and rows stay out of texts."""

from __future__ import annotations

import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy.exc import SAWarning

from holdfast import ConfigurationError, DbConfig, DbReader, DbWriter, EngineProvider, WriteError
from holdfast.core.errors import SourceConfigurationError
from holdfast.database.reflection import reflect_table
from tests.binding.databases import Database


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"db_config": "sqlite://"}, "db_config must be a DbConfig, not str. Pass a URL as url="),
        ({"url": "sqlite://", "engine_provider": "x"}, "engine_provider must be an EngineProvider, not str"),
        ({"url": 5}, "url must be text, not int"),
    ],
)
def test_a_wrong_kind_of_setting_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        DbReader(**settings)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "Environment variable 'SHOP_URL' is empty"),
        ("sqlite:///shop.db\n", "'SHOP_URL', which the database URL refers to, begins or ends with white space"),
        ("no url at all: s3cret", r"cannot be parsed\. .* It comes from %SHOP_URL%\."),
    ],
)
def test_a_url_that_cannot_be_read_names_its_setting(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    monkeypatch.setenv("SHOP_URL", value)
    with pytest.raises(ConfigurationError, match=said) as caught:
        DbReader(url="%SHOP_URL%")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=said):
        EngineProvider().get_engine(DbConfig(connection_url="%SHOP_URL%"))


@pytest.mark.parametrize("written", ["%SHOP_URL", "SHOP_URL%"])
def test_half_a_reference_is_recognised(written: str) -> None:
    with pytest.raises(ConfigurationError, match="write it as %SHOP_URL%"):
        DbReader(url=written).query("SELECT 1")


def test_an_unknown_database_is_told_all_that_are_known() -> None:
    with pytest.raises(ConfigurationError, match=r"Use sqlite, .*mssql\+pyodbc"):
        EngineProvider().get_engine(DbConfig(connection_url="strange://"))


def test_a_schema_inside_the_table_name_is_explained(postgres: Database) -> None:
    postgres.execute("CREATE TABLE people (id integer PRIMARY KEY)")
    with pytest.raises(ConfigurationError, match="write table='people', schema='public'"):
        postgres.reader("public.people").get(pk={"id": 1})


def test_a_table_is_found_under_another_case_on_sqlite(sqlite: Database) -> None:
    sqlite.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT)")
    sqlite.execute("INSERT INTO people VALUES (1, 'Ada')")
    assert sqlite.reader("People").get(pk={"id": 1}) == {"id": 1, "name": "Ada"}
    sqlite.writer("PEOPLE").update(data={"name": "Grace"}, pk={"id": 1})
    sqlite.execute("ALTER TABLE people ADD COLUMN born INTEGER")
    sqlite.writer("PEOPLE").update(data={"born": 1906}, pk={"id": 1})
    assert sqlite.rows("SELECT * FROM people") == [(1, "Grace", 1906)]


def test_a_failed_delete_reads_like_one(postgres: Database) -> None:
    postgres.execute("CREATE TABLE heads (id integer PRIMARY KEY)")
    postgres.execute("CREATE TABLE tails (head integer REFERENCES heads)")
    postgres.execute("INSERT INTO heads VALUES (1)")
    postgres.execute("INSERT INTO tails VALUES (1)")
    with pytest.raises(WriteError, match=r"^The delete from 'heads' failed: "):
        postgres.writer("heads").delete(pk={"id": 1})


def test_the_traceback_of_a_failed_write_does_not_hold_the_row(database: Database) -> None:
    database.execute("CREATE TABLE people (id integer PRIMARY KEY, name varchar(40))")
    writer = database.writer("people")
    row: dict[str, object] = {"id": 1, "name": "Augusta"}
    writer.insert(data=row)
    with pytest.raises(WriteError) as caught:
        writer.insert(data=row)
    assert "Augusta" not in "".join(traceback.format_exception(caught.value))


def test_parameters_can_be_shown_on_request(sqlite: Database) -> None:
    sqlite.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT)")
    config = DbConfig(connection_url=sqlite.url, engine_kwargs={"hide_parameters": False})
    with DbWriter(db_config=config, table="people") as writer:
        writer.insert(data={"id": 1, "name": "Ada"})
        with pytest.raises(WriteError) as caught:
            writer.insert(data={"id": 1, "name": "Augusta"})
    assert "Augusta" in str(caught.value.__cause__)


def test_looking_tables_up_leaves_the_filters_of_the_process_alone(postgres: Database) -> None:
    """``catch_warnings`` in several threads at once would leave those of another moment behind."""
    postgres.execute("CREATE TABLE places (id integer PRIMARY KEY, at pg_lsn)")

    def look(_: int) -> str:
        return repr(reflect_table(postgres.engine, "places", None, SourceConfigurationError).c.at.type)

    warnings.filterwarnings("error", category=SAWarning)
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(look, range(40))) == {"NamedType('pg_lsn')"}
    added = [each for each in warnings.filters if each not in before]
    assert [each[2] for each in added] in ([], [SAWarning])
    assert [each for each in warnings.filters if each not in added] == before
    with pytest.raises(SAWarning):
        warnings.warn("one of somebody else", SAWarning, stacklevel=1)
