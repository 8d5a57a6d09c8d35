"""`holdfast jobs`: seeing the queue, and changing it by hand behind guardrails."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from holdfast.jobs.model import PutBack
from tests.cli.desk import Desk
from tests.jobs.queues import ANNE, next_suspect


def test_list_shows_the_newest_first_and_goes_on_with_the_token(desk: Desk) -> None:
    ids = [desk.queue.add(correlation_id=f"order-{number}").id for number in range(3)]
    first = desk("jobs", "list", "--limit", 2, "--json")
    rest = desk("jobs", "list", "--limit", 2, "--json", "--after", first.json["continuation_token"])
    assert [item["id"] for item in (*first.items, *rest.items)] == ids[::-1]
    assert rest.json["continuation_token"] is None
    table = desk("jobs", "list", "--limit", 2)
    assert "order-2" in table.out
    assert f"--after {first.json['continuation_token']}" in table.err
    assert "No job in the queue fits." in desk("jobs", "list", "--topic", "sms").out


def test_list_filters(desk: Desk) -> None:
    dead = desk.bury("Connection reset", tags='["vip"]')
    ready = desk.queue.add("sms", correlation_id="order-7").id

    def found(*options: object) -> list[int]:
        return [item["id"] for item in desk("jobs", "list", "--json", *options).items]

    assert found() == [ready, dead]
    assert found("--topic", "sms") == [ready]
    assert found("--status", "dead") == [dead]
    assert found("--status", "DEAD") == [dead]
    assert found("--tag", "vip") == [dead]
    assert found("--correlation-id", "order-7") == [ready]
    assert found("--error", "connection RESET") == [dead]
    assert found("--from", "2020-01-01", "--to", "2999-01-01T00:00:00Z") == [ready, dead]
    assert found("--to", "2020-01-01") == []


def test_list_shows_suspects_and_how_long_jobs_run(desk: Desk) -> None:
    queue = desk.queue
    suspect, tested = (queue.add(operation=name).id for name in ("first", "second"))
    queue.claim(2)
    queue.step(31)
    queue.store.reap()
    found = next_suspect(queue.store, ANNE, lambda topic, operation: operation == "second")
    assert found is not None
    assert queue.store.begin(ANNE, found.job.claim)
    running = queue.add().id
    queue.claim_one()
    by_id = {item["id"]: item for item in desk("jobs", "list", "--json").items}
    assert [by_id[job_id]["status"] for job_id in (suspect, tested, running)] == ["suspect", "running", "running"]
    assert [by_id[job_id]["is_tested"] for job_id in (suspect, tested, running)] == [False, True, False]
    assert by_id[running]["running_seconds"] >= 0
    assert by_id[suspect]["running_seconds"] is None
    table = desk("jobs", "list").out
    assert "under test" in table
    assert "running for" in table
    assert [item["id"] for item in desk("jobs", "list", "--status", "suspect", "--json").items] == [suspect]
    assert desk("jobs", "stats", "--json").json[0]["suspect"] == 1


def test_list_keeps_payloads_to_show(desk: Desk) -> None:
    job_id = desk.queue.add(payload='{"card": "4111"}').id
    assert "4111" not in desk("jobs", "list", "--json").out + desk("jobs", "list").out
    assert desk("jobs", "show", job_id, "--json").json["job"]["payload"] == '{"card": "4111"}'


def test_show_a_job_in_the_queue(desk: Desk) -> None:
    job_id = desk.queue.add(tags='["vip", "eu"]', run_at=datetime(2999, 1, 1, tzinfo=UTC)).id
    shown = desk("jobs", "show", job_id, "--json").json
    assert (shown["job"]["status"], shown["job"]["run_at"]) == ("scheduled", "2999-01-01T00:00:00Z")
    assert (shown["attempts"], shown["dead_letters"]) == ([], [])
    table = desk("jobs", "show", job_id).out
    assert "2999-01-01 00:00:00 UTC" in table
    assert "vip, eu" in table


@pytest.mark.parametrize("correlation", [None, "order-7"])
def test_show_a_job_that_succeeded(desk: Desk, correlation: str | None) -> None:
    job_id = desk.finish('{"sent": true}', correlation_id=correlation)
    shown = desk("jobs", "show", job_id, "--json").json
    assert shown["job"] is None
    [attempt] = shown["attempts"]
    assert (attempt["status"], attempt["attempt"], attempt["output"]) == ("Succeeded", 1, '{"sent": true}')
    table = desk("jobs", "show", job_id).out
    assert "ended, Succeeded" in table
    assert '{"sent": true}' in table


def test_show_a_dead_job_with_every_attempt_and_letter(desk: Desk) -> None:
    job_id = desk.bury("first")
    assert desk("jobs", "retry", job_id).code == 0
    queue = desk.queue
    [job] = queue.claim(1)
    queue.store.put_back(ANNE, [PutBack(job.claim)])
    shown = desk("jobs", "show", job_id, "--json").json
    assert shown["job"]["attempt"] == 2
    assert [item["error"] for item in shown["attempts"]] == ["first"]
    [letter] = shown["dead_letters"]
    assert (letter["status"], letter["resolution_notes"]) == ("Resolved", "Retried")
    assert letter["row_key"] in desk("jobs", "show", job_id).out


def test_show_a_job_only_its_letter_remembers(desk: Desk) -> None:
    job_id = desk.bury()
    with desk.hf.database.begin() as connection:
        connection.execute(text("DELETE FROM holdfast_jobs"))
        connection.execute(text("DELETE FROM holdfast_history"))
    assert "dead letter, Pending" in desk("jobs", "show", job_id).out


def test_retry_one(desk: Desk) -> None:
    job_id = desk.bury()
    assert desk("jobs", "retry", job_id).out == f"Put back: job {job_id}.\n"
    assert desk.queue.status(job_id) == "ready"
    assert desk.letter(job_id).resolved_by == "eve"
    assert desk.audited() == [("eve", "jobs retry", f"job-{job_id}")]


def test_retry_several_is_guarded(desk: Desk) -> None:
    ids = [desk.bury(), desk.bury()]
    desk.refused(3, "Nothing was changed", "--yes", arguments=("jobs", "retry", *ids))
    desk.refused(3, "not how many", arguments=("jobs", "retry", *ids), typed="all")
    assert desk.audited() == []
    assert desk("jobs", "retry", *ids, "--json", "--yes").json == {"retried": ids}
    assert [desk.queue.status(job_id) for job_id in ids] == ["ready", "ready"]


def test_retry_what_cannot_be_retried(desk: Desk) -> None:
    ready, done, dead = desk.queue.add("sms").id, desk.finish(), desk.bury(unique_key="k")
    desk.queue.add(unique_key="k")
    desk.refused(3, f"Job {ready} is ready", "scheduled or suspect", arguments=("jobs", "retry", ready))
    desk.refused(2, f"Job {done} is not in the queue", f"jobs show {done}", arguments=("jobs", "retry", done))
    desk.refused(2, "Job 999 is not in the queue", arguments=("jobs", "retry", dead, 999, "--yes"))
    desk.refused(1, "same unique key", arguments=("jobs", "retry", dead))
    assert desk.queue.status(dead) == "dead"
    assert desk.audited() == []


def test_cancel_asks_for_the_topic(desk: Desk) -> None:
    job_id = desk.queue.add().id
    desk.refused(3, "Nothing was changed", "--yes", arguments=("jobs", "cancel", job_id))
    desk.refused(3, "not the topic", arguments=("jobs", "cancel", job_id), typed="sms")
    assert desk.queue.status(job_id) == "ready"
    answer = desk("jobs", "cancel", job_id, "--reason", "wrong order", typed="email")
    assert answer.out.strip() == f"Job {job_id}: cancelled."
    assert "1 job of email would be cancelled" in answer.err
    assert desk.queue.column(job_id, "cancel_reason") == "wrong order"
    assert desk.audited() == [("eve", "jobs cancel", f"job-{job_id}")]


def test_cancel_running_and_waiting_jobs_together(desk: Desk) -> None:
    running, waiting = desk.queue.add().id, desk.queue.add("sms").id
    desk.queue.claim_one()
    answer = desk("jobs", "cancel", running, waiting, "--yes", "--json").json
    assert answer["cancelled"] == [{"id": running, "status": "running"}, {"id": waiting, "status": "cancelled"}]


def test_cancel_what_has_ended(desk: Desk) -> None:
    waiting, dead = desk.queue.add("sms").id, desk.bury()
    desk.refused(3, f"Job {dead} is dead", arguments=("jobs", "cancel", waiting, dead, "--yes"))
    desk.refused(2, "Job 999 is not in the queue", arguments=("jobs", "cancel", 999, "--yes"))
    assert desk.queue.status(waiting) == "ready"


def test_stats_pause_and_resume(desk: Desk) -> None:
    desk.bury()
    desk.queue.add()
    desk.queue.add("sms", run_at=datetime.now(UTC) + timedelta(hours=1))
    assert desk("jobs", "pause", "email").out == "Topic 'email' is paused.\n"
    email, sms = desk("jobs", "stats", "--json").json
    assert (email["topic"], email["ready"], email["dead"], email["paused"]) == ("email", 1, 1, True)
    assert email["oldest_ready_seconds"] >= 0
    assert (sms["topic"], sms["scheduled"], sms["oldest_ready_seconds"], sms["paused"]) == ("sms", 1, None, False)
    assert "email" in desk("jobs", "stats").out
    assert desk("jobs", "resume", "email", "--json").json == {"topic": "email", "paused": False, "changed": True}
    assert desk("jobs", "resume", "email").out == "Topic 'email' is not paused already.\n"
    assert [action for _, action, _ in desk.audited()] == ["jobs resume", "jobs pause"]


def test_stats_of_nothing(desk: Desk) -> None:
    assert desk("jobs", "stats").out == "There are no jobs, and no topic was declared.\n"
    assert desk("jobs", "stats", "--json").json == []


def test_pause_a_topic_nobody_knows(desk: Desk) -> None:
    desk.queue.add()
    desk.refused(2, "no topic named 'emial'", "Known here: email", arguments=("jobs", "pause", "emial"))
    assert desk.audited() == []


def test_show_a_job_nobody_knows(desk: Desk) -> None:
    desk.refused(2, "There is no job 999", "jobs list", arguments=("jobs", "show", 999))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("jobs", "list", "--status", "asleep"), ("'asleep' is not a status", "ready, scheduled")),
        (("jobs", "list", "--limit", 101), ("--limit", "100")),
        (("jobs", "list", "--limit", 0), ("--limit",)),
        (("jobs", "list", "--after", "7"), ("'7' is not a continuation token of the jobs",)),
        (("jobs", "list", "--from", "yesterday"), ("'yesterday' is not a date", "2026-04-07")),
        (("jobs", "show", "seven"), ("'seven' is not a job's id",)),
        (("jobs", "show", 0), ("'0' is not a job's id",)),
        (("jobs", "show", 2**63), (str(2**63),)),
        (("jobs", "cancel", 1, "1" * 5000), ("is not a job's id",)),
        (("jobs", "retry"), ("ID",)),
        (("jobs", "cancel"), ("ID",)),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_wrong_usage(desk: Desk, arguments: tuple[object, ...], parts: tuple[str, ...]) -> None:
    desk.refused(2, *parts, arguments=arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "list"),
        ("jobs", "stats"),
        ("jobs", "show", 1),
        ("jobs", "retry", 1),
        ("jobs", "cancel", 1, "--yes"),
        ("jobs", "pause", "email"),
        ("dlq", "list"),
        ("dlq", "retry", "--engine", "jobs:email", "--yes"),
        ("dlq", "resolve", "jobs:email", "job-1", "--notes", "x"),
        ("dlq", "expire", "--older-than", "1d", "--yes"),
        ("history", "list"),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_missing_tables(bare_desk: Desk, arguments: tuple[object, ...]) -> None:
    bare_desk.refused(2, "There is no SQLite file", "holdfast migrate", arguments=arguments)
    with bare_desk.hf.database.begin() as connection:
        connection.execute(text("CREATE TABLE something (id INTEGER)"))
    bare_desk.refused(2, "missing or out of date", "Run 'holdfast migrate' first", arguments=arguments)


def test_help_lists_the_commands(bare_desk: Desk) -> None:
    for group, commands in {
        "jobs": ("list", "show", "retry", "cancel", "stats", "pause", "resume"),
        "dlq": ("list", "show", "retry", "resolve", "expire"),
        "history": ("list", "show"),
    }.items():
        shown = bare_desk(group).out
        assert all(command in shown for command in commands)
        assert "Exit codes: 0 ok" in shown
