"""Dead letters and history in two places as one: what neither place promises alone.

That both together keep every promise of one is shown by the suite that all tables pass (tests/engines/test_tables.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast.core.errors import ConfigurationError, Conflict, DbError, NotFoundError
from holdfast.records import audit
from holdfast.records.audited import AuditedLetters
from holdfast.records.combined_tables import CombinedHistory, CombinedLetters
from holdfast.records.dead_letters import DeadLetter, Decision, LetterFilter, LetterStatus
from holdfast.records.history import HistoryEntry, HistoryFilter
from holdfast.records.paging import Page, token_of
from tests.components.azurite import AzuriteServer
from tests.engines.tables import Tables, add_entry, add_letter, azure_tables, everything, migrated_engine, sql_tables
from tests.records.samples import days_ago

WORKLOADS = ("jobs:email", "trigger:orders", "processor:search")


@dataclass(frozen=True)
class Places:
    """Two places, and both as one. ``database`` has the workloads' tables and the audit."""

    engines: Tables
    workloads: Tables
    both: Tables
    database: Engine

    @classmethod
    def of(cls, engines: Tables, database: Engine) -> Places:
        workloads = sql_tables(database)
        both = Tables(
            CombinedLetters(engines.letters, workloads.letters), CombinedHistory(engines.history, workloads.history)
        )
        return cls(engines, workloads, both, database)

    def audited(self) -> list[tuple[str, str, str]]:
        return [(row.actor, row.action, row.target) for row in audit.page(self.database).items]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("routed") / "workloads.db"
    with migrated_engine(f"sqlite:///{path}") as engine:
        yield engine


@pytest.fixture(scope="module")
def other_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("routed") / "engines.db"
    with migrated_engine(f"sqlite:///{path}") as engine:
        yield engine


@pytest.fixture
def in_azure(azurite: AzuriteServer, database: Engine) -> Iterator[Places]:
    with azure_tables(azurite.connection_string) as opened:
        yield Places.of(Tables(AuditedLetters(opened.letters, database), opened.history), database)


@pytest.fixture
def in_databases(database: Engine, other_database: Engine) -> Places:
    return Places.of(sql_tables(other_database), database)


@pytest.fixture(params=["in_azure", "in_databases"])
def places(request: pytest.FixtureRequest) -> Places:
    found: Places = request.getfixturevalue(request.param)
    return found


class TestNamesSayWhere:
    def test_letters_are_where_their_engines_name_says(self, places: Places) -> None:
        own = add_letter(places.both)
        others = [add_letter(places.both, engine=name) for name in WORKLOADS]
        assert places.engines.letters.page().items == [own]
        assert {one.engine for one in places.workloads.letters.page().items} == set(WORKLOADS)
        for one in (own, *others):
            assert places.both.letters.get(one.engine, one.row_key) == one
            assert places.both.letters.page(LetterFilter(engine=one.engine)).items == [one]
        assert not places.both.letters.add(own)

    def test_entries_are_where_their_engines_name_says(self, places: Places) -> None:
        own = add_entry(places.both)
        other = add_entry(places.both, engine="jobs:email")
        assert places.engines.history.page().items == [own]
        assert places.workloads.history.page().items == [other]
        for one in (own, other):
            assert places.both.history.get(one.engine, one.row_key) == one
            assert places.both.history.page(HistoryFilter(engine=one.engine)).items == [one]
            assert places.both.history.succeeded(one.engine, "rotate", "c-1") == one
            assert places.both.history.of_correlation(one.engine, "c-1") == [one]

    @pytest.mark.parametrize("engine", ["hmac", "jobs:email"])
    def test_each_change_is_made_there_and_audited_once(self, places: Places, engine: str) -> None:
        one, two, three = (add_letter(places.both, engine=engine, item=f"m-{number}") for number in range(3))
        letters = places.both.letters
        assert letters.resolve(engine, one.row_key, "done\ud800", "eve").status is LetterStatus.RESOLVED
        assert letters.expire_one(engine, two.row_key, "too late", "eve").status is LetterStatus.EXPIRED
        assert letters.begin_retry(engine, three.row_key, "eve", "n-1").retry_message_id == "n-1"
        assert letters.begin_retry(engine, three.row_key, "bob", "n-2").retry_message_id == "n-1"
        assert letters.begin_retry(engine, three.row_key, "sweep", "n-1").retry_begun_by == "eve"
        assert letters.finish_retry(engine, three.row_key, "n-1").retried_as == "n-1"
        if not is_audited_elsewhere(places, engine):
            assert places.audited() == [
                ("eve", "dlq retry", f"{engine}/{three.row_key}"),
                ("eve", "dlq expire", f"{engine}/{two.row_key}"),
                ("eve", "dlq resolve", f"{engine}/{one.row_key}"),
            ]
            assert [row.details for row in audit.page(places.database).items] == [
                {"retried_as": "n-1"},
                {"notes": "too late"},
                {"notes": "done?"},
            ]

    @pytest.mark.parametrize("engine", ["hmac", "jobs:email"])
    def test_what_changes_nothing_is_not_audited(self, places: Places, engine: str) -> None:
        letters, new = places.both.letters, add_letter(places.both, engine=engine, last_failure_at=days_ago(9))
        letters.resolve(engine, new.row_key, "done", "eve")
        before = places.audited()
        for change in (
            partial(letters.resolve, engine, new.row_key, "me too", "bob"),
            partial(letters.expire_one, engine, new.row_key, "me too", "bob"),
            partial(letters.begin_retry, engine, new.row_key, "bob", "n-1"),
        ):
            with pytest.raises(Conflict):
                change()
        with pytest.raises(NotFoundError):
            letters.expire_one(engine, "m-9", "?", "bob")
        assert letters.expire(1, actor="bob") == 0
        assert places.audited() == before


