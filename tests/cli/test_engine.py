"""``holdfast engine``, as a person uses it."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from azure.storage.queue import QueueClient

from holdfast import EngineProvider, Holdfast
from holdfast.engines.azure import AzureStorage
from holdfast.records import audit
from tests.cli.desk import Desk
from tests.cli.shop import Shop
from tests.cli.workers import running
from tests.components.azurite import AzuriteServer
from tests.components.processes import wait_until
from tests.engines.driving import queue_of
from tests.records.samples import count

APP = """
from holdfast import Holdfast

hf = Holdfast()

@hf.engine("hmac")
def rotate(context, message):
    pass
"""


def rotate(context: object, message: object) -> None:
    """Rotate nothing: messages only wait here."""


def declare(hf: Holdfast) -> None:
    hf.engine("hmac", schedule="0 3 * * *", timezone="Europe/Berlin")(rotate)
    hf.engine("hmac", operation="notify", singleton=True, max_retry_attempts=9)(rotate)


@pytest.fixture
def staffed(desk: Desk) -> Desk:
    """A desk of an application with an engine, over each database."""
    declare(desk.hf)
    return desk


@pytest.fixture
def steady(bare_desk: Desk) -> Iterator[Desk]:
    """A desk at which nothing is ever sent, checked afterwards."""
    declare(bare_desk.hf)
    bare_desk.hf.migrate()
    yield bare_desk
    assert count(bare_desk.hf.database, "holdfast_jobs") == 0
    assert bare_desk.audited() == []


def waiting(desk: Desk) -> list[Any]:
    """The messages in the engine's queue that can be delivered now."""
    return [json.loads(message.body) for message in queue_of(desk.hf, "hmac").receive(10, 30.0)]


def test_list_shows_every_operation(steady: Desk) -> None:
    shown = steady("engine", "list").out
    for part in ("hmac-queue", "rotate", "notify", "'0 3 * * *' Europe/Berlin", "yes"):
        assert part in shown
    assert steady("engine", "list", "--json").json == [
        {
            "engine": "hmac",
            "operation": "rotate",
            "queue": "hmac-queue",
            "singleton": False,
            "max_retry_attempts": 5,
            "schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"},
            "paused": False,
            "fault": None,
        },
        {
            "engine": "hmac",
            "operation": "notify",
            "queue": "hmac-queue",
            "singleton": True,
            "max_retry_attempts": 9,
            "schedule": None,
            "paused": False,
            "fault": None,
        },
    ]


def test_list_of_nothing_needs_no_tables(bare_desk: Desk) -> None:
    assert "No engine is declared" in bare_desk("engine", "list").out
    assert bare_desk("engine", "list", "--json").json == []


def test_a_paused_engine_is_shown_as_such(staffed: Desk) -> None:
    """Also one that has no messages: it is paused by its topic."""
    assert staffed("jobs", "pause", "engine.hmac-queue").out == "Topic 'engine.hmac-queue' is paused.\n"
    assert staffed("engine", "list").out.count(" paused ") == 1 + 2  # the heading, and both operations
    assert [item["paused"] for item in staffed("engine", "list", "--json").json] == [True, True]
    staffed("engine", "send", "hmac")
    assert waiting(staffed) == []
    staffed("jobs", "resume", "engine.hmac-queue")
    assert [item["paused"] for item in staffed("engine", "list", "--json").json] == [False, False]
    assert len(waiting(staffed)) == 1


def test_an_engine_that_cannot_run_says_why(staffed: Desk) -> None:
    with staffed.hf.database.begin() as connection:
        connection.exec_driver_sql("DROP TABLE holdfast_history")
    assert "Engine 'hmac' does not run until that is mended: " in staffed("engine", "list").out
    assert ["tables" in item["fault"] for item in staffed("engine", "list", "--json").json] == [True, True]


def test_list_before_there_are_tables_says_what_it_cannot_tell(bare_desk: Desk) -> None:
    declare(bare_desk.hf)
    answer = bare_desk("engine", "list", "--json")
    assert [item["paused"] for item in answer.json] == [None, None]
    assert answer.err.startswith("Whether an engine is paused cannot be told: ")


