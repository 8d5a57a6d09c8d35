"""History: every field of the standard, aware times, pages that neither repeat nor skip, lookups that verify."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Engine

from holdfast.core.errors import ConfigurationError
from holdfast.records.database import reading
from holdfast.records.history import History, HistoryEntry, HistoryFilter, HistoryStatus, NewEntry
from holdfast.records.tables import SqlHistoryTable
from holdfast.records.times import database_now
from tests.records.samples import AMSTERDAM_NOON, NOON, add_entry, count


def the_page(engine: Engine, /, **wanted: Any) -> list[HistoryEntry]:
    return SqlHistoryTable(engine).page(HistoryFilter(**wanted)).items


def test_every_field_comes_back(engine: Engine) -> None:
    row_id = add_entry(
        engine,
        engine="jobs:email",
        instance_id="inst-1",
        operation="send",
        status=HistoryStatus.FAILED,
        duration_ms=2**40,
        input='{"to": "ü 🦀"}',
        output="null",
        error="no route",
        created_at=AMSTERDAM_NOON,
        correlation_id="order 7/a",
        item_id="job-7",
        attempt=3,
    )
    [entry] = the_page(engine)
    assert entry == HistoryEntry(
        id=row_id,
        engine="jobs:email",
        instance_id="inst-1",
        operation="send",
        status=HistoryStatus.FAILED,
        duration_ms=2**40,
        input='{"to": "ü 🦀"}',
        output="null",
        error="no route",
        created_at=NOON,
        correlation_id="order 7/a",
        item_id="job-7",
        attempt=3,
    )
    assert entry.created_at.tzinfo is UTC
    assert entry.row_key == f"order 7~2Fa-20260301T120000123456Z-{row_id}"


def test_an_entry_without_a_time_gets_the_databases(engine: Engine) -> None:
    with reading(engine) as connection:
        before = database_now(connection)
    add_entry(engine)
    with reading(engine) as connection:
        after = database_now(connection)
    [entry] = the_page(engine)
    assert before <= entry.created_at <= after
    assert entry.instance_id == "publisher"


def test_an_entry_counts_with_the_callers_transaction(engine: Engine) -> None:
    with engine.connect() as connection:
        History(engine).add(
            connection,
            NewEntry(
                engine="hmac", operation="rotate", status=HistoryStatus.SUCCEEDED, duration_ms=1, correlation_id="c"
            ),
        )
        connection.rollback()
    assert count(engine, "holdfast_history") == 0


@pytest.mark.parametrize(
    ("differences", "part"),
    [
        ({"correlation_id": "c" * 201}, "200 are the most"),
        ({"correlation_id": ""}, "is empty"),
        ({"engine": "e" * 151}, "150 are the most"),
        ({"created_at": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the point
    ],
    ids=["long id", "no id", "long engine", "naive time"],
)
def test_what_does_not_fit_is_refused_alike_everywhere(engine: Engine, differences: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        add_entry(engine, **differences)
    assert count(engine, "holdfast_history") == 0


def test_one_entry_by_its_key(engine: Engine) -> None:
    add_entry(engine, correlation_id="a/b")
    add_entry(engine, correlation_id="a/b")
    history = SqlHistoryTable(engine)
    [newer, older] = the_page(engine)
    assert history.get("hmac", newer.row_key) == newer
    assert history.get("hmac", older.row_key) == older
    assert history.get("tls", newer.row_key) is None
    assert history.get("hmac", newer.row_key.replace("a~2Fb", "a")) is None
    assert history.get("hmac", newer.row_key.rpartition("-")[0] + f"-{older.id}") in (None, older)
    assert history.get("hmac", newer.row_key + "9") is None


def test_pages_neither_repeat_nor_skip_while_rows_are_added(engine: Engine) -> None:
    ids = [add_entry(engine) for _ in range(5)]
    history, seen, after = SqlHistoryTable(engine), list[int](), None
    for _ in range(3):
        page = history.page(limit=2, after=after)
        seen += [entry.id for entry in page.items]
        after = page.continuation_token
        add_entry(engine)
    assert seen == ids[::-1]
    assert after is None


def test_a_page_of_exactly_what_there_is_has_no_token(engine: Engine) -> None:
    add_entry(engine)
    assert SqlHistoryTable(engine).page(limit=1).continuation_token is None


def test_filters(engine: Engine) -> None:
    one = add_entry(engine, created_at=NOON, instance_id="i-1", operation="notify")
    two = add_entry(
        engine,
        engine="tls",
        status=HistoryStatus.FAILED,
        error="Disk 100% full_",
        correlation_id="c-2",
        created_at=NOON + timedelta(hours=1),
    )

    def found(**wanted: Any) -> list[int]:
        return [entry.id for entry in the_page(engine, **wanted)]

    assert found() == [two, one]
    assert found(engine="tls") == [two]
    assert found(status=HistoryStatus.SUCCEEDED) == [one]
    assert found(instance_id="i-1") == [one]
    assert found(operation="notify") == [one]
    assert found(correlation_id="c-2") == [two]
    assert found(correlation_id="C-2") == []
    assert found(since=NOON + timedelta(microseconds=1)) == [two]
    assert found(since=NOON, until=NOON + timedelta(hours=1)) == [one]
    assert found(error="disk 100% full_") == [two]
    assert found(error="disk%full") == []
    assert found(error="Disk 100_") == []


def test_the_attempts_of_an_item_are_found_by_either_name(engine: Engine) -> None:
    by_own_name = add_entry(engine, correlation_id="job-7", item_id="job-7", attempt=1)
    by_other_name = add_entry(engine, correlation_id="order-1", item_id="job-7", attempt=2)
    add_entry(engine, correlation_id="job-7", item_id="job-8")
    add_entry(engine, correlation_id="job-7")
    assert [entry.id for entry in History(engine).of_item("job-7")] == [by_own_name, by_other_name]


@pytest.mark.parametrize("engine", ["postgres_url"], indirect=True)
def test_an_item_is_found_by_index(engine: Engine) -> None:
    """The index is partial on PostgreSQL, so the query must say what the index says."""
    asked = list[tuple[str, Any]]()
    with engine.connect() as connection:
        connection.exec_driver_sql("SET enable_seqscan = off")
        event.listen(connection, "before_cursor_execute", lambda *call: asked.append((call[2], call[3])))
        History(engine).of_item("job-7", connection)
        [(query, values)] = asked
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {query}", values).scalars())
    assert "holdfast_history_correlation" in plan
    assert "holdfast_history_item" in plan


@pytest.mark.parametrize("limit", [0, -1, 101])
def test_a_wrong_limit_is_refused(engine: Engine, limit: int) -> None:
    with pytest.raises(ConfigurationError, match="between 1 and 100"):
        SqlHistoryTable(engine).page(limit=limit)


@pytest.mark.parametrize("token", ["", "x", "!!!", "WyJqb2JzIiw3XQ", "WyJoaXN0b3J5IiwiNyJd", "ü", "W" * 5000])
def test_a_wrong_token_is_refused(engine: Engine, token: str) -> None:
    with pytest.raises(ConfigurationError, match="not a continuation token of the history"):
        SqlHistoryTable(engine).page(after=token)


def test_missing_tables_are_one_sentence(empty_engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="'holdfast migrate'"):
        SqlHistoryTable(empty_engine).page()


def test_a_status_of_a_newer_version_is_one_sentence(engine: Engine) -> None:
    add_entry(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE holdfast_history SET status = 'Postponed'"))
    with pytest.raises(ConfigurationError, match="newer version"):
        the_page(engine)