def is_audited_elsewhere(places: Places, engine: str) -> bool:
    """Return whether the letters are in a database with an audit of its own."""
    return not isinstance(places.engines.letters, AuditedLetters) and ":" not in engine


class TestPages:
    @pytest.mark.parametrize(("own", "others"), [(12, 9), (10, 10), (0, 7), (7, 0), (5, 5), (0, 0)])
    def test_each_letter_comes_exactly_once_while_others_are_added(self, places: Places, own: int, others: int) -> None:
        there = [add_letter(places.both, item=f"m-{number}", engine=f"engine-{number % 3}") for number in range(own)]
        there += [add_letter(places.both, item=f"m-{number}", engine=WORKLOADS[number % 3]) for number in range(others)]
        added = iter(range(1_000))

        def add_some() -> None:
            number = next(added)
            for name in ("engine-1", "jobs:email"):
                add_letter(places.both, item=f"new-{number}", engine=name)

        for limit in (5, 7):
            seen = Counter(named(one) for one in everything(partial(letters_page, places, limit), add_some))
            assert max(seen.values(), default=1) == 1
            assert {named(one) for one in there} <= set(seen)

    def test_each_entry_comes_exactly_once_while_others_are_added(self, places: Places) -> None:
        there = [add_entry(places.both, engine=name) for name in ("hmac", "jobs:email", "tls") * 4]
        seen = Counter(
            named(one)
            for one in everything(
                lambda after: places.both.history.page(limit=4, after=after),
                lambda: [add_entry(places.both, engine=name) for name in ("hmac", "jobs:email")],
            )
        )
        assert max(seen.values()) == 1
        assert {named(one) for one in there} <= set(seen)

    def test_a_filter_holds_in_both(self, places: Places) -> None:
        wanted = [
            add_letter(places.both, engine=name, item=f"m-{number}", instance_id="i-1")
            for name in ("hmac", "jobs:email")
            for number in range(3)
        ]
        for name in ("hmac", "jobs:email"):
            add_letter(places.both, engine=name, item="other", instance_id="i-2")
        found = everything(lambda after: places.both.letters.page(LetterFilter(instance_id="i-1"), 2, after))
        assert Counter(map(named, found)) == Counter(map(named, wanted))

    def test_pages_are_full_until_the_last_and_that_is_not_empty(self, places: Places) -> None:
        for name, count in (("hmac", 6), ("jobs:email", 5)):
            for number in range(count):
                add_letter(places.both, engine=name, item=f"m-{number}")
        for limit, lengths in ((3, [3, 3, 3, 2]), (4, [4, 4, 3]), (6, [6, 5]), (8, [8, 3]), (11, [11])):
            assert page_lengths(places, limit) == lengths

    def test_when_the_second_place_is_empty_the_first_ones_last_page_is_the_last(self, places: Places) -> None:
        add_letter(places.both)
        assert places.both.letters.page(limit=1).continuation_token is None

    def test_unfinished_retries_come_from_both(self, places: Places) -> None:
        for name in ("hmac", "jobs:email", "tls"):
            for number in range(3):
                new = add_letter(places.both, engine=name, item=f"m-{number}")
                if number:
                    places.both.letters.begin_retry(name, new.row_key, "eve", f"n-{number}")
        found = everything(lambda after: places.both.letters.unfinished_retries(limit=2, after=after))
        assert Counter((one.engine, one.retry_message_id) for one in found) == Counter(
            (name, f"n-{number}") for name in ("hmac", "jobs:email", "tls") for number in (1, 2)
        )
        assert places.both.letters.unfinished_retries(older_than_seconds=3600).items == []


