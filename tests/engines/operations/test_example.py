"""examples/functions-engines: a message from the queue to the history, with the real SDKs around the example."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import azure.functions as func
import pytest
from azure.core.exceptions import ResourceExistsError
from azure.durable_functions.models.utils import http_utils
from azure.storage.queue import QueueClient, QueueMessage, TextBase64EncodePolicy

from holdfast import EngineTablesConfig
from holdfast.records.dead_letters import LetterFilter, LetterStatus
from tests.components import availability, functions
from tests.components.azurite import AzuriteServer
from tests.components.processes import REPOSITORY, wait_until
from tests.engines.operations.functions_host import FunctionsServer, Hub, functions_server
from tests.engines.operations.hubs import message
from tests.functions.calls import Call
from tests.functions.conftest import sample_settings
from tests.functions.hosts import RuntimeHost, _imported
from tests.records.samples import days_ago, letter

EXAMPLE = REPOSITORY / "examples" / "functions-engines"


class Example:
    """The app's built functions, with a stand-in for the durable half of the host."""

    def __init__(self, module: Any, storage: str) -> None:
        self.module = module
        self.queue = QueueClient.from_connection_string(
            storage, "tls-queue", message_encode_policy=TextBase64EncodePolicy()
        )
        self.functions = {item.get_function_name(): item.get_user_function() for item in module.app.get_functions()}
        activities = {name: self.functions[name] for name in ("issue", "install")}
        self.hub = Hub({"renew": self.functions["renew"]}, activities)
        self.server: FunctionsServer

    def send(self, payload: Any) -> str:
        """Put a message into the queue and return its correlation id: the tables are shared with other tests."""
        correlation_id = uuid.uuid4().hex
        self.queue.send_message(json.dumps({"correlationId": correlation_id, "payload": payload}))
        return correlation_id

    def history(self, correlation_id: str) -> list[Any]:
        tables = self.module.storage.tables(EngineTablesConfig())
        return list(tables.history.of_correlation("tls", correlation_id))

    def fire(self) -> bool:
        """Do what the host does with the next message; return whether it would delete it."""
        received = wait_until(self.queue.receive_message, "a message")
        assert received is not None
        body = json.loads(_text(received))
        given = func.QueueMessage(id=received.id, body=json.dumps(body).encode(), pop_receipt=received.pop_receipt)
        given._QueueMessage__dequeue_count = received.dequeue_count  # type: ignore[attr-defined]  # as its decoder does
        given._QueueMessage__insertion_time = received.inserted_on  # type: ignore[attr-defined]  # as its decoder does
        return asyncio.run(self._fire(given))

    async def _fire(self, given: func.QueueMessage) -> bool:
        try:
            await self.functions["tls_queue"](msg=given, client=self.server.binding)
        except Exception:
            return False
        finally:
            await http_utils._close_session()
        return True


def _text(received: QueueMessage) -> str:
    return base64.b64decode(received.content).decode()


@pytest.fixture
def example(azurite: AzuriteServer, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Example]:
    monkeypatch.setenv("AzureWebJobsStorage", azurite.connection_string)
    monkeypatch.setenv("DB_URL", sqlite_url)
    module: Any = _imported(EXAMPLE / "function_app.py")
    module.hf.migrate()
    made = Example(module, azurite.connection_string)
    with made.queue:
        with suppress(ResourceExistsError):
            made.queue.create_queue()
        made.queue.clear_messages()
        with functions_server(made.hub) as made.server:
            yield made
        made.queue.clear_messages()
    module.storage.close()
    module.hf._provider.dispose_all()


def test_a_message_becomes_an_orchestration_and_its_end_becomes_history(example: Example) -> None:
    correlation_id = example.send({"hosts": ["a.example", "b.example"]})
    assert example.fire()
    assert list(example.hub.instances) == [f"tls-renew-{correlation_id}"]
    [entry] = example.history(correlation_id)
    assert (str(entry.status), entry.operation) == ("Succeeded", "renew")
    assert json.loads(entry.output) == {"installed": ["a.example", "b.example"]}


