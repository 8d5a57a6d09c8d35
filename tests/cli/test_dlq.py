"""`holdfast dlq`: seeing dead letters, putting them back, settling them, each once and audited."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from holdfast.core.errors import Unavailable, UnfinishedRetry
from holdfast.records import audit
from holdfast.records.dead_letters import DeadLetters, LetterFilter, LetterStatus
from holdfast.records.protocol import LetterTable
from holdfast.records.redrive import Redrives, Retried
from holdfast.records.tables import SqlLetterTable
from tests.cli.desk import Desk
from tests.cli.shop import Shop
from tests.records.samples import add_letter, days_ago


def test_list_filters_and_pages(desk: Desk) -> None:
    email, sms = desk.bury("no route", correlation_id="order-7"), desk.bury("Timeout", topic="sms")
    add_letter(desk.hf.database, instance_id="inst-1", last_failure_at=days_ago(10))

    def found(*options: object) -> list[str]:
        return [item["item_id"] for item in desk("dlq", "list", "--json", *options).items]

    assert found() == [f"job-{sms}", f"job-{email}", "m-1"]
    assert found("--engine", "jobs:sms") == [f"job-{sms}"]
    assert found("--error", "timeout") == [f"job-{sms}"]
    assert found("--correlation-id", "order-7") == [f"job-{email}"]
    assert found("--instance-id", "inst-1") == ["m-1"]
    assert found("--to", "2020-01-01") == []
    assert found("--status", "resolved") == []
    first = desk("dlq", "list", "--limit", 2, "--json")
    assert found("--after", first.json["continuation_token"]) == ["m-1"]
    table = desk("dlq", "list")
    assert "Timeout" in table.out
    assert desk.letter(sms).row_key in table.out
    assert "No dead letter fits." in desk("dlq", "list", "--engine", "tls").out


@pytest.mark.parametrize("command", ["dlq", "history"])
def test_row_keys_can_be_copied_from_a_listing(desk: Desk, command: str) -> None:
    """However long they are: nothing of them is folded or cut when the output is not a terminal."""
    for correlation_id in ("0f8fad5b-d9cb-469f-a165-70867728950e", "/" * 200):
        desk.bury("x" * 300, topic="a-topic-with-a-long-name", operation="o" * 100, correlation_id=correlation_id)
    for item in desk(command, "list", "--json").items:
        assert f" {item['row_key']} " in desk(command, "list").out


def test_list_keeps_messages_to_show(desk: Desk) -> None:
    letter = desk.letter(desk.bury(payload='{"card": "4111"}'))
    assert "4111" not in desk("dlq", "list", "--json").out + desk("dlq", "list").out
    shown = desk("dlq", "show", letter.engine, letter.row_key, "--json").json
    assert shown["original_message"] == '{"card": "4111"}'
    assert (shown["status"], shown["dequeue_count"], shown["original_queue"]) == ("Pending", 1, "email")
    assert shown["last_failure_at"].endswith("Z")
    assert "4111" in desk("dlq", "show", letter.engine, letter.row_key).out


def test_retry_one(desk: Desk) -> None:
    job_id = desk.bury()
    letter = desk.letter(job_id)
    assert desk("dlq", "retry", letter.engine, letter.row_key).out == f"Put back: job-{job_id} into 'email'.\n"
    assert desk.queue.claim_one().attempt == 2
    assert desk.letter(job_id).status is LetterStatus.RESOLVED
    assert desk.audited() == [("eve", "dlq retry", f"jobs:email/{letter.row_key}")]
    desk.refused(3, "is Resolved by eve (Retried)", arguments=("dlq", "retry", letter.engine, letter.row_key))
    assert len(desk.audited()) == 1


def test_retry_one_as_json_after_its_job_is_gone(desk: Desk) -> None:
    job_id = desk.bury()
    letter = desk.letter(job_id)
    with desk.hf.database.begin() as connection:
        connection.execute(text("DELETE FROM holdfast_jobs"))
    answer = desk("dlq", "retry", letter.engine, letter.row_key, "--json").json
    assert answer == {"engine": "jobs:email", "row_key": letter.row_key, "retried_as": f"job-{job_id}"}
    assert (desk.queue.claim_one().id, desk.queue.column(job_id, "attempt")) == (job_id, 2)


def test_retry_one_whose_key_is_taken(desk: Desk) -> None:
    letter = desk.letter(desk.bury(unique_key="k"))
    desk.queue.add(unique_key="k")
    desk.refused(1, "same unique key", arguments=("dlq", "retry", letter.engine, letter.row_key))
    assert DeadLetters(desk.hf.database).get(letter.engine, letter.row_key) == letter
    assert desk.audited() == []


def test_retry_one_of_an_engine_tells_the_new_message(desk: Desk) -> None:
    desk.hf.engine("hmac", queue="hmac-rotation-queue", operation="rotate")(lambda context, message: None)
    letter = add_letter(desk.hf.database)
    answer = desk("dlq", "retry", "hmac", letter.row_key, "--json").json
    settled = desk.hf.dead_letters.get("hmac", letter.row_key)
    assert settled is not None
    assert settled.retried_as not in (None, letter.item_id)
    assert answer == {"engine": "hmac", "row_key": letter.row_key, "retried_as": settled.retried_as}
    assert desk.audited() == [("eve", "dlq retry", f"hmac/{letter.row_key}")]


def test_retry_one_of_a_kind_that_nobody_knows(desk: Desk) -> None:
    letter = add_letter(desk.hf.database, engine="trigger:orders")
    arguments = ("dlq", "retry", "trigger:orders", letter.row_key)
    desk.refused(2, "nothing here knows where it came from", "dlq resolve", arguments=arguments)


def test_retry_by_filter_says_how_many_and_asks_for_the_engine(desk: Desk) -> None:
    timeouts = [desk.bury("Timeout") for _ in range(3)]
    other = desk.bury("no route")
    command = ("dlq", "retry", "--engine", "jobs:email", "--error", "timeout")
    desk.refused(3, "Nothing was changed", "--yes", arguments=command)
    desk.refused(3, "not the engine's name", arguments=command, typed="email")
    assert desk.audited() == []
    answer = desk(*command, typed="jobs:email")
    assert "3 Pending dead letters would be put back." in answer.err
    assert answer.out.strip() == "3 dead letters put back."
    assert [desk.queue.status(job_id) for job_id in (*timeouts, other)] == ["ready"] * 3 + ["dead"]
    assert len(desk.audited()) == 3


def test_retry_by_filter_without_an_engine_asks_for_the_number(desk: Desk) -> None:
    desk.bury()
    assert desk("dlq", "retry", "--error", "boom", typed="1").out.strip() == "1 dead letter put back."


def test_retry_by_age(desk: Desk) -> None:
    desk.bury()
    assert desk("dlq", "retry", "--older-than", "1h", "--yes", "--json").json == {"retried": 0, "refused": []}
    assert desk("dlq", "retry", "--older-than", "0m", "--to", "2999-01-01", "--yes").out == "1 dead letter put back.\n"


def test_retry_by_filter_tells_what_stays(desk: Desk) -> None:
    add_letter(desk.hf.database, engine="trigger:orders", last_failure_at=days_ago(2))
    job_id = desk.bury()
    desk.refused(
        3,
        "1 dead letter not put back",
        "nothing here knows where it came from",
        arguments=("dlq", "retry", "--from", "2020-01-01", "-y"),
    )
    assert desk.queue.status(job_id) == "ready"


def test_retry_by_filter_that_breaks_off_tells_how_far_it_came(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks_off(*_: object) -> Iterator[Retried]:
        yield Retried(100)
        raise Unavailable("The database was busy. Try again.")

    monkeypatch.setattr(Redrives, "retry_all", breaks_off)
    desk.bury()
    answer = desk("dlq", "retry", "--engine", "jobs:email", "--yes")
    assert (answer.code, answer.out) == (1, "")
    assert "100 dead letters had been put back by then" in answer.err
    assert "busy" in answer.err.splitlines()[-1]


def test_resolve(desk: Desk) -> None:
    letter = desk.letter(desk.bury())
    named = (letter.engine, letter.row_key)
    desk.refused(2, "--notes", arguments=("dlq", "resolve", *named))
    assert "by eve" in desk("dlq", "resolve", *named, "--notes", "sent by post").out
    settled = DeadLetters(desk.hf.database).get(*named)
    assert settled is not None
    assert (settled.status, settled.resolution_notes) == (LetterStatus.RESOLVED, "sent by post")
    assert desk.audited() == [("eve", "dlq resolve", "/".join(named))]
    desk.refused(3, "is Resolved by eve (sent by post)", arguments=("dlq", "resolve", *named, "--notes", "again"))
    other = desk.letter(desk.bury())
    told = desk("dlq", "resolve", other.engine, other.row_key, "--notes", "x", "--json").json
    assert (told["status"], told["resolved_by"]) == ("Resolved", "eve")


def test_resolve_despite_a_retry_that_was_begun_needs_force(desk: Desk) -> None:
    new = add_letter(desk.hf.database)
    SqlLetterTable(desk.hf.database).begin_retry("hmac", new.row_key, "anne", "m-2")
    command = ("dlq", "resolve", "hmac", new.row_key, "--notes", "by hand")
    desk.refused(3, "is being retried by anne as 'm-2'", "nothing was changed", "--force", arguments=command)
    assert desk(*command, "--force", "--json").json["status"] == "Resolved"
    [row] = audit.page(desk.hf.database, action="dlq resolve").items
    assert row.details == {"notes": "by hand", "despite_retry_as": "m-2"}


def test_retry_by_filter_that_breaks_off_in_a_retry_says_that_one_was_begun(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*given: Any) -> Iterator[Retried]:
        yield Retried(2)
        raise UnfinishedRetry("The retry of dead letter 'x' was begun and could not be finished now.")

    desk.bury()
    monkeypatch.setattr(Redrives, "retry_all", break_off)
    answer = desk("dlq", "retry", "--engine", "jobs:email", "--yes")
    assert "2 dead letters had been put back by then; one was begun, the others are as they were." in answer.err
    assert "was begun" in answer.err.splitlines()[-1]


def test_expire(desk: Desk) -> None:
    add_letter(desk.hf.database, last_failure_at=days_ago(31))
    add_letter(desk.hf.database, item="m-2", last_failure_at=days_ago(29))
    command = ("dlq", "expire", "--older-than", "30d", "--engine", "hmac")
    desk.refused(3, "Nothing was changed", arguments=command)
    answer = desk(*command, typed="hmac")
    assert "1 Pending dead letter would expire." in answer.err
    assert answer.out.strip() == "1 dead letter expired."
    assert desk(*command, "--json").json == {"engine": "hmac", "expired": 0}
    assert desk.audited() == [("eve", "dlq expire", "hmac")]


class Uncounted:
    """Dead letters of a table that cannot count, such as an Azure table."""

    def __init__(self, letters: LetterTable) -> None:
        self._letters = letters

    def __getattr__(self, name: str) -> Any:
        return getattr(self._letters, name)

    def count(self, wanted: LetterFilter) -> None:
        """Tell nothing."""


@pytest.fixture
def uncounted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    letters = Uncounted(desk.hf.dead_letters)
    monkeypatch.setattr(type(desk.hf), "dead_letters", property(lambda hf: letters))
    return desk


def test_expire_where_the_table_cannot_count_asks_without_a_number(uncounted: Desk) -> None:
    add_letter(uncounted.hf.database, last_failure_at=days_ago(31))
    command = ("dlq", "expire", "--older-than", "30d")
    uncounted.refused(3, "Nothing was changed", "--yes", arguments=command)
    uncounted.refused(3, "not the word", arguments=command, typed="1")
    assert uncounted.audited() == []
    answer = uncounted(*command, typed="all")
    assert "All Pending dead letters that fit would expire." in answer.err
    assert "None" not in answer.err + answer.out
    assert answer.out.strip() == "1 dead letter expired."
    assert uncounted(*command, "--engine", "hmac", typed="hmac").out.strip() == "0 dead letters expired."


def test_retry_where_the_table_cannot_count_asks_without_a_number(uncounted: Desk) -> None:
    job_id = uncounted.bury()
    command = ("dlq", "retry", "--error", "boom")
    uncounted.refused(3, "not the word", arguments=command, typed="0")
    assert uncounted.queue.status(job_id) == "dead"
    answer = uncounted(*command, typed="all")
    assert "All Pending dead letters that fit would be put back." in answer.err
    assert answer.out.strip() == "1 dead letter put back."
    assert uncounted.queue.status(job_id) == "ready"


@pytest.mark.parametrize("command", [("show",), ("retry",), ("resolve", "--notes", "x")], ids=" ".join)
def test_a_letter_nobody_knows(desk: Desk, command: tuple[str, ...]) -> None:
    name, *options = command
    desk.refused(2, "no dead letter 'job-9' of engine 'jobs:x'", arguments=("dlq", name, "jobs:x", "job-9", *options))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("dlq", "list", "--status", "lost"), ("'lost' is not a status", "Pending, Resolved, Expired or Unknown")),
        (("dlq", "list", "--after", "x"), ("not a continuation token of the dead letters",)),
        (("dlq", "list", "--to", "2026-13-01"), ("'2026-13-01' is not a date",)),
        (("dlq", "retry"), ("ENGINE and ROWKEY",)),
        (("dlq", "retry", "jobs:email"), ("ENGINE and ROWKEY",)),
        (("dlq", "retry", "jobs:email", "x", "--error", "boom"), ("ENGINE and ROWKEY",)),
        (("dlq", "retry", "--older-than", "soon"), ("'soon' is not a length of time", "20s, 30m, 12h or 90d")),
        (("dlq", "expire"), ("--older-than 90d",)),
        (("dlq", "expire", "--older-than", "999999d"), ("'999999d' is not a length of time",)),
        (("dlq", "expire", "--older-than", "-1d"), ("'-1d' is not a length of time",)),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_wrong_usage(desk: Desk, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    desk.refused(2, *parts, arguments=arguments)


@pytest.mark.parametrize("command", [("jobs", "list"), ("dlq", "list"), ("history", "list")], ids=" ".join)
def test_a_database_that_does_not_answer(shop: Shop, command: tuple[str, ...]) -> None:
    unreachable = {"HOLDFAST_URL": "postgresql://app:s3cret@127.0.0.1:1/shop"}
    result = shop.cli(*command, environment=unreachable)
    assert result.returncode == 1
    assert "app:***@127.0.0.1:1/shop does not answer" in result.stderr
    assert "Traceback" not in result.stderr


def test_13_10_reopen(desk: Desk) -> None:
    settled = add_letter(desk.hf.database, last_failure_at=days_ago(31))
    command = ("dlq", "reopen", "hmac", settled.row_key, "--notes", "too early")
    desk.refused(3, "is Pending, not settled", arguments=command)
    desk("dlq", "expire", "--older-than", "30d", "--yes")
    assert desk(*command).out.strip() == f"Pending again: hmac {settled.row_key}."
    assert desk.hf.dead_letters.get("hmac", settled.row_key) == settled
    desk.refused(2, "There is no dead letter 'none'", arguments=("dlq", "reopen", "hmac", "none", "--notes", "x"))
    assert ("eve", "dlq reopen", f"hmac/{settled.row_key}") in desk.audited()
