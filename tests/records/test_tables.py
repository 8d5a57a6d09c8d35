"""The tables in a database: what they promise beyond the suite that all tables pass (tests/engines/test_tables.py)."""

from __future__ import annotations

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.engine import Engine

from holdfast.core.errors import ConfigurationError, Conflict
from holdfast.core.migrations import migrate
from holdfast.records import audit
from holdfast.records.dead_letters import DeadLetters, LetterStatus
from holdfast.records.schema import MIGRATIONS
from holdfast.records.tables import SqlLetterTable
from tests.engines.tables import Tables, check_race_to_resolve
from tests.records.samples import add_letter, count, letter

RETRY_COLUMNS = ("retry_message_id", "retry_begun_at", "retry_begun_by")


class TestRetryingInOneTransaction:
    def test_the_message_and_the_letter_change_together(self, engine: Engine) -> None:
        letters, new = SqlLetterTable(engine), add_letter(engine)
        with letters.retrying("hmac", new.row_key, "eve", "m-2") as (connection, held):
            assert held.retry_message_id == "m-2"
            audit.record(connection, "queue", "enqueue", str(held.retry_message_id))
            assert held.original_message == new.original_message
        found = letters.get("hmac", new.row_key)
        assert found is not None
        assert (found.status, found.resolved_by, found.retried_as) == (LetterStatus.RESOLVED, "eve", "m-2")
        assert [row.action for row in audit.page(engine).items] == ["enqueue", "dlq retry"]

    def test_when_it_fails_nothing_has_happened(self, engine: Engine) -> None:
        letters, new = SqlLetterTable(engine), add_letter(engine)
        with pytest.raises(ValueError, match="queue is full"), letters.retrying("hmac", new.row_key, "eve", "m-2"):
            raise ValueError("queue is full")
        assert letters.get("hmac", new.row_key) == new
        assert count(engine, "holdfast_audit") == 0

    def test_what_another_began_is_finished_under_its_id(self, engine: Engine) -> None:
        letters, new = SqlLetterTable(engine), add_letter(engine)
        letters.begin_retry("hmac", new.row_key, "eve", "m-2")
        with letters.retrying("hmac", new.row_key, "bob", "m-3") as (_, held):
            assert held.retry_message_id == "m-2"
        found = letters.get("hmac", new.row_key)
        assert found is not None
        assert found.retried_as == "m-2"

    def test_it_happens_once(self, engine: Engine) -> None:
        letters, new = SqlLetterTable(engine), add_letter(engine)
        with letters.retrying("hmac", new.row_key, "eve", "m-2"):
            pass
        with (
            pytest.raises(Conflict, match=r"Resolved by eve \(Retried\)"),
            letters.retrying("hmac", new.row_key, "bob", "m-3"),
        ):
            raise AssertionError("not reached")


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
            DeadLetters(engine).page()
        assert migrate(engine, MIGRATIONS) == ["0005 engine records"]
        assert DeadLetters(engine).page().items == [old]
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
        assert DeadLetters(engine).page().items == [new]
