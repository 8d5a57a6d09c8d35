"""An engine that is wrong stops alone, says so, and goes on once it is mended; nothing is charged meanwhile."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast import EngineProvider, Holdfast
from holdfast.engines.azure import AzureStorage
from holdfast.engines.queues.protocol import Received
from holdfast.engines.queues.storage import StorageQueue
from tests.components.azurite import AzuriteServer
from tests.components.processes import wait_until

pytestmark = pytest.mark.component("azurite")


class Application:
    """Two engines with their queues in an account, one of which has no queue, and a job."""

    def __init__(self, url: str, connection_string: str) -> None:
        self.provider = EngineProvider()
        account = AzureStorage.from_connection_string(connection_string)
        self.hf = Holdfast(url, engine_queues=account, engine_provider=self.provider)
        self.suffix = uuid.uuid4().hex[:20]
        self.done: list[str] = []
        self.attempts: list[int] = []
        self.hf.engine("sound", queue=f"sound-{self.suffix}", poll_seconds=0.05)(self._note)
        self.hf.migrate()
        self.hf.engine("wrong", queue=f"wrong-{self.suffix}", poll_seconds=0.05)(self._note)
        self.hf.engine("ticking", queue=f"ticking-{self.suffix}", schedule="* * * * *")(self._note)

        @self.hf.job("mail")
        def mail() -> None:
            self.done.append("mail")

        self.mail = mail

    def _note(self, context: Any, message: Any) -> None:
        self.done.append(message.engine)
        self.attempts.append(context.attempt)


@pytest.fixture
def application(sqlite_url: str, azurite: AzuriteServer) -> Iterator[Application]:
    made = Application(sqlite_url, azurite.connection_string)
    yield made
    made.provider.dispose_all()


def test_an_engine_without_a_queue_stops_alone_until_it_has_one(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    hf = application.hf
    assert set(hf.engines.faults_by_name()) == {"wrong", "ticking"}
    hf.engines.send("sound", {})
    application.mail.enqueue()
    thread = threading.Thread(target=hf.run, kwargs={"handle_signals": False})
    with caplog.at_level(logging.INFO, "holdfast"):
        thread.start()
        try:
            wait_until(lambda: {"sound", "mail"} <= set(application.done), "what is sound to be done")
            said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
            assert [line.split(" does not run until that is mended: ")[0] for line in said] == [
                "Engine 'wrong'",
                "Engine 'ticking'",
            ]
            hf.engines.make_queues()
            hf.engines.send("wrong", {})
            wait_until(lambda: "wrong" in application.done, "the engine to go on")
        finally:
            hf.stop()
            thread.join(60)
    assert "Engine 'wrong' can run again" in caplog.text
    assert not hf.engines.faults()


def test_nothing_is_received_while_the_history_is_missing(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each delivery that ends in such an error would count, until a message is buried that was never executed."""
    hf, looks, received = application.hf, list[str](), list[int]()
    hf.engines.make_queues()
    hf.engines.send("wrong", {})
    check, receive = hf.engines._check, StorageQueue.receive

    def looked(name: str) -> None:
        looks.append(name)
        check(name)

    def noted(queue: StorageQueue, most: int, seconds: float) -> Sequence[Received]:
        received.append(len(looks))
        return receive(queue, most, seconds)

    monkeypatch.setattr(StorageQueue, "receive", noted)
    rename(hf, "holdfast_history", "history_away")
    faults, stop = hf.engines.faults(), threading.Event()
    assert len(faults) == 3
    monkeypatch.setattr(hf.engines, "_check", looked)
    worker = threading.Thread(target=hf.engines.worker(stop, faults).run)
    worker.start()
    try:
        wait_until(lambda: len(looks) >= 3, "each engine to be looked at")
        assert received == []
        rename(hf, "history_away", "holdfast_history")
        wait_until(lambda: application.attempts, "the message to be executed")
    finally:
        stop.set()
        worker.join(60)
    assert application.attempts == [1]


def rename(hf: Holdfast, table: str, name: str) -> None:
    with hf.database.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO {name}")
