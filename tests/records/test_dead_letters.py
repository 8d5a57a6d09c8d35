"""Dead letters: every field of the standard, one row per letter, each settled once, with who did it."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast.core.errors import ConfigurationError, Conflict, NotFoundError
from holdfast.records import audit
from holdfast.records.database import changing, reading
from holdfast.records.dead_letters import DeadLetter, DeadLetters, LetterFilter, LetterStatus
from holdfast.records.tables import SqlLetterTable
from holdfast.records.times import database_now
from tests.records.samples import AMSTERDAM_NOON, NOON, add_letter, count, days_ago, letter


def the_page(engine: Engine, /, **wanted: Any) -> list[DeadLetter]:
    return SqlLetterTable(engine).page(LetterFilter(**wanted)).items


def test_every_field_comes_back(engine: Engine) -> None:
    new = DeadLetter(
        engine="jobs:email",
        row_key="job-7-20260301T120000123456Z",
        instance_id="inst-1",
        original_queue="email",
        original_message='{"to": "ü 🦀"}',
        error_message="no route\nto host",
        dequeue_count=3,
        first_failure_at=AMSTERDAM_NOON - timedelta(days=1),
        last_failure_at=AMSTERDAM_NOON,
        status=LetterStatus.RESOLVED,
        resolution_notes="Retried",
        resolved_at=AMSTERDAM_NOON,
        resolved_by="eve",
        correlation_id="order 7/a",
        item_id="job-7",
        retried_as="job-7",
    )
    with changing(engine) as connection:
        assert DeadLetters(engine).add(connection, new)
    found = DeadLetters(engine).get("jobs:email", "job-7-20260301T120000123456Z")
    assert found == new
    assert found.last_failure_at.isoformat() == NOON.isoformat()
    assert DeadLetters(engine).get("jobs:sms", new.row_key) is None


def test_a_repeated_write_is_one_row_and_changes_nothing(engine: Engine) -> None:
    first = add_letter(engine)
    letters = DeadLetters(engine)
    with changing(engine) as connection:
        assert not letters.add(connection, replace(first, error_message="told again"))
        assert letters.add(connection, letter(item="m-2"))  # the transaction goes on
    assert letters.get(first.engine, first.row_key) == first
    assert count(engine, "holdfast_dead_letters") == 2


def test_a_letter_counts_with_the_callers_transaction(engine: Engine) -> None:
    with engine.connect() as connection:
        assert DeadLetters(engine).add(connection, letter())
        connection.rollback()
    assert count(engine, "holdfast_dead_letters") == 0


@pytest.mark.parametrize(
    ("differences", "part"),
    [
        ({"correlation_id": "c" * 201}, "200 are the most"),
        ({"original_queue": ""}, "is empty"),
        ({"row_key": "r" * 301}, "301 characters"),
    ],
    ids=["long id", "no queue", "long key"],
)
def test_what_does_not_fit_is_refused_alike_everywhere(engine: Engine, differences: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        add_letter(engine, **differences)
    assert count(engine, "holdfast_dead_letters") == 0


class TestPages:
    def test_the_last_failure_comes_first_and_no_row_twice(self, engine: Engine) -> None:
        same_time = [add_letter(engine, item=f"m-{number}", engine=name) for number in (1, 2) for name in ("a", "b")]
        older = add_letter(engine, item="m-0", last_failure_at=NOON - timedelta(microseconds=1))
        letters, seen, after = SqlLetterTable(engine), list[DeadLetter](), None
        for step in range(3):
            page = letters.page(limit=2, after=after)
            seen += page.items
            after = page.continuation_token
            add_letter(engine, item=f"new-{step}", last_failure_at=NOON + timedelta(hours=1))
        assert seen == [*sorted(same_time, key=lambda item: (item.engine, item.row_key), reverse=True), older]
        assert after is None

    def test_filters(self, engine: Engine) -> None:
        one = add_letter(engine, instance_id="i-1")
        two = add_letter(
            engine,
            engine="tls",
            item="m-2",
            error_message="Disk 100% full_",
            correlation_id="c-2",
            last_failure_at=NOON + timedelta(hours=1),
        )
        SqlLetterTable(engine).resolve("tls", two.row_key, "new disk", "eve")

        def found(**wanted: Any) -> list[str]:
            return [item.row_key for item in the_page(engine, **wanted)]

        assert found() == [two.row_key, one.row_key]
        assert found(engine="tls") == [two.row_key]
        assert found(status=LetterStatus.PENDING) == [one.row_key]
        assert found(instance_id="i-1") == [one.row_key]
        assert found(correlation_id="c-2") == [two.row_key]
        assert found(since=NOON + timedelta(microseconds=1)) == [two.row_key]
        assert found(since=NOON, until=NOON + timedelta(hours=1)) == [one.row_key]
        assert found(error="disk 100% full_") == [two.row_key]
        assert found(error="disk%full") == []
        assert SqlLetterTable(engine).count(LetterFilter(engine="tls")) == 1
        assert SqlLetterTable(engine).count() == 2

    def test_the_letters_of_an_item(self, engine: Engine) -> None:
        later = add_letter(engine, last_failure_at=NOON + timedelta(seconds=1))
        first = add_letter(engine)
        add_letter(engine, item="m-2")
        assert DeadLetters(engine).of_item("m-1") == [first, later]

    @pytest.mark.parametrize(
        "token", ["x", "WyJoaXN0b3J5Iiw3XQ", "WyJkZWFkIGxldHRlcnMiLCJub29uIiwiYSIsImIiXQ", "ü", ""]
    )
    def test_a_wrong_token_is_refused(self, engine: Engine, token: str) -> None:
        with pytest.raises(ConfigurationError, match="not a continuation token of the dead letters"):
            SqlLetterTable(engine).page(after=token)


class TestResolving:
    def test_who_when_and_what_are_kept_and_audited(self, engine: Engine) -> None:
        new = add_letter(engine)
        with reading(engine) as connection:
            before = database_now(connection)
        resolved = SqlLetterTable(engine).resolve("hmac", new.row_key, "key restored", "eve")
        assert resolved.resolved_at is not None
        assert resolved.resolved_at >= before
        assert resolved == replace(
            new,
            status=LetterStatus.RESOLVED,
            resolution_notes="key restored",
            resolved_by="eve",
            resolved_at=resolved.resolved_at,
        )
        [row] = audit.page(engine).items
        assert (row.actor, row.action, row.target) == ("eve", "dlq resolve", f"hmac/{new.row_key}")
        assert row.details == {"notes": "key restored"}
        assert row.at >= before

    def test_who_comes_second_is_told_and_changes_nothing(self, engine: Engine) -> None:
        new = add_letter(engine)
        first = SqlLetterTable(engine).resolve("hmac", new.row_key, "key restored", "eve")
        with pytest.raises(Conflict, match=r"is Resolved by eve \(key restored\)"):
            SqlLetterTable(engine).resolve("hmac", new.row_key, "me too", "bob")
        assert DeadLetters(engine).get("hmac", new.row_key) == first
        assert count(engine, "holdfast_audit") == 1

    def test_of_many_at_once_one_wins(self, engine: Engine) -> None:
        new = add_letter(engine)
        won, lost = list[str](), list[str]()

        def settle(name: str) -> None:
            try:
                won.append(str(SqlLetterTable(engine).resolve("hmac", new.row_key, "mine", name).resolved_by))
            except Conflict:
                lost.append(name)

        threads = [threading.Thread(target=settle, args=(name,)) for name in ("anne", "bert", "cleo", "dora")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert len(lost) == 3
        assert [row.actor for row in audit.page(engine).items] == won

    def test_an_unknown_letter_is_told(self, engine: Engine) -> None:
        with pytest.raises(NotFoundError, match="no dead letter 'm-9' of engine 'hmac'"):
            SqlLetterTable(engine).resolve("hmac", "m-9", "?", "eve")
        assert count(engine, "holdfast_audit") == 0


class TestExpiring:
    def test_only_old_pending_letters_of_the_engine(self, engine: Engine) -> None:
        old = add_letter(engine, last_failure_at=days_ago(31))
        add_letter(engine, item="m-2", last_failure_at=days_ago(29))
        add_letter(engine, item="m-3", engine="tls", last_failure_at=days_ago(31))
        settled = add_letter(engine, item="m-4", last_failure_at=days_ago(31))
        SqlLetterTable(engine).resolve("hmac", settled.row_key, "done", "eve")
        assert SqlLetterTable(engine).expire(30, "hmac", actor="eve") == 1
        assert [item.row_key for item in the_page(engine, status=LetterStatus.EXPIRED)] == [old.row_key]
        [row] = audit.page(engine, action="dlq expire").items
        assert (row.target, row.details) == ("hmac", {"older_than_days": 30, "expired": 1})

    def test_of_every_engine(self, engine: Engine) -> None:
        add_letter(engine, last_failure_at=days_ago(31))
        add_letter(engine, engine="tls", last_failure_at=days_ago(31))
        assert SqlLetterTable(engine).expire(30, actor="eve") == 2
        assert SqlLetterTable(engine).expire(30, actor="eve") == 0
        assert count(engine, "holdfast_audit") == 1

    def test_a_negative_age_is_refused(self, engine: Engine) -> None:
        with pytest.raises(ConfigurationError, match="0 or more"):
            SqlLetterTable(engine).expire(-1, actor="eve")


def test_missing_tables_are_one_sentence(empty_engine: Engine) -> None:
    for use in (
        lambda: SqlLetterTable(empty_engine).page(),
        lambda: SqlLetterTable(empty_engine).resolve("hmac", "m-1", "?", "eve"),
        lambda: audit.page(empty_engine),
    ):
        with pytest.raises(ConfigurationError, match="'holdfast migrate'"):
            use()


def test_a_status_of_a_newer_version_is_one_sentence(engine: Engine) -> None:
    add_letter(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE holdfast_dead_letters SET status = 'Parked'"))
    with pytest.raises(ConfigurationError, match="newer version"):
        the_page(engine)