@pytest.mark.parametrize("command", [("cancel",), ("retry",)], ids=" ".join)
def test_messages_are_not_changed_as_jobs(staffed: Desk, command: tuple[str, ...]) -> None:
    staffed("engine", "send", "hmac", "--delay", "1h")
    job_id = staffed.queue.add().id
    [message] = staffed("jobs", "list", "--topic", "engine.hmac-queue", "--json").items
    parts = (f"Job {message['id']} is a message of engine queue 'hmac-queue'", "nothing was changed", "holdfast dlq")
    staffed.refused(3, *parts, arguments=("jobs", *command, message["id"], job_id))
    assert staffed.queue.status(message["id"]) == "scheduled"
    assert staffed.queue.status(job_id) == "ready"
    assert [action for _, action, _ in staffed.audited()] == ["engine send"]


def test_send_puts_a_message_into_the_queue(staffed: Desk) -> None:
    told = staffed("engine", "send", "hmac", '{"key": "ü"}', "--message-id", "m-1", "--correlation-id", "c-1").out
    assert told == "Sent message 'm-1' to hmac-queue: hmac rotate, correlation id 'c-1'.\n"
    options = ("--operation", "notify", "--instance-id", "inst-1", "--json")
    answer = staffed("engine", "send", "hmac", *options).json
    first, second = waiting(staffed)
    assert (first["payload"], first["messageId"], first["correlationId"]) == ({"key": "ü"}, "m-1", "c-1")
    assert second["payload"] is None
    assert answer == {
        "message_id": second["messageId"],
        "correlation_id": second["correlationId"],
        "engine": "hmac",
        "operation": "notify",
        "instance_id": "inst-1",
        "queue": "hmac-queue",
    }
    last, row = audit.page(staffed.hf.database).items
    assert (row.actor, row.action, row.target) == ("eve", "engine send", "hmac/m-1")
    assert "ü" not in str(row.details)
    assert last.target == f"hmac/{answer['message_id']}"


def test_send_reads_stdin(staffed: Desk) -> None:
    assert staffed("engine", "send", "hmac", "-", piped='["🦀"]\n'.encode()).code == 0
    assert [sent["payload"] for sent in waiting(staffed)] == [["🦀"]]