def test_a_message_that_fails_comes_again(example: Example) -> None:
    correlation_id = example.send({})
    assert not example.fire()
    [entry] = example.history(correlation_id)
    assert str(entry.status) == "Failed"
    assert "hosts" in entry.error


def test_the_timer_buries_poison_finishes_retries_and_forgets_what_is_old(example: Example) -> None:
    letters = example.module.storage.tables(EngineTablesConfig()).letters
    poisoned, begun, old = (letter(item=uuid.uuid4().hex, engine="tls", original_queue="tls-queue") for _ in range(3))
    body = json.dumps({"messageId": poisoned.item_id, "correlationId": poisoned.item_id})
    example.module.storage.poison("tls-queue").send(body, message_id="ignored")
    retry: dict[str, Any] = {
        "retry_message_id": uuid.uuid4().hex,
        "retry_begun_at": days_ago(1),
        "retry_begun_by": "eve",
    }
    assert letters.add(replace(begun, **retry))
    assert letters.add(replace(old, status=LetterStatus.EXPIRED, last_failure_at=days_ago(99)))
    example.functions["keep_up"](timer=None)
    [buried] = letters.page(LetterFilter(engine="tls", correlation_id=poisoned.item_id)).items
    assert (buried.status, buried.original_message) == (LetterStatus.PENDING, body)
    finished = letters.get("tls", begun.row_key)
    assert finished is not None
    assert (finished.status, finished.retried_as) == (LetterStatus.RESOLVED, retry["retry_message_id"])
    assert letters.get("tls", old.row_key) is None


def test_the_host_gives_a_message_up_later_than_the_engine_does(example: Example) -> None:
    queues = json.loads((EXAMPLE / "host.json").read_text())["extensions"]["queues"]
    settings = example.module.renew.settings
    assert queues["maxDequeueCount"] > settings.max_attempts
    assert queues["messageEncoding"] == "base64"


@pytest.fixture
def worker(azurite: AzuriteServer, sqlite_url: str) -> Iterator[RuntimeHost]:
    availability.need("functions")
    if "durabletask==" not in functions.INSTALLED.read_text():
        pytest.skip("requirements/functions313.lock has no durabletask yet: run make lock, then make components")
    ours = {"AzureWebJobsStorage": azurite.connection_string, "DB_URL": sqlite_url}
    with RuntimeHost(EXAMPLE, sample_settings(EXAMPLE) | ours) as host:
        yield host


def test_the_worker_library_loads_the_app_and_runs_its_durable_functions(worker: RuntimeHost) -> None:
    """Every episode and every activity inside azure-functions-runtime; the histories come from the stand-in."""
    assert {name: {binding["type"] for binding in item.bindings} for name, item in worker.functions.items()} == {
        "tls_queue": {"queueTrigger", "durableClient"},
        "keep_up": {"timerTrigger"},
        "renew": {"orchestrationTrigger"},
        "issue": {"activityTrigger"},
        "install": {"activityTrigger"},
    }

    def ask(function: str, call: Call) -> Any:
        running = worker.start(function, call)
        answer = worker.wait_for_answer("id", running.call_id)
        assert answer["succeeded"], answer["error"]
        return answer["value"]["json"]

    def orchestrate(body: str) -> str:
        return str(ask("renew", Call("orchestrationTrigger", "context", {"string": body})))

    def activity(name: str) -> Callable[[Any], Any]:
        def call(payload: Any) -> Any:
            return json.loads(ask(name, Call("activityTrigger", "payload", {"json": json.dumps(payload)})))

        return call

    hub = Hub({"renew": orchestrate}, {name: activity(name) for name in ("issue", "install")})
    given = message("c-1", payload={"hosts": ["a.example", "b.example"]}).rendered()
    ended = hub.start("renew", "i-1", given).run()
    assert (ended.status, ended.output) == ("Completed", {"installed": ["a.example", "b.example"]})


def test_the_files_beside_it_are_what_they_say() -> None:
    assert sample_settings(EXAMPLE).keys() >= {"DB_URL", "AzureWebJobsStorage"}
    assert "azure-functions-durable<2" in (EXAMPLE / "requirements.txt").read_text().splitlines()
