"""`holdfast history`: what happened, in pages, and one attempt in full."""

from __future__ import annotations

import pytest

from tests.cli.desk import Desk
from tests.records.samples import add_entry


def test_list_filters_and_pages(desk: Desk) -> None:
    done = desk.finish(correlation_id="order-7", instance_id="inst-1")
    dead = desk.bury("Timeout", topic="sms", operation="text")

    def found(*options: object) -> list[str]:
        return [item["item_id"] for item in desk("history", "list", "--json", *options).items]

    assert found() == [f"job-{dead}", f"job-{done}"]
    assert found("--engine", "jobs:sms") == [f"job-{dead}"]
    assert found("--status", "Succeeded") == [f"job-{done}"]
    assert found("--operation", "text") == [f"job-{dead}"]
    assert found("--instance-id", "inst-1") == [f"job-{done}"]
    assert found("--correlation-id", "order-7") == [f"job-{done}"]
    assert found("--error", "timeout") == [f"job-{dead}"]
    assert found("--from", "2020-01-01T00:00:00+02:00", "--to", "2999-01-01") == [f"job-{dead}", f"job-{done}"]
    assert found("--from", "2999-01-01") == []
    first = desk("history", "list", "--limit", 1, "--json")
    assert found("--after", first.json["continuation_token"]) == [f"job-{done}"]
    assert "order-7" in desk("history", "list").out
    assert "Nothing has happened that fits." in desk("history", "list", "--engine", "tls").out


def test_show_gives_back_what_list_leaves_out(desk: Desk) -> None:
    desk.finish('{"sent": "4111"}', payload='{"card": "4111"}', correlation_id="a/b c")
    listed = desk("history", "list", "--json")
    assert "4111" not in listed.out + desk("history", "list").out
    [item] = listed.items
    assert item["row_key"].startswith("a~2Fb c-")
    shown = desk("history", "show", "jobs:email", item["row_key"], "--json").json
    assert (shown["input"], shown["output"]) == ('{"card": "4111"}', '{"sent": "4111"}')
    assert (shown["status"], shown["duration_ms"], shown["attempt"]) == ("Succeeded", 7, 1)
    assert "4111" in desk("history", "show", "jobs:email", item["row_key"]).out


def test_an_entry_nobody_knows(desk: Desk) -> None:
    add_entry(desk.hf.database)
    [item] = desk("history", "list", "--json").items
    desk.refused(2, "no history entry", "engine 'tls'", arguments=("history", "show", "tls", item["row_key"]))
    desk.refused(2, "'c-1' is not a row key", arguments=("history", "show", "hmac", "c-1"))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--status", "Pending"), ("'Pending' is not a status", "Succeeded, Failed, Skipped or Unknown")),
        (("--limit", 1000), ("--limit", "100")),
        (("--after", "x"), ("not a continuation token of the history",)),
        (("--from", ""), ("is not a date",)),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_wrong_usage(desk: Desk, arguments: tuple[object, ...], parts: tuple[str, ...]) -> None:
    desk.refused(2, *parts, arguments=("history", "list", *arguments))
