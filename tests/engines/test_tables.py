"""What every table of dead letters and history promises, on each place they can be: one suite for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from holdfast.core.errors import ConfigurationError, Conflict, NotFoundError
from holdfast.database.pools import use_wal
from holdfast.records.dead_letters import DeadLetter, LetterFilter, LetterStatus, NewLetter
from holdfast.records.history import HistoryFilter, HistoryStatus
from holdfast.records.row_keys import dead_letter_key
from tests.components.azurite import AzuriteServer
from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer
from tests.engines.tables import (
    Tables,
    add_all,
    add_entry,
    add_letter,
    at_once,
    azure_tables,
    check_race,
    check_race_to_resolve,
    everything,
    migrated_engine,
    routed_tables,
    sql_tables,
)
from tests.records.samples import AMSTERDAM_NOON, NOON, days_ago, letter

PLACES = ("sqlite", "postgres", "mariadb", "azure", "azure and sqlite")
HOSTILE = (
    r"a/b\c#d?e%f",
    "a/b",
    "a~2Fb",
    "a~2fb",
    "a~7E2Fb",
    "a%2Fb",
    "a",
    "A",
    "a-",
    "a-20260301T120000123456Z",
    "a-20260301T120000123456Z-7",
    "' or PartitionKey ne '",
    '"&+;=:@$,<>',
    "a b",
    " a",
    "\t\n\x7f\x85",
    "ü",
    "漢字🦀",
    "/" * 200,
    "/" * 199 + "?",
    "x" * 200,
    "🦀" * 200,
    "🦀" * 161 + "?" * 39,
)


@pytest.fixture(scope="module")
def sqlite_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("tables") / "tables.db"
    with migrated_engine(f"sqlite:///{path}") as engine:
        use_wal(engine)
        yield engine


@pytest.fixture(scope="module")
def postgres_engine(postgres_server: PostgresServer) -> Iterator[Engine]:
    with migrated_engine(postgres_server.url(postgres_server.create_database())) as engine:
        yield engine


@pytest.fixture(scope="module")
def mariadb_engine(mariadb_server: MariadbServer) -> Iterator[Engine]:
    with migrated_engine(mariadb_server.url(mariadb_server.create_database())) as engine:
        yield engine


@pytest.fixture(params=PLACES)
def tables(request: pytest.FixtureRequest) -> Iterator[Tables]:
    if "azure" not in request.param:
        yield sql_tables(request.getfixturevalue(f"{request.param}_engine"))
        return
    server: AzuriteServer = request.getfixturevalue("azurite")
    if request.param == "azure and sqlite":
        with routed_tables(server.connection_string, request.getfixturevalue("sqlite_engine")) as both:
            yield both
        return
    with azure_tables(server.connection_string) as opened:
        yield Tables(opened.letters, opened.history)


class TestAddingLetters:
    def test_every_field_comes_back(self, tables: Tables) -> None:
        new = DeadLetter(
            engine="jobs:e/mail",
            row_key=dead_letter_key("job-7", NOON),
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
            retried_as="m-2",
            application="shop",
            retry_message_id="m-2",
            retry_begun_at=AMSTERDAM_NOON,
            retry_begun_by="eve",
        )
        assert tables.letters.add(new)
        found = tables.letters.get(new.engine, new.row_key)
        assert found == new
        assert found.last_failure_at.isoformat() == NOON.isoformat()
        assert tables.letters.page().items == [new]
        assert tables.letters.get("jobs:sms", new.row_key) is None
        for key in ("no/such\\key", "a\x00b", "\ud800", "", "x" * 2000):
            assert tables.letters.get(new.engine, key) is None

    def test_a_new_letter_is_pending(self, tables: Tables) -> None:
        new = NewLetter(
            engine="hmac",
            row_key=dead_letter_key("m-1", NOON),
            original_queue="hmac-queue",
            original_message="{}",
            error_message="vault said no",
            dequeue_count=5,
            first_failure_at=NOON,
            last_failure_at=NOON,
            correlation_id="c-1",
        )
        assert tables.letters.add(new)
        found = tables.letters.get("hmac", new.row_key)
        assert found == DeadLetter(**asdict(new), status=LetterStatus.PENDING)
        assert not tables.letters.add(new)

    def test_what_may_be_left_out_is_left_out(self, tables: Tables) -> None:
        new = add_letter(tables, original_message="", error_message="")
        assert tables.letters.get(new.engine, new.row_key) == new
        assert new.instance_id == "publisher"

    def test_a_repeated_write_is_one_row_and_changes_nothing(self, tables: Tables) -> None:
        first = add_letter(tables)
        assert not tables.letters.add(replace(first, error_message="told again", dequeue_count=6))
        assert tables.letters.page().items == [first]

    def test_of_many_who_write_one_letter_one_adds_it(self, tables: Tables) -> None:
        added = at_once([lambda: tables.letters.add(letter()) for _ in range(3)])
        assert sorted(added, key=bool) == [False, False, True]

    @pytest.mark.parametrize(
        "message",
        [
            "x" * 32_000,
            "x" * 32_001,
            "ü" * 32_769,
            "🦀" * 16_001,
            "x" + "🦀" * 40_000,
            '{"key": "aü漢🦀\\u0000"}' * 3_000,
            "x" * 500_000,
            "aü漢🦀" * 100_000,
            "\x00\x01\x1f\x7f\ufffe\ud800\udfff" * 1_000,
            "holdfast:base64:eA==",
            "holdfast:base64:!",
            " \r\n\t ",
        ],
        ids=lambda message: f"{len(message)} of {message[:6]!a}",
    )
    def test_a_message_comes_back_byte_for_byte(self, tables: Tables, message: str) -> None:
        new = add_letter(tables, original_message=message)
        found = tables.letters.get(new.engine, new.row_key)
        assert found is not None
        assert found.original_message == message
        [listed] = tables.letters.page().items
        assert listed.original_message == message
        settled = tables.letters.resolve(new.engine, new.row_key, "seen", "eve")
        assert settled.original_message == message

    def test_an_error_no_table_takes_is_told_with_replacements(self, tables: Tables) -> None:
        new = add_letter(tables, error_message="a\x00b\ud800c" + "ü" * 40_000)
        found = tables.letters.get(new.engine, new.row_key)
        assert found is not None
        assert found.error_message == "a\ufffdb?c" + "ü" * 40_000

    def test_hostile_ids_do_not_collide_and_come_back(self, tables: Tables) -> None:
        for number, item in enumerate(HOSTILE):
            add_letter(tables, item=item, correlation_id=item, instance_id=item, original_message=str(number))
        found = everything(lambda after: tables.letters.page(limit=5, after=after))
        assert sorted((one.item_id, one.correlation_id, one.original_message) for one in found) == sorted(
            (item, item, str(number)) for number, item in enumerate(HOSTILE)
        )
        for number, item in enumerate(HOSTILE):
            one = tables.letters.get("hmac", dead_letter_key(item, NOON))
            assert one is not None
            assert one.original_message == str(number)
            wanted = LetterFilter(correlation_id=item, instance_id=item)
            assert [each.item_id for each in tables.letters.page(wanted).items] == [item]

    @pytest.mark.parametrize(
        ("differences", "part"),
        [
            ({"correlation_id": "c" * 201}, "200 are the most"),
            ({"correlation_id": "c\x00"}, "holds a NUL character"),
            ({"correlation_id": "c\ud800"}, "half of a surrogate pair"),
            ({"original_queue": ""}, "is empty"),
            ({"engine": "e" * 151}, "150 are the most"),
            ({"last_failure_at": datetime(2026, 1, 1), "row_key": "r"}, "no time zone"),  # noqa: DTZ001 - that is the point
        ],
        ids=["long id", "NUL", "half a pair", "no queue", "long engine", "naive time"],
    )
    def test_what_does_not_fit_is_refused_alike_everywhere(
        self, tables: Tables, differences: dict[str, Any], part: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=part):
            add_letter(tables, **differences)
        assert tables.letters.page().items == []


class TestPages:
    def test_each_row_comes_exactly_once_while_others_are_added(self, tables: Tables) -> None:
        there = [
            letter(item=f"m-{number}", engine=f"engine-{number % 3}", last_failure_at=NOON + timedelta(number % 10))
            for number in range(300)
        ]
        at_once([partial(add_all, tables, there[part::4]) for part in range(4)])
        new = (letter(item=f"{number * 7919 % 1000}-new", engine=f"engine-{number % 3}") for number in range(10_000))
        seen = everything(
            lambda after: tables.letters.page(limit=7, after=after), lambda: tables.letters.add(next(new))
        )
        keys = [(one.engine, one.row_key) for one in seen]
        assert len(keys) == len(set(keys))
        assert {(one.engine, one.row_key) for one in there} <= set(keys)

    def test_each_entry_comes_exactly_once_while_others_are_added(self, tables: Tables) -> None:
        there = [
            add_entry(tables, engine=f"engine-{number % 2}", correlation_id=f"c-{number % 5}") for number in range(60)
        ]
        seen = everything(
            lambda after: tables.history.page(limit=7, after=after), lambda: add_entry(tables, correlation_id="c-2")
        )
        keys = [(one.engine, one.row_key) for one in seen]
        assert len(keys) == len(set(keys))
        assert {(one.engine, one.row_key) for one in there} <= set(keys)
        of_one = everything(
            lambda after: tables.history.page(HistoryFilter(engine="engine-1", correlation_id="c-3"), 2, after)
        )
        assert {one.row_key for one in of_one} == {
            one.row_key for one in there if (one.engine, one.correlation_id) == ("engine-1", "c-3")
        }

    def test_what_the_table_cannot_filter_is_neither_lost_nor_repeated(self, tables: Tables) -> None:
        errors = ("Disk 100% FULL_", "disk%full", "no route")
        for number in range(60):
            add_letter(tables, item=f"m-{number}", engine=f"e-{number % 2}", error_message=errors[number % 3])
        wanted = LetterFilter(error="disk 100% full_")
        found = everything(lambda after: tables.letters.page(wanted, 3, after))
        assert sorted(str(one.item_id) for one in found) == sorted(f"m-{number}" for number in range(0, 60, 3))

    def test_filters_of_letters(self, tables: Tables) -> None:
        one = add_letter(tables, instance_id="i-1")
        two = add_letter(
            tables,
            engine="tls",
            item="m-2",
            error_message="Disk full",
            correlation_id="c-2",
            last_failure_at=NOON + timedelta(hours=1),
        )
        tables.letters.resolve("tls", two.row_key, "new disk", "eve")

        def found(**wanted: Any) -> set[str]:
            return {item.row_key for item in tables.letters.page(LetterFilter(**wanted)).items}

        assert found() == {two.row_key, one.row_key}
        assert found(engine="tls") == {two.row_key}
        assert found(engine="t/s") == set()
        assert found(status=LetterStatus.PENDING) == {one.row_key}
        assert found(instance_id="i-1") == {one.row_key}
        assert found(correlation_id="c-2", engine="tls") == {two.row_key}
        assert found(correlation_id="C-2") == set()
        assert found(correlation_id="c\x00") == set()
        assert found(since=NOON + timedelta(microseconds=1)) == {two.row_key}
        assert found(since=NOON, until=NOON + timedelta(hours=1)) == {one.row_key}
        assert found(until=NOON) == set()
        assert found(until=NOON + timedelta(microseconds=1)) == {one.row_key}
        assert found(since=days_ago(900_000 / 2), error="disk") == {two.row_key}
        assert tables.letters.count(LetterFilter(engine="tls")) in (1, None)

    def test_filters_of_entries(self, tables: Tables) -> None:
        one = add_entry(tables, created_at=NOON, instance_id="i-1", operation="notify")
        two = add_entry(
            tables,
            engine="tls",
            status=HistoryStatus.FAILED,
            error="Disk 100% full_",
            correlation_id="c/2",
            created_at=NOON + timedelta(hours=1),
        )

        def found(**wanted: Any) -> set[int]:
            return {entry.id for entry in tables.history.page(HistoryFilter(**wanted)).items}

        assert found() == {two.id, one.id}
        assert found(engine="tls") == {two.id}
        assert found(status=HistoryStatus.SUCCEEDED) == {one.id}
        assert found(instance_id="i-1") == {one.id}
        assert found(operation="notify") == {one.id}
        assert found(correlation_id="c/2") == {two.id}
        assert found(correlation_id="c/2", engine="tls") == {two.id}
        assert found(correlation_id="C/2") == set()
        assert found(since=NOON + timedelta(microseconds=1)) == {two.id}
        assert found(since=NOON, until=NOON + timedelta(hours=1)) == {one.id}
        assert found(error="disk 100% full_") == {two.id}
        assert found(error="disk%full") == set()

    def test_dates_the_wrong_way_round_give_an_empty_page(self, tables: Tables) -> None:
        add_letter(tables)
        add_entry(tables, created_at=NOON)
        later, sooner = NOON + timedelta(days=1), NOON - timedelta(days=1)
        for since, until in ((later, sooner), (NOON, NOON)):
            assert tables.letters.page(LetterFilter(since=since, until=until)).items == []
            assert tables.history.page(HistoryFilter(since=since, until=until)).items == []

    def test_a_date_without_a_zone_is_refused(self, tables: Tables) -> None:
        naive = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the point
        with pytest.raises(ConfigurationError, match="no time zone"):
            tables.letters.page(LetterFilter(since=naive))
        with pytest.raises(ConfigurationError, match="no time zone"):
            tables.history.page(HistoryFilter(until=naive))

    def test_a_page_of_exactly_what_there_is_has_no_token(self, tables: Tables) -> None:
        add_letter(tables)
        assert tables.letters.page(limit=1).continuation_token is None

    @pytest.mark.parametrize("limit", [0, -1, 101])
    def test_a_wrong_limit_is_refused(self, tables: Tables, limit: int) -> None:
        with pytest.raises(ConfigurationError, match="between 1 and 100"):
            tables.letters.page(limit=limit)
        with pytest.raises(ConfigurationError, match="between 1 and 100"):
            tables.history.page(limit=limit)

    def test_a_token_of_another_list_or_a_tampered_one_is_refused(self, tables: Tables) -> None:
        for number in range(2):
            add_letter(tables, item=f"m-{number}")
            add_entry(tables)
        letters = tables.letters.page(limit=1).continuation_token
        entries = tables.history.page(limit=1).continuation_token
        assert letters is not None
        assert entries is not None
        middle = len(letters) // 2
        other = "A" if letters[middle] != "A" else "B"
        tampered = letters[:middle] + other + letters[middle + 1 :]
        for wrong in (entries, tampered, letters[:-1], letters + "AAAA", "", "x", "ü", "W" * 5000):
            with pytest.raises(ConfigurationError, match="not a continuation token of the dead letters"):
                tables.letters.page(after=wrong)
        with pytest.raises(ConfigurationError, match="not a continuation token of the history"):
            tables.history.page(after=letters)


class TestResolving:
    def test_who_when_and_what_are_kept(self, tables: Tables) -> None:
        new = add_letter(tables)
        resolved = tables.letters.resolve("hmac", new.row_key, "key\x00 restored" + "ü" * 40_000, "eve")
        assert resolved.resolved_at is not None
        assert abs(resolved.resolved_at - days_ago(0)) < timedelta(minutes=5)
        assert resolved == replace(
            new,
            status=LetterStatus.RESOLVED,
            resolution_notes="key\ufffd restored" + "ü" * 40_000,
            resolved_by="eve",
            resolved_at=resolved.resolved_at,
        )
        assert tables.letters.get("hmac", new.row_key) == resolved

    def test_who_comes_second_is_told_and_changes_nothing(self, tables: Tables) -> None:
        new = add_letter(tables)
        first = tables.letters.resolve("hmac", new.row_key, "key restored", "eve")
        with pytest.raises(Conflict, match=r"is Resolved by eve \(key restored\)"):
            tables.letters.resolve("hmac", new.row_key, "me too", "bob")
        assert tables.letters.get("hmac", new.row_key) == first

    def test_of_two_at_once_one_wins_and_the_other_is_told(self, tables: Tables) -> None:
        for number in range(5):
            check_race_to_resolve(tables, add_letter(tables, item=f"m-{number}"))

    def test_an_unknown_letter_is_told(self, tables: Tables) -> None:
        for key in ("m-9", "m/9", "m\x009"):
            with pytest.raises(NotFoundError, match=f"no dead letter '{key}' of engine 'hmac'"):
                tables.letters.resolve("hmac", key, "?", "eve")


class TestGivingUpOnOne:
    def test_who_when_and_what_are_kept(self, tables: Tables) -> None:
        new = add_letter(tables)
        other = add_letter(tables, item="m-2")
        expired = tables.letters.expire_one("hmac", new.row_key, "too\x00 late" + "ü" * 40_000, "eve")
        assert expired.resolved_at is not None
        assert abs(expired.resolved_at - days_ago(0)) < timedelta(minutes=5)
        assert expired == replace(
            new,
            status=LetterStatus.EXPIRED,
            resolution_notes="too\ufffd late" + "ü" * 40_000,
            resolved_by="eve",
            resolved_at=expired.resolved_at,
        )
        assert tables.letters.get("hmac", new.row_key) == expired
        assert tables.letters.get("hmac", other.row_key) == other

    def test_what_is_settled_stays_as_it_is(self, tables: Tables) -> None:
        resolved, expired = add_letter(tables), add_letter(tables, item="m-2")
        tables.letters.resolve("hmac", resolved.row_key, "key restored", "eve")
        tables.letters.expire_one("hmac", expired.row_key, "too late", "eve")
        for settled, told in (
            (resolved, r"Resolved by eve \(key restored\)"),
            (expired, r"Expired by eve \(too late\)"),
        ):
            before = tables.letters.get("hmac", settled.row_key)
            with pytest.raises(Conflict, match=f"is {told}.*; nothing was changed"):
                tables.letters.expire_one("hmac", settled.row_key, "me too", "bob")
            assert tables.letters.get("hmac", settled.row_key) == before
        with pytest.raises(Conflict, match="Expired by eve"):
            tables.letters.resolve("hmac", expired.row_key, "me too", "bob")

    def test_of_two_at_once_one_wins_and_the_other_is_told(self, tables: Tables) -> None:
        for number in range(5):
            new = add_letter(tables, item=f"m-{number}")
            people = ("anne", "bert")
            check_race(
                tables,
                new,
                [partial(tables.letters.expire_one, "hmac", new.row_key, f"by {name}", name) for name in people],
            )

    def test_giving_up_and_resolving_at_once_one_wins(self, tables: Tables) -> None:
        for number in range(5):
            new = add_letter(tables, item=f"m-{number}")
            check_race(
                tables,
                new,
                [
                    partial(tables.letters.expire_one, "hmac", new.row_key, "too late", "anne"),
                    partial(tables.letters.resolve, "hmac", new.row_key, "done", "bert"),
                ],
            )

    def test_giving_up_and_retrying_at_once_one_wins(self, tables: Tables) -> None:
        for number in range(5):
            new = add_letter(tables, item=f"m-{number}")
            check_race(
                tables,
                new,
                [
                    partial(tables.letters.begin_retry, "hmac", new.row_key, "anne", "n-1"),
                    partial(tables.letters.expire_one, "hmac", new.row_key, "too late", "bert"),
                ],
            )

    def test_a_letter_that_is_being_retried_is_not_given_up_on(self, tables: Tables) -> None:
        new = add_letter(tables)
        begun = tables.letters.begin_retry("hmac", new.row_key, "eve", "m-2")
        with pytest.raises(Conflict, match="is being retried by eve as 'm-2'; nothing was changed"):
            tables.letters.expire_one("hmac", new.row_key, "too late", "bob")
        assert tables.letters.get("hmac", new.row_key) == begun

    def test_what_was_given_up_on_is_forgotten_after_its_time(self, tables: Tables) -> None:
        given_up = {"status": LetterStatus.EXPIRED, "last_failure_at": days_ago(400), "resolved_by": "eve"}
        add_letter(tables, item="m-1", **given_up, resolved_at=days_ago(91))
        young = add_letter(tables, item="m-2", **given_up, resolved_at=days_ago(89))
        now = add_letter(tables, item="m-3", last_failure_at=days_ago(400))
        tables.letters.expire_one("hmac", now.row_key, "too late", "eve")
        assert tables.letters.prune() == 1
        assert {left.row_key for left in tables.letters.page().items} == {young.row_key, now.row_key}

    def test_an_unknown_letter_is_told(self, tables: Tables) -> None:
        for key in ("m-9", "m/9", "m\x009"):
            with pytest.raises(NotFoundError, match=f"no dead letter '{key}' of engine 'hmac'"):
                tables.letters.expire_one("hmac", key, "?", "eve")


class TestRetrying:
    def test_a_retry_is_begun_and_finished(self, tables: Tables) -> None:
        new = add_letter(tables, original_message="ü" * 40_000)
        begun = tables.letters.begin_retry("hmac", new.row_key, "eve", "m-2")
        assert begun.retry_begun_at is not None
        assert begun == replace(new, retry_message_id="m-2", retry_begun_by="eve", retry_begun_at=begun.retry_begun_at)
        finished = tables.letters.finish_retry("hmac", new.row_key, "m-2")
        assert finished.resolved_at is not None
        assert finished == replace(
            begun,
            status=LetterStatus.RESOLVED,
            resolution_notes="Retried",
            resolved_by="eve",
            resolved_at=finished.resolved_at,
            retried_as="m-2",
        )
        assert tables.letters.get("hmac", new.row_key) == finished

    def test_after_a_crash_the_next_one_gets_the_same_id_and_it_is_finished_once(self, tables: Tables) -> None:
        new = add_letter(tables)
        first = tables.letters.begin_retry("hmac", new.row_key, "eve", "m-2")
        [unfinished] = tables.letters.unfinished_retries().items
        assert unfinished == first
        again = tables.letters.begin_retry("hmac", new.row_key, "bob", "m-3")
        assert again == first
        finished = tables.letters.finish_retry("hmac", new.row_key, "m-2")
        assert (finished.resolved_by, finished.retried_as) == ("eve", "m-2")
        assert tables.letters.finish_retry("hmac", new.row_key, "m-2") == finished
        assert tables.letters.unfinished_retries().items == []

    def test_what_is_settled_cannot_be_retried(self, tables: Tables) -> None:
        resolved = add_letter(tables)
        tables.letters.resolve("hmac", resolved.row_key, "done", "eve")
        retried = add_letter(tables, item="m-2")
        tables.letters.begin_retry("hmac", retried.row_key, "eve", "n-2")
        tables.letters.finish_retry("hmac", retried.row_key, "n-2")
        expired = add_letter(tables, item="m-3", last_failure_at=days_ago(2))
        assert tables.letters.expire(1, actor="eve") == 1
        for settled in (resolved, retried, expired):
            before = tables.letters.get("hmac", settled.row_key)
            with pytest.raises(Conflict, match="nothing was changed"):
                tables.letters.begin_retry("hmac", settled.row_key, "bob", "n-9")
            with pytest.raises(Conflict, match="nothing was changed"):
                tables.letters.finish_retry("hmac", settled.row_key, "n-9")
            assert tables.letters.get("hmac", settled.row_key) == before

    def test_a_retry_is_finished_under_the_id_it_was_begun_with(self, tables: Tables) -> None:
        new = add_letter(tables)
        with pytest.raises(Conflict):
            tables.letters.finish_retry("hmac", new.row_key, "m-2")
        tables.letters.begin_retry("hmac", new.row_key, "eve", "m-2")
        with pytest.raises(Conflict, match="being retried by eve as 'm-2', not with the message 'm-3'"):
            tables.letters.finish_retry("hmac", new.row_key, "m-3")

    def test_two_who_begin_at_once_never_use_two_ids(self, tables: Tables) -> None:
        for number in range(5):
            new = add_letter(tables, item=f"m-{number}")
            outcomes = at_once(
                [
                    partial(tables.letters.begin_retry, "hmac", new.row_key, name, f"for-{name}")
                    for name in ("anne", "bert")
                ]
            )
            begun = tables.letters.get("hmac", new.row_key)
            assert begun is not None
            assert [one for one in outcomes if not isinstance(one, Conflict)] != []
            assert all(one == begun for one in outcomes if not isinstance(one, Conflict))

    def test_retrying_and_resolving_at_once_one_wins(self, tables: Tables) -> None:
        for number in range(5):
            new = add_letter(tables, item=f"m-{number}")
            outcomes = at_once(
                [
                    partial(tables.letters.begin_retry, "hmac", new.row_key, "anne", "n-1"),
                    partial(tables.letters.resolve, "hmac", new.row_key, "done", "bert"),
                ]
            )
            assert len([one for one in outcomes if isinstance(one, Conflict)]) == 1

    def test_notes_that_are_too_long_are_refused_and_not_cut(self, tables: Tables) -> None:
        new = add_letter(tables)
        with pytest.raises(ConfigurationError, match=r"Notes of 100,001 characters are too long: 100,000 is the most"):
            tables.letters.resolve("hmac", new.row_key, "n" * 100_001, "eve")
        assert tables.letters.get("hmac", new.row_key) == new
        longest = "n" * 100_000
        assert tables.letters.resolve("hmac", new.row_key, longest, "eve").resolution_notes == longest
        with pytest.raises(ConfigurationError, match="too long"):
            tables.letters.reopen("hmac", new.row_key, "n" * 100_001, "eve")

    def test_who_resolves_during_a_retry_is_told_and_may_insist(self, tables: Tables) -> None:
        new = add_letter(tables, last_failure_at=days_ago(9))
        tables.letters.begin_retry("hmac", new.row_key, "eve", "m-2")
        with pytest.raises(Conflict, match="is being retried by eve as 'm-2'"):
            tables.letters.resolve("hmac", new.row_key, "done", "bob")
        assert tables.letters.expire(1, actor="bob") == 0
        resolved = tables.letters.resolve("hmac", new.row_key, "queue is gone", "bob", despite_retry=True)
        assert (resolved.status, resolved.resolved_by) == (LetterStatus.RESOLVED, "bob")
        assert (resolved.retry_message_id, resolved.retried_as) == ("m-2", None)
        assert tables.letters.unfinished_retries().items == []
        with pytest.raises(Conflict, match="Resolved by bob"):
            tables.letters.finish_retry("hmac", new.row_key, "m-2")

    def test_unfinished_retries_are_found_by_age_and_in_pages(self, tables: Tables) -> None:
        for number in range(5):
            new = add_letter(tables, item=f"m-{number}")
            if number:
                tables.letters.begin_retry("hmac", new.row_key, "eve", f"n-{number}")
        found = everything(lambda after: tables.letters.unfinished_retries(limit=2, after=after))
        assert sorted(str(one.retry_message_id) for one in found) == ["n-1", "n-2", "n-3", "n-4"]
        assert tables.letters.unfinished_retries(older_than_seconds=3600).items == []

    @pytest.mark.parametrize("message_id", ["", "m" * 201, "m\x00"])
    def test_an_id_that_does_not_fit_is_refused(self, tables: Tables, message_id: str) -> None:
        new = add_letter(tables)
        with pytest.raises(ConfigurationError, match="message id"):
            tables.letters.begin_retry("hmac", new.row_key, "eve", message_id)
        assert tables.letters.get("hmac", new.row_key) == new

    def test_an_unknown_letter_is_told(self, tables: Tables) -> None:
        for key in ("m-9", "m/9", "m\x009"):
            with pytest.raises(NotFoundError):
                tables.letters.begin_retry("hmac", key, "eve", "m-2")
            with pytest.raises(NotFoundError):
                tables.letters.finish_retry("hmac", key, "m-2")


class TestRetention:
    def test_only_old_pending_letters_of_the_engine_expire(self, tables: Tables) -> None:
        old = add_letter(tables, last_failure_at=days_ago(31), original_message="ü" * 40_000)
        add_letter(tables, item="m-2", last_failure_at=days_ago(29))
        add_letter(tables, item="m-3", engine="tls", last_failure_at=days_ago(31))
        settled = add_letter(tables, item="m-4", last_failure_at=days_ago(31))
        tables.letters.resolve("hmac", settled.row_key, "done", "eve")
        assert tables.letters.expire(30, "hmac", actor="eve") == 1
        [expired] = tables.letters.page(LetterFilter(status=LetterStatus.EXPIRED)).items
        assert expired == replace(
            old,
            status=LetterStatus.EXPIRED,
            resolution_notes="failed more than 30 days before",
            resolved_at=expired.resolved_at,
            resolved_by="eve",
        )
        assert expired.resolved_at is not None
        assert tables.letters.expire(30, actor="eve") == 1
        assert tables.letters.expire(30, actor="eve") == 0
        assert tables.letters.expire(1e12, actor="eve") == 0

    def test_pending_letters_are_never_forgotten_and_others_after_their_time(self, tables: Tables) -> None:
        old, young = days_ago(91), days_ago(89)
        add_letter(tables, item="pending", last_failure_at=days_ago(9000))
        for name, engine in (("long resolved", "hmac"), ("long resolved too", "hmac"), ("long resolved", "tls")):
            add_letter(
                tables,
                item=name,
                engine=engine,
                status=LetterStatus.RESOLVED,
                last_failure_at=old,
                resolved_at=old,
                original_message="ü" * 40_000,
            )
        add_letter(tables, item="just resolved", status=LetterStatus.RESOLVED, last_failure_at=old, resolved_at=young)
        add_letter(tables, item="long expired", status=LetterStatus.EXPIRED, last_failure_at=old)
        add_letter(tables, item="just expired", status=LetterStatus.EXPIRED, last_failure_at=young)
        assert tables.letters.prune(1e12) == 0
        assert tables.letters.prune() == 4
        left = {item.item_id for item in tables.letters.page().items}
        assert left == {"pending", "just resolved", "just expired"}
        assert tables.letters.prune(0) == 2
        assert [item.item_id for item in tables.letters.page().items] == ["pending"]

    def test_old_history_is_forgotten(self, tables: Tables) -> None:
        for number in range(120):
            add_entry(tables, created_at=days_ago(91), engine=f"e-{number % 2}")
        young = add_entry(tables, created_at=days_ago(89))
        assert tables.history.prune(1e12) == 0
        assert tables.history.prune() == 120
        assert tables.history.prune() == 0
        assert [entry.id for entry in tables.history.page().items] == [young.id]

    def test_two_may_prune_at_once(self, tables: Tables) -> None:
        for _ in range(20):
            add_entry(tables, created_at=days_ago(91))
        at_once([tables.history.prune, tables.history.prune])
        assert tables.history.page().items == []

    def test_wrong_numbers_are_refused(self, tables: Tables) -> None:
        with pytest.raises(ConfigurationError, match="0 or more"):
            tables.letters.prune(-1)
        with pytest.raises(ConfigurationError, match="0 or more"):
            tables.history.prune(-0.5)
        with pytest.raises(ConfigurationError, match="0 or more"):
            tables.letters.expire(-1, actor="eve")


class TestHistory:
    def test_every_field_comes_back(self, tables: Tables) -> None:
        added = add_entry(
            tables,
            engine="jobs:e/mail",
            instance_id="inst-1",
            operation="send",
            status=HistoryStatus.FAILED,
            duration_ms=2**40,
            input='{"to": "ü 🦀"}' * 10_000,
            output="\ud800 null",
            error="no\x00 route",
            created_at=AMSTERDAM_NOON,
            correlation_id="order 7/a",
            item_id="m-7",
            attempt=3,
        )
        assert (added.engine, added.instance_id, added.operation, added.status) == (
            "jobs:e/mail",
            "inst-1",
            "send",
            HistoryStatus.FAILED,
        )
        assert (added.duration_ms, added.item_id, added.attempt) == (2**40, "m-7", 3)
        assert (added.input, added.output, added.error) == ('{"to": "ü 🦀"}' * 10_000, "\ud800 null", "no\ufffd route")
        assert added.created_at.isoformat() == NOON.isoformat()
        assert added.row_key.startswith("order 7~2Fa-20260301T120000123456Z-")
        assert tables.history.get("jobs:e/mail", added.row_key) == added
        assert tables.history.page().items == [added]

    def test_an_entry_without_a_time_gets_the_tables(self, tables: Tables) -> None:
        added = add_entry(tables)
        assert abs(added.created_at - days_ago(0)) < timedelta(minutes=5)
        assert (added.instance_id, added.input, added.item_id, added.attempt) == ("publisher", None, None, None)

    def test_no_entry_has_another_key(self, tables: Tables) -> None:
        one, two = add_entry(tables), add_entry(tables)
        assert one.row_key != two.row_key
        assert tables.history.get("hmac", two.row_key) == two
        assert tables.history.get("tls", one.row_key) is None
        for key in ("", "c-1", "a/b", one.row_key + "9", "x" * 2000):
            assert tables.history.get("hmac", key) is None

    def test_a_success_is_found_by_engine_operation_and_correlation_id(self, tables: Tables) -> None:
        add_entry(tables, correlation_id="c", status=HistoryStatus.FAILED)
        assert tables.history.succeeded("hmac", "rotate", "c") is None
        for other in (
            {"correlation_id": "C"},
            {"correlation_id": "c "},
            {"correlation_id": "c-20260301T120000123456Z-1"},
            {"correlation_id": "c", "operation": "notify"},
            {"correlation_id": "c", "engine": "tls"},
        ):
            add_entry(tables, **other)
            assert tables.history.succeeded("hmac", "rotate", "c") is None
        add_entry(tables, correlation_id="c")
        last = add_entry(tables, correlation_id="c")
        add_entry(tables, correlation_id="c", status=HistoryStatus.FAILED)
        assert tables.history.succeeded("hmac", "rotate", "c") == last
        assert tables.history.succeeded("hmac", "rotate", "c\x00") is None

    def test_13_9_a_success_is_that_of_its_application_and_one_without_any_is_everyones(self, tables: Tables) -> None:
        add_entry(tables, correlation_id="c", application="b")
        assert tables.history.succeeded("hmac", "rotate", "c", "a") is None
        own = add_entry(tables, correlation_id="c", application="a")
        assert tables.history.succeeded("hmac", "rotate", "c", "a") == own
        assert tables.history.of_correlation("hmac", "c", application="a") == [own]
        before = add_entry(tables, correlation_id="c")
        assert tables.history.succeeded("hmac", "rotate", "c", "a") == before
        assert tables.history.of_correlation("hmac", "c", application="a") == [own, before]
        assert tables.history.page(HistoryFilter(correlation_id="c", application="c")).items == [before]
        assert tables.history.succeeded("hmac", "rotate", "c", "a\x00") is None

    def test_what_belongs_together_is_found_oldest_first(self, tables: Tables) -> None:
        first = add_entry(tables, correlation_id="order-7", status=HistoryStatus.FAILED)
        add_entry(tables, correlation_id="order-8")
        add_entry(tables, engine="tls", correlation_id="order-7")
        other = add_entry(tables, operation="notify", correlation_id="order-7")
        last = add_entry(tables, correlation_id="order-7")
        assert tables.history.of_correlation("hmac", "order-7") == [first, other, last]
        assert tables.history.of_correlation("hmac", "order-7", "rotate") == [first, last]
        assert tables.history.of_correlation("hmac", "order-9") == []

    def test_hostile_correlation_ids_are_told_apart(self, tables: Tables) -> None:
        added = {name: add_entry(tables, correlation_id=name, created_at=NOON) for name in HOSTILE}
        assert len({entry.row_key for entry in added.values()}) == len(HOSTILE)
        for name, entry in added.items():
            assert tables.history.succeeded("hmac", "rotate", name) == entry
            assert tables.history.of_correlation("hmac", name) == [entry]
            assert tables.history.get("hmac", entry.row_key) == entry
            assert tables.history.page(HistoryFilter(correlation_id=name)).items == [entry]

    @pytest.mark.parametrize(
        ("differences", "part"),
        [
            ({"correlation_id": "c" * 201}, "200 are the most"),
            ({"correlation_id": ""}, "is empty"),
            ({"operation": "o\x00"}, "holds a NUL character"),
            ({"created_at": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the point
        ],
        ids=["long id", "no id", "NUL", "naive time"],
    )
    def test_what_does_not_fit_is_refused_alike_everywhere(
        self, tables: Tables, differences: dict[str, Any], part: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=part):
            add_entry(tables, **differences)
        assert tables.history.page().items == []
