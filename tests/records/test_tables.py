"""The tables in a database: what they promise beyond the suite that all tables pass (tests/engines/test_tables.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, inspect, text
from sqlalchemy.engine import Engine

from bench.dead_letters import fill, letter_filters
from holdfast.core.errors import ConfigurationError
from holdfast.database.migrations import migrate
from holdfast.records import audit
from holdfast.records.dead_letters import LetterFilter, LetterStatus
from holdfast.records.schema import MIGRATIONS
from holdfast.records.tables import SqlLetterTable
from tests.components.postgres import PostgresServer
from tests.engines.tables import Tables, at_once, check_race_to_resolve, migrated_engine
from tests.records.samples import add_letter, letter

RETRY_COLUMNS = ("retry_message_id", "retry_begun_at", "retry_begun_by")


def test_a_retry_is_audited_when_it_is_begun(engine: Engine) -> None:
    letters, new = SqlLetterTable(engine), add_letter(engine)
    letters.begin_retry("hmac", new.row_key, "eve", "m-2")
    letters.begin_retry("hmac", new.row_key, "bob", "m-3")
    letters.finish_retry("hmac", new.row_key, "m-2")
    [row] = audit.page(engine).items
    assert (row.actor, row.action, row.target) == ("eve", "dlq retry", f"hmac/{new.row_key}")
    assert row.details == {"retried_as": "m-2"}


def test_without_the_look_at_the_status_both_would_win(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug for the race of two people: the check must see it."""
    add_letter(engine)
    monkeypatch.setattr("holdfast.records.dead_letters.is_pending", lambda letter: True)
    with pytest.raises(AssertionError, match="2 of two won"):
        check_race_to_resolve(Tables(SqlLetterTable(engine), history=None), letter())  # type: ignore[arg-type] # letters alone


class TestMigration:
    def test_tables_of_the_version_before_get_the_new_columns(self, engine: Engine) -> None:
        old = add_letter(engine)
        with engine.begin() as connection:
            for column in RETRY_COLUMNS:
                connection.execute(text(f"ALTER TABLE holdfast_dead_letters DROP COLUMN {column}"))
            connection.execute(text("DELETE FROM holdfast_migrations WHERE number = 5"))
        with pytest.raises(ConfigurationError, match="'holdfast migrate'"):
            SqlLetterTable(engine).page()
        assert migrate(engine, MIGRATIONS) == ["0005 engine records"]
        assert SqlLetterTable(engine).page().items == [old]
        assert SqlLetterTable(engine).begin_retry("hmac", old.row_key, "eve", "m-2").retry_message_id == "m-2"

    def test_it_may_be_done_again_and_goes_on_where_it_stopped(self, engine: Engine) -> None:
        """MariaDB cannot undo half of it."""
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE holdfast_dead_letters DROP COLUMN retry_begun_by"))
            connection.execute(text("DELETE FROM holdfast_migrations WHERE number = 5"))
        assert migrate(engine, MIGRATIONS) == ["0005 engine records"]
        assert migrate(engine, MIGRATIONS) == []
        columns = {column["name"]: column for column in inspect(engine).get_columns("holdfast_dead_letters")}
        assert all(columns[name]["nullable"] for name in RETRY_COLUMNS)

    def test_workers_of_the_version_before_go_on_writing(self, engine: Engine) -> None:
        """They name the columns that they know."""
        new = letter()
        values = {
            "engine": new.engine,
            "row_key": new.row_key,
            "instance_id": new.instance_id,
            "original_queue": new.original_queue,
            "original_message": new.original_message,
            "error_message": new.error_message,
            "dequeue_count": new.dequeue_count,
            "status": "Pending",
            "correlation_id": new.correlation_id,
            "item_id": new.item_id,
        }
        times = {"first_failure_at": new.first_failure_at, "last_failure_at": new.last_failure_at}
        if engine.dialect.name != "postgresql":
            times = {name: moment.replace(tzinfo=None) for name, moment in times.items()}
        names = ", ".join([*values, *times])
        places = ", ".join(f":{name}" for name in [*values, *times])
        with engine.begin() as connection:
            connection.execute(
                text(f"INSERT INTO holdfast_dead_letters ({names}) VALUES ({places})"), {**values, **times}
            )
        assert SqlLetterTable(engine).page().items == [new]


