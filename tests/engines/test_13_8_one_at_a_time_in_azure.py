"""Of messages with one correlation id one is executed at a time, where the queue is in Azure [ENGINE-7]."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.errors import HandlerError
from holdfast.engines.azure import AzureStorage
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.registry import EngineTablesConfig
from holdfast.engines.runner import EngineFlow, Outcome
from holdfast.lease.stores.blob import BlobDocumentStore
from tests.components.azurite import AzuriteServer
from tests.components.processes import PythonWorker, wait_until
from tests.engines.places import ENGINE, Bench
from tests.engines.test_durabletask_worker import hosted
from tests.engines.test_on_the_jobs_worker import Crowd

pytestmark = pytest.mark.component("azurite")
HANGS = """
import sys, threading
from holdfast import Holdfast
from holdfast.engines.azure import AzureStorage
url, connection_string, queue = sys.argv[1:]
account = AzureStorage.from_connection_string(connection_string)
hf = Holdfast(url, engine_queues=account, engine_tables=account)
@hf.engine("hmac", queue=queue, operation="rotate", visibility_seconds=5, concurrency=1, conflict_seconds=0)
def rotate(context, message):
    print("inside", flush=True)
    threading.Event().wait()
hf.engines.worker(threading.Event()).run()
"""


class AzureFleet:
    """An application with its queue in a storage account, and as many workers of it as a test wants."""

    def __init__(self, url: str, connection_string: str, *, keeps_blobs: bool = False) -> None:
        self.url, self.connection_string = url, connection_string
        account = AzureStorage.from_connection_string(connection_string)
        blobs = f"state-{uuid.uuid4().hex}"
        state = BlobDocumentStore.from_connection_string(connection_string, blobs) if keeps_blobs else None
        suffix = uuid.uuid4().hex
        tables = EngineTablesConfig(dlq_table_name=f"engineDlq{suffix}", history_table_name=f"engineHistory{suffix}")
        before = Holdfast(url, engine_queues=account, engine_tables=account, state=state)
        before.migrate()
        before.registry.init(tables)
        self.hf = Holdfast(url, engine_queues=account, engine_tables=account, state=state)
        self.queue_name = f"hmac-{suffix}"
        self.crowd = Crowd()
        self.executed: list[str] = []
        self.attempts: list[int] = []
        options: dict[str, Any] = {"queue": self.queue_name, "conflict_seconds": 0}
        options |= {"concurrency": 1, "poll_seconds": 0.05}
        self.engine = self.hf.engine("hmac", operation="rotate", **options)(self._handle)
        self.other = self.hf.engine("hmac", operation="notify", **options)(self._handle)
        self.hf.migrate()

    def _handle(self, context: Any, message: Any) -> None:
        self.executed.append(message.message_id)
        self.attempts.append(context.attempt)
        self.crowd()

    @contextmanager
    def workers(self, count: int) -> Iterator[None]:
        """Run workers that have nothing in common but the account and the state store."""
        stop = threading.Event()
        threads = [threading.Thread(target=self.hf.engines.worker(stop).run) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.crowd.goes_on.set()
            stop.set()
            for thread in threads:
                thread.join(60)

    def send(self, message_id: str, correlation_id: str) -> None:
        self.engine.send(message_id=message_id, correlation_id=correlation_id)

    def leases(self) -> list[str]:
        """Return the documents of messages in hand."""
        return [name for name in self.hf.state.documents.list("state/") if "/message-" in name]

    def until_empty(self) -> None:
        queue: Any = self.hf.engines.queue("hmac")
        wait_until(lambda: not queue._client.get_queue_properties().approximate_message_count, "the end of all", 60)

    def ends(self) -> tuple[int, int]:
        tables = self.hf.engines._records()
        return len(tables.history.page().items), len(tables.letters.page().items)


@pytest.fixture
def stepped_back(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the messages that were put back, as it happens."""
    found: list[str] = []
    usual = EngineFlow._put_back

    def put_back(flow: EngineFlow, delivery: Any, message: Any, conflict: Any) -> Any:
        outcome = usual(flow, delivery, message, conflict)
        found.append(message.message_id)
        return outcome

    monkeypatch.setattr(EngineFlow, "_put_back", put_back)
    return found


def made(tmp_path: Path, azurite: AzuriteServer, **options: Any) -> AzureFleet:
    return AzureFleet(f"sqlite:///{tmp_path / 'state.db'}", azurite.connection_string, **options)


