"""Wherever work begins, not only in `hf.run()`: a role that could not record its end begins none."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from azure.functions.queue import QueueMessage

from holdfast import AzureStorage, Holdfast
from holdfast.core.errors import ConfigurationError
from holdfast.engines.definition import EngineDefinition
from holdfast.jobs.grpc.server import JobsServer
from tests.causes.roles import TABLES, Role
from tests.components.azurite import AzuriteServer

ENGINE = "hmac"


class Functions:
    """An application with an engine whose queue is in Azure and whose tables are in the database, as a role has it."""

    def __init__(self, role: Role, azurite: AzuriteServer) -> None:
        self.role = role
        self.account = AzureStorage.from_connection_string(azurite.connection_string)
        self.queue = f"hmac-{uuid.uuid4().hex}"
        self.account.make(self.queue)
        self.executed: list[Any] = []
        self.hf = Holdfast(role.url(role.app), engine_queues=self.account)
        self.declare()

    def declare(self, **options: Any) -> EngineDefinition:
        return self.hf.engine(ENGINE, queue=self.queue, **options)(self.rotate)

    def rotate(self, context: Any, message: Any) -> None:
        self.executed.append(message.payload)

    def deliver(self) -> None:
        """Call the function as the host does."""
        body = json.dumps({"messageId": "m-1", "correlationId": "c-1", "payload": 7}).encode()
        message = QueueMessage(id="m-1", body=body, pop_receipt="r")  # type: ignore[no-untyped-call]  # Azure's
        self.hf.engines.handle(ENGINE, message)

    def close(self) -> None:
        self.account.close()
        self.hf._provider.dispose_all()


@pytest.fixture
def functions(role: Role, azurite: AzuriteServer) -> Iterator[Functions]:
    made = Functions(role, azurite)
    yield made
    made.close()


def test_13_17_a_jobs_server_whose_role_could_not_record_the_end_of_jobs_serves_none(postgres_role: Role) -> None:
    postgres_role.do(TABLES)
    with pytest.raises(ConfigurationError, match="it lacks USAGE on holdfast_history_id_seq"):
        JobsServer(postgres_role.app.jobs.store, "127.0.0.1:0").start()


@pytest.mark.component("azurite")
def test_13_17_an_engine_called_by_a_host_executes_nothing_that_it_could_not_record(functions: Functions) -> None:
    functions.role.grant_everything_but("holdfast_history", "SELECT")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"INSERT on holdfast_history\. Nothing was begun; run: GRANT"):
            functions.deliver()
    with pytest.raises(ConfigurationError, match="lacks INSERT on holdfast_history"):
        functions.hf.engines.drain_poison(ENGINE)
    assert "lacks INSERT on holdfast_history" in str(functions.hf.faults()[f"Engine '{ENGINE}'"])
    assert functions.executed == []
    functions.role.do("GRANT INSERT ON holdfast_history TO {role}")
    functions.deliver()
    assert functions.executed == [7]
    assert functions.hf.faults() == {}


@pytest.mark.component("azurite")
def test_13_17_an_engine_whose_messages_could_not_be_kept_apart_executes_none(functions: Functions) -> None:
    functions.role.grant_everything_but("holdfast_state", "SELECT, UPDATE")
    with pytest.raises(ConfigurationError, match="it lacks INSERT on holdfast_state, DELETE on holdfast_state"):
        functions.deliver()
    with pytest.raises(ConfigurationError, match="it lacks INSERT on holdfast_state"):
        functions.hf.run(handle_signals=False)
    assert functions.executed == []


def test_13_17_timers_and_singletons_without_a_right_on_leases_do_not_begin(role: Role) -> None:
    role.grant_everything_but("holdfast_state", "SELECT")
    role.app.engine("timer", schedule="* * * * *")(lambda context, message: None)
    role.app.engine("single", singleton=True)(lambda context, message: None)
    role.app.engine("plain")(lambda context, message: None)
    with pytest.raises(ConfigurationError, match="it lacks INSERT on holdfast_state, UPDATE on holdfast_state"):
        role.app.engines.tick("timer")
    assert role.app.faults().keys() == {"Engine 'timer'", "Engine 'single'"}