LISTING_INDEXES = {
    "holdfast_dead_letters_failure",
    "holdfast_dead_letters_engine",
    "holdfast_dead_letters_engine_status",
    "holdfast_dead_letters_instance",
    "holdfast_dead_letters_instance_status",
}


def listing_indexes(engine: Engine) -> set[str]:
    return LISTING_INDEXES & {str(index["name"]) for index in inspect(engine).get_indexes("holdfast_dead_letters")}


def without_indexes(engine: Engine, names: Iterable[str]) -> None:
    """Make the tables those of the version before, or of a migration that was broken off."""
    on_table = " ON holdfast_dead_letters" if engine.dialect.name in ("mysql", "mariadb") else ""
    with engine.begin() as connection:
        for name in names:
            connection.execute(text(f"DROP INDEX {name}{on_table}"))
        connection.execute(text("DELETE FROM holdfast_migrations WHERE number = 6"))


class TestMigrationOfListings:
    def test_new_tables_have_the_indexes(self, engine: Engine) -> None:
        assert listing_indexes(engine) == LISTING_INDEXES

    def test_tables_of_the_version_before_get_them(self, engine: Engine) -> None:
        old = add_letter(engine)
        without_indexes(engine, LISTING_INDEXES)
        assert listing_indexes(engine) == set()
        assert SqlLetterTable(engine).page().items == [old]
        assert migrate(engine, MIGRATIONS) == ["0006 listings"]
        assert listing_indexes(engine) == LISTING_INDEXES
        assert SqlLetterTable(engine).page().items == [old]

    def test_it_goes_on_where_it_stopped(self, engine: Engine) -> None:
        """MariaDB cannot undo half of it."""
        without_indexes(engine, sorted(LISTING_INDEXES)[2:])
        assert migrate(engine, MIGRATIONS) == ["0006 listings"]
        assert migrate(engine, MIGRATIONS) == []
        assert listing_indexes(engine) == LISTING_INDEXES

    def test_letters_are_added_and_settled_meanwhile(self, engine: Engine) -> None:
        letters = SqlLetterTable(engine)

        def work(name: str) -> list[str]:
            for number in range(20):
                new = letter(item=f"{name}-{number}")
                assert letters.add(new)
                letters.resolve(new.engine, new.row_key, "done", name)
            return []

        without_indexes(engine, LISTING_INDEXES)
        done = at_once([partial(work, "anne"), partial(work, "bert"), partial(migrate, engine, MIGRATIONS)])
        assert sorted(map(str, done)) == ["['0006 listings']", "[]", "[]"]
        assert listing_indexes(engine) == LISTING_INDEXES
        assert letters.count(LetterFilter(status=LetterStatus.RESOLVED)) == 40


@pytest.fixture(scope="module")
def small_and_large(postgres_server: PostgresServer) -> Iterator[list[Engine]]:
    """Two databases with letters of the same spread, one with twenty times as many."""
    names = [postgres_server.create_database() for _ in range(2)]
    with ExitStack() as stack:
        engines = [stack.enter_context(migrated_engine(postgres_server.url(name))) for name in names]
        for name, size in zip(names, (10_000, 200_000), strict=True):
            fill(postgres_server.dsn(name), size)
        yield engines


@pytest.mark.parametrize("name", letter_filters())
def test_a_listing_looks_at_as_few_letters_in_a_large_table(small_and_large: list[Engine], name: str) -> None:
    """The benchmark measures what that means in time, and on more letters. A full page may be more than a small one."""
    small, large = (looked_at(engine, letter_filters()[name]) for engine in small_and_large)
    assert large <= 2 * small + 80


def looked_at(engine: Engine, wanted: LetterFilter) -> int:
    """Return how many letters are read for a page."""
    asked = list[tuple[str, Any]]()
    note = lambda *call: asked.append((call[2], call[3]))  # noqa: E731 - it is removed again
    event.listen(engine, "before_cursor_execute", note)
    SqlLetterTable(engine).page(wanted)
    event.remove(engine, "before_cursor_execute", note)
    [(query, values)] = asked
    with engine.connect() as connection:
        [told] = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", values).scalar_one()
    return rows_looked_at(told["Plan"])


def rows_looked_at(plan: dict[str, Any]) -> int:
    """Return how many rows of the table a plan has read to keep or to drop."""
    below = plan.get("Plans", [])
    if below and "Heap" not in plan["Node Type"]:
        return sum(map(rows_looked_at, below))
    dropped = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
    return int((plan["Actual Rows"] + dropped) * plan["Actual Loops"])