def test_send_later(staffed: Desk) -> None:
    assert staffed("engine", "send", "hmac", "--delay", "7d").code == 0
    assert waiting(staffed) == []
    [job] = staffed("jobs", "list", "--topic", "engine.hmac-queue", "--json").items
    assert job["status"] == "scheduled"
    assert len(staffed.audited()) == 1


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("send",), ("ENGINE",)),
        (("send", "hmca"), ("no engine 'hmca'", "Declared: hmac")),
        (("send", "hmac", "--operation", "rotat"), ("no operation 'rotat'", "rotate, notify")),
        (("send", "hmac", "text"), ("The payload is not JSON", "double quotes")),
        (("send", "hmac", "{"), ("The payload is not JSON",)),
        (("send", "hmac", "NaN"), ("NaN",)),
        (("send", "hmac", "1e999"), ("Infinity",)),
        (("send", "hmac", "[" * 100_000), ("nested too deeply", "Nothing was sent")),
        (("send", "hmac", "[" * 60_000 + "]" * 60_000), ("nested too deeply", "Nothing was sent")),
        (("send", "hmac", '"' + "x" * 1024 * 1024 + '"'), ("at most 1,048,576",)),
        (("send", "hmac", "1", "2"), ("unexpected extra argument",)),
        (("send", "hmac", "--message-id", ""), ("messageId", "it is empty")),
        (("send", "hmac", "--message-id", "m" * 201), ("messageId", "200 are the most")),
        (("send", "hmac", "--correlation-id", "\udcff"), ("correlationId", "half of a surrogate pair")),
        (("send", "hmac", "--instance-id", ""), ("instanceId",)),
        (("send", "hmac", "--delay", "soon"), ("'soon' is not a length of time",)),
        (("send", "hmac", "--delay", "8d"), ("--delay", "7d")),
        (("drain-poison",), ("ENGINE",)),
        (("drain-poison", "hmca"), ("no engine 'hmca'",)),
    ],
    ids=lambda value: " ".join(map(str, value))[:40],
)
def test_what_cannot_be_sent_is_one_sentence(steady: Desk, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    steady.refused(2, *parts, arguments=("engine", *arguments))


@pytest.mark.parametrize(
    ("given", "part"),
    [(b"", "not JSON"), (b"\xff", "not text in UTF-8"), (b"1" * (1024 * 1024 + 1), "more than 1,048,576 characters")],
    ids=["empty", "bytes", "endless"],
)
def test_what_stdin_cannot_send(steady: Desk, given: bytes, part: str) -> None:
    answer = steady("engine", "send", "hmac", "-", piped=given)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert part in answer.err


@pytest.mark.parametrize("command", [("send", "hmac"), ("drain-poison", "hmac")])
def test_missing_tables(bare_desk: Desk, command: tuple[str, ...]) -> None:
    declare(bare_desk.hf)
    bare_desk.refused(2, "There is no SQLite file", "holdfast migrate", arguments=("engine", *command))


def test_a_queue_in_the_database_has_no_poison(steady: Desk) -> None:
    assert steady("engine", "drain-poison", "hmac").out == "There is no poison of 'hmac'.\n"


def test_what_a_host_gave_up_on_becomes_a_dead_letter(
    bare_desk: Desk, sqlite_url: str, azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, queue = EngineProvider(), f"q{uuid.uuid4().hex}"
    account = AzureStorage.from_connection_string(azurite.connection_string)
    bare_desk.hf = Holdfast(sqlite_url, engine_queues=account, engine_provider=provider)
    bare_desk.hf.engine("hmac", queue=queue)(rotate)
    monkeypatch.setattr(sys.modules["desk_application"], "hf", bare_desk.hf)
    bare_desk.hf.migrate()
    with QueueClient.from_connection_string(azurite.connection_string, f"{queue}-poison") as poison:
        for number in range(2):
            poison.send_message(json.dumps({"messageId": f"m-{number}", "payload": number}))
        assert bare_desk("engine", "drain-poison", "hmac").out.startswith("2 messages of 'hmac' went from the poison")
        assert poison.get_queue_properties().approximate_message_count == 0
    assert bare_desk("engine", "drain-poison", "hmac", "--json").json == {"engine": "hmac", "drained": 0}
    assert bare_desk.audited() == [("eve", "engine drain-poison", "hmac")], "for what was there, once"
    letters = bare_desk("dlq", "list", "--engine", "hmac", "--json").items
    assert sorted(letter["item_id"] for letter in letters) == ["m-0", "m-1"]
    provider.dispose_all()
    account.close()


def test_the_commands_work_as_a_process(shop: Shop) -> None:
    shop.write_app(APP)
    assert shop.cli("migrate").returncode == 0
    assert json.loads(shop.cli("engine", "send", "hmac", "[1]", "--json").stdout)["queue"] == "hmac-queue"
    assert "hmac-queue" in shop.cli("engine", "list").stdout
    assert "engine.hmac-queue" in shop.cli("jobs", "stats").stdout


def test_run_tells_which_engines_it_runs(shop: Shop) -> None:
    shop.write_app(APP)
    with running(shop, "--migrate") as worker:
        wait_until(lambda: "Running in process" in worker.output, "the worker to start")
        assert "Engine hmac: takes rotate from hmac-queue\n" in worker.output
        worker.process.terminate()
        assert worker.wait() == 0


def test_help_tells_how_engines_and_jobs_go_together(bare_desk: Desk) -> None:
    shown = bare_desk("engine").out
    assert all(command in shown for command in ("list", "send", "drain-poison"))
    assert "Exit codes: 0 ok" in shown
    for command in (("jobs",), ("jobs", "list", "--help"), ("jobs", "stats", "--help")):
        assert "engine.QUEUE" in bare_desk(*command).out