def named(one: DeadLetter | HistoryEntry) -> tuple[str, str]:
    return one.engine, one.row_key


def letters_page(places: Places, limit: int, after: str | None) -> Page[DeadLetter]:
    return places.both.letters.page(limit=limit, after=after)


def page_lengths(places: Places, limit: int) -> list[int]:
    lengths, page = list[int](), letters_page(places, limit, None)
    while True:
        lengths.append(len(page.items))
        if page.continuation_token is None:
            return lengths
        page = letters_page(places, limit, page.continuation_token)


class TestTokens:
    @pytest.fixture
    def filled(self, places: Places) -> Places:
        for name in ("hmac", "jobs:email"):
            for number in range(3):
                add_letter(places.both, engine=name, item=f"m-{number}")
                add_entry(places.both, engine=name)
        return places

    def test_those_of_one_place_are_not_those_of_both(self, filled: Places) -> None:
        for place in (filled.engines, filled.workloads):
            token = place.letters.page(limit=1).continuation_token
            assert token is not None
            with pytest.raises(ConfigurationError, match="not a continuation token of the dead letters"):
                filled.both.letters.page(after=token)
            of_history = place.history.page(limit=1).continuation_token
            with pytest.raises(ConfigurationError, match="not a continuation token of the history"):
                filled.both.history.page(after=of_history)
        for limit in (1, 4):  # within the first place, and within the second
            token = filled.both.letters.page(limit=limit).continuation_token
            for place in (filled.engines, filled.workloads):
                with pytest.raises(ConfigurationError, match="not a continuation token of the dead letters"):
                    place.letters.page(after=token)

    def test_one_is_not_good_for_an_engine_of_the_other_place(self, filled: Places) -> None:
        within_first, within_second = (filled.both.letters.page(limit=limit).continuation_token for limit in (1, 4))
        with pytest.raises(ConfigurationError, match="not a continuation token"):
            filled.both.letters.page(LetterFilter(engine="jobs:email"), after=within_first)
        with pytest.raises(ConfigurationError, match="not a continuation token"):
            filled.both.letters.page(LetterFilter(engine="hmac"), after=within_second)

    def test_letters_and_history_do_not_take_each_others(self, filled: Places) -> None:
        for limit in (1, 3, 4):
            with pytest.raises(ConfigurationError, match="not a continuation token of the history"):
                filled.both.history.page(after=filled.both.letters.page(limit=limit).continuation_token)

    @pytest.mark.parametrize(
        "position", [(2, "x"), (-1, "x"), (True, "x"), ("0", "x"), (0, None), (0,), (0, "x"), (1, "x")]
    )
    def test_made_up_ones_are_refused(self, filled: Places, position: tuple[object, ...]) -> None:
        with pytest.raises(ConfigurationError, match="not a continuation token of the dead letters"):
            filled.both.letters.page(after=token_of("dead letters", *position))

    def test_damaged_ones_are_refused(self, filled: Places) -> None:
        token = filled.both.letters.page(limit=4).continuation_token
        assert token is not None
        for place in range(len(token) - 1):  # some bits of the last character stand for nothing
            other = "A" if token[place] != "A" else "B"
            with pytest.raises(ConfigurationError, match="not a continuation token"):
                filled.both.letters.page(after=token[:place] + other + token[place + 1 :])