@pytest.mark.parametrize("keeps_blobs", [False, True], ids=["leases in the database", "leases in blobs"])
def test_13_8_azure_twins_are_executed_once_and_wait_uncharged(
    tmp_path: Path, azurite: AzuriteServer, stepped_back: list[str], keeps_blobs: bool
) -> None:
    fleet = made(tmp_path, azurite, keeps_blobs=keeps_blobs)
    with fleet.workers(3):
        fleet.send("m-0", "c-1")
        wait_until(lambda: fleet.crowd.inside == 1, "the first to be executed", 60)
        for number in range(1, 3):
            fleet.send(f"m-{number}", "c-1")
        # more often than a message that is charged for each would be delivered at all
        wait_until(lambda: min(map(stepped_back.count, ("m-1", "m-2"))) > 5 or fleet.crowd.inside > 1, "waiting", 60)
        assert (fleet.crowd.inside, len(fleet.leases())) == (1, 1)
        fleet.crowd.goes_on.set()
        fleet.until_empty()
    assert (fleet.executed, fleet.attempts) == (["m-0"], [1])
    assert (fleet.ends(), fleet.leases()) == ((1, 0), [])


def test_13_8_azure_other_business_and_other_operations_do_not_wait(
    tmp_path: Path, azurite: AzuriteServer, stepped_back: list[str]
) -> None:
    fleet = made(tmp_path, azurite)
    fleet.send("m-1", "c-1")
    fleet.send("m-2", "c-2")
    fleet.other.send(correlation_id="c-1")
    with fleet.workers(3):
        wait_until(lambda: fleet.crowd.inside == 3, "all of them to be executed side by side", 60)
        assert len(fleet.leases()) == 3
        fleet.crowd.goes_on.set()
        fleet.until_empty()
    assert (stepped_back, fleet.ends(), fleet.leases()) == ([], (3, 0), [])


def test_13_8_azure_when_the_first_worker_is_killed_the_second_goes_on(
    tmp_path: Path, azurite: AzuriteServer, stepped_back: list[str]
) -> None:
    fleet = made(tmp_path, azurite)
    fleet.send("m-0", "c-1")
    with PythonWorker("-c", HANGS, fleet.url, fleet.connection_string, fleet.queue_name) as first:
        first.wait_for_line("inside")
        fleet.send("m-1", "c-1")
        with fleet.workers(1):
            wait_until(lambda: stepped_back or fleet.executed, "the second to wait", 60)
            assert fleet.executed == []
            first.kill()
            wait_until(lambda: fleet.crowd.inside == 1, "one of them to be executed", 60)
            fleet.crowd.goes_on.set()
            fleet.until_empty()
    assert fleet.attempts == [2 if fleet.executed == ["m-0"] else 1], "who waits is not charged"
    assert (fleet.ends(), fleet.leases()) == ((1, 0), [])


def test_13_8_azure_planted_without_the_lease_both_are_executed(
    tmp_path: Path, azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: what the tests above would say of it."""
    monkeypatch.setattr(EngineFlow, "_take_in_hand", lambda *given: None)
    fleet = made(tmp_path, azurite)
    fleet.send("m-0", "c-1")
    fleet.send("m-1", "c-1")
    with fleet.workers(2):
        wait_until(lambda: fleet.crowd.inside == 2, "both to be executed", 60)


@pytest.mark.parametrize("place", ["azure"], indirect=True)
def test_13_8_azure_what_a_host_gave_up_is_not_buried_beside_a_message_at_work(bench: Bench) -> None:
    assert bench.place.account is not None
    poison = bench.place.account.poison(bench.place.queue_name)
    poison.send('{"messageId": "m-0", "correlationId": "c-1"}', message_id="m-0")
    bench.work = lambda context, message: bench.hf.engines.drain_poison(ENGINE)
    bench.send("m-1", "c-1")
    assert bench.deliver() is Outcome.SUCCEEDED
    assert bench.letters == []
    bench.place.let_time_pass()
    assert bench.hf.engines.drain_poison(ENGINE) == 1
    assert bench.ends() == ["Succeeded"]


@pytest.mark.parametrize("place", ["azure"], indirect=True)
def test_13_8_azure_a_host_keeps_a_message_whose_lease_was_lost(bench: Bench) -> None:
    def lose(context: EngineContext, message: EngineMessage) -> None:
        documents = bench.hf.state.documents
        [name] = [each for each in documents.list("state/") if "/message-" in each]
        found = documents.read(name)
        assert found is not None
        documents.delete(name, found.etag)
        bench.place.clock.advance(60)
        assert wait_until(context.lease_lost.is_set, "the loss to be noticed")

    bench.work = lose
    with pytest.raises(HandlerError, match="was lost while at work"):
        bench.hf.engines.handle(ENGINE, hosted())
    assert bench.statuses == []