class TestBoth:
    def test_counts_are_added_up(self, in_databases: Places) -> None:
        for name in ("hmac", "jobs:email", "jobs:email"):
            add_letter(in_databases.both, engine=name, item=f"{in_databases.both.letters.count()}")
        assert in_databases.both.letters.count() == 3
        assert in_databases.both.letters.count(LetterFilter(engine="hmac")) == 1
        assert in_databases.both.letters.count(LetterFilter(engine="jobs:email")) == 2

    def test_a_count_that_one_place_cannot_tell_is_none(self, in_azure: Places) -> None:
        add_letter(in_azure.both, engine="jobs:email")
        assert in_azure.both.letters.count() is None
        assert in_azure.both.letters.count(LetterFilter(engine="hmac")) is None
        assert in_azure.both.letters.count(LetterFilter(engine="jobs:email")) == 1

    def test_old_letters_expire_in_both_or_in_the_one_that_is_named(self, in_azure: Places) -> None:
        for name in ("hmac", "tls", "jobs:email", "jobs:sms"):
            add_letter(in_azure.both, engine=name, last_failure_at=days_ago(31))
        letters = in_azure.both.letters
        assert letters.expire(30, "hmac", actor="eve") == 1
        assert letters.expire(30, "jobs:email", actor="eve") == 1
        assert {one.engine for one in letters.page(LetterFilter(status=LetterStatus.PENDING)).items} == {
            "tls",
            "jobs:sms",
        }
        assert letters.expire(30, actor="eve") == 2
        assert letters.expire(30, actor="eve") == 0
        done = [each for each in in_azure.audited() if "begun" not in each[1]]
        assert done == [
            ("eve", "dlq expire", "every engine"),
            ("eve", "dlq expire", "every engine"),
            ("eve", "dlq expire", "jobs:email"),
            ("eve", "dlq expire", "hmac"),
        ]
        rows = audit.page(in_azure.database, action="dlq expire").items
        assert [row.details for row in rows] == [{"older_than_days": 30, "expired": 1}] * 4
        begun = audit.page(in_azure.database, action="dlq expire (begun)").items
        assert [row.target for row in begun] == ["every engine", "hmac"], "in Azure the row comes first"

    def test_both_are_pruned(self, places: Places) -> None:
        for name in ("hmac", "jobs:email"):
            settled = {"status": LetterStatus.EXPIRED, "resolved_at": days_ago(91), "resolved_by": "eve"}
            add_letter(places.both, engine=name, last_failure_at=days_ago(91), **settled)
            add_letter(places.both, engine=name, item="m-2", last_failure_at=days_ago(91))
            add_entry(places.both, engine=name, created_at=days_ago(91))
            add_entry(places.both, engine=name)
        assert places.both.letters.prune() == 2
        assert places.both.history.prune() == 2
        assert {one.item_id for one in places.both.letters.page().items} == {"m-2"}
        assert len(places.both.history.page().items) == 2


@pytest.fixture
def without_audit(in_azure: Places) -> Iterator[Places]:
    """Places whose audit cannot be written."""
    with in_azure.database.begin() as connection:
        connection.execute(text("ALTER TABLE holdfast_audit RENAME TO elsewhere"))
    yield in_azure
    with in_azure.database.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO holdfast_audit"))


def test_13_16_a_change_whose_audit_cannot_be_written_is_not_made(without_audit: Places) -> None:
    new, letters = add_letter(without_audit.both, last_failure_at=days_ago(9)), without_audit.both.letters
    changes: list[Callable[[], object]] = [
        partial(letters.begin_retry, "hmac", new.row_key, "eve", "n-1"),
        partial(letters.resolve, "hmac", new.row_key, "queue is gone", "eve"),
        partial(letters.expire, 1, actor="eve"),
    ]
    for change in changes:
        with pytest.raises(DbError, match="tables are missing"):
            change()
        assert letters.get("hmac", new.row_key) == new


def test_13_16_a_change_in_azure_that_another_was_faster_with_has_a_row_that_says_so(
    in_azure: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = add_letter(in_azure.both)
    table = in_azure.engines.letters
    assert isinstance(table, AuditedLetters)
    inner = table._letters

    def beaten(decision: Decision) -> DeadLetter:
        monkeypatch.undo()
        inner.resolve("hmac", new.row_key, "first", "bob")
        return inner.decide(decision)

    monkeypatch.setattr(inner, "decide", beaten)
    with pytest.raises(Conflict):
        in_azure.both.letters.resolve("hmac", new.row_key, "second", "eve")
    name = f"hmac/{new.row_key}"
    assert in_azure.audited() == [("eve", "dlq resolve (not done)", name), ("eve", "dlq resolve", name)]


def test_13_16_a_retry_that_another_has_begun_meanwhile_is_theirs(
    in_azure: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = add_letter(in_azure.both)
    table = in_azure.engines.letters
    assert isinstance(table, AuditedLetters)
    inner = table._letters

    def beaten(*given: str) -> DeadLetter:
        monkeypatch.undo()
        inner.begin_retry("hmac", new.row_key, "bob", "n-1")
        return inner.begin_retry(*given)

    monkeypatch.setattr(inner, "begin_retry", beaten)
    begun = in_azure.both.letters.begin_retry("hmac", new.row_key, "eve", "n-2")
    assert (begun.retry_message_id, begun.retry_begun_by) == ("n-1", "bob")
    name = f"hmac/{new.row_key}"
    assert in_azure.audited() == [("eve", "dlq retry (not done)", name), ("eve", "dlq retry", name)]
