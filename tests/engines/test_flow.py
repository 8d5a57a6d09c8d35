"""The flow of a message, rule by rule of the standard's sections 1.2 to 1.7, in SQL and in Azure's queue and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.core.clock import SystemClock
from holdfast.core.errors import ConfigurationError
from holdfast.core.retry import RetryPolicy
from holdfast.engines.context import EngineContext
from holdfast.engines.definition import EngineDefinition, EngineSettings
from holdfast.engines.flow import EngineFlow, Outcome
from holdfast.engines.messages import EngineMessage
from holdfast.engines.queues.embedded import EmbeddedQueue
from holdfast.engines.queues.protocol import EngineQueue, Received
from holdfast.engines.table_records import TableRecords
from holdfast.records.dead_letters import DeadLetter, LetterStatus
from holdfast.records.history import HistoryEntry
from holdfast.records.tables import SqlHistoryTable, SqlLetterTable
from tests.components.azurite import AzuriteServer
from tests.components.processes import wait_until
from tests.engines.queues import embedded_queue, let_time_pass, storage_queue
from tests.engines.tables import azure_tables


class Killed(BaseException):
    """The worker died."""


@dataclass
class Bench:
    """An engine with its queue and its records."""

    queue: EngineQueue
    records: TableRecords
    executions: list[EngineMessage] = field(default_factory=list)
    fails: Callable[[EngineContext], bool] = lambda context: False

    def flow(self, reached: Callable[[str], None] = lambda boundary: None, most: int = 3) -> EngineFlow:
        settings = EngineSettings(
            queue="hmac-rotation-queue",
            operation="rotate",
            singleton=False,
            max_retry_attempts=most,
            visibility_seconds=1.0,
            retry_policy=RetryPolicy(base_delay_seconds=0.001, max_delay_seconds=0.001),
            conflict_seconds=0.0,
        )
        definition = EngineDefinition("hmac", self._handle, settings)
        return EngineFlow(definition, self.queue, self.records, clock=SystemClock(), reached=reached)

    def _handle(self, context: EngineContext, message: EngineMessage) -> dict[str, int]:
        self.executions.append(message)
        if self.fails(context):
            raise ValueError(f"no key at attempt {context.attempt}")
        return {"rotated": context.attempt}

    def send(self, **fields: Any) -> None:
        given = {"messageId": "m-1", "correlationId": "c-1", "payload": {"key": 7}, **fields}
        self.queue.send(json.dumps(given), message_id="m-1")

    def next(self) -> Received:
        def look() -> Received | None:
            let_time_pass(self.queue, 1.1)
            self.queue.tend()
            found = self.queue.receive(1, 1)
            return found[0] if found else None

        message = wait_until(look, "the message")
        assert message is not None
        return message

    @property
    def history(self) -> list[HistoryEntry]:
        return self.records.history.of_correlation("hmac", "c-1")

    @property
    def letters(self) -> list[DeadLetter]:
        return list(self.records.letters.page().items)

    @property
    def is_empty(self) -> bool:
        self.queue.tend()
        return not self.queue.receive(1, 1)


@pytest.fixture(params=["postgres_url", "sqlite_url", "azurite"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    given = request.getfixturevalue(request.param)
    if isinstance(given, AzuriteServer):
        with storage_queue(given) as queue, azure_tables(given.connection_string) as tables:
            yield Bench(queue, TableRecords(tables.letters, tables.history))
    else:
        with embedded_queue(given, 1.0) as embedded:
            yield Bench(embedded, sql_records(embedded))


def sql_records(queue: EmbeddedQueue) -> TableRecords:
    engine = queue._store.engine
    return TableRecords(SqlLetterTable(engine), SqlHistoryTable(engine))


def test_1_2_a_message_is_executed_recorded_and_deleted(bench: Bench) -> None:
    bench.send(instanceId="i-7")
    assert bench.flow().handle(bench.next()) is Outcome.SUCCEEDED
    [entry] = bench.history
    assert (entry.engine, entry.operation, str(entry.status), entry.instance_id) == (
        "hmac",
        "rotate",
        "Succeeded",
        "i-7",
    )
    assert (entry.output, entry.attempt, entry.item_id) == ('{"rotated": 1}', 1, "m-1")
    assert json.loads(entry.input or "")["payload"] == {"key": 7}
    assert bench.is_empty
    assert bench.letters == []


def test_1_3_a_failure_is_recorded_and_the_message_comes_again(bench: Bench) -> None:
    bench.fails = lambda context: context.attempt == 1
    bench.send()
    assert bench.flow().handle(bench.next()) is Outcome.RETRIED
    assert bench.flow().handle(bench.next()) is Outcome.SUCCEEDED
    assert [(str(entry.status), entry.error) for entry in bench.history] == [
        ("Failed", "ValueError: no key at attempt 1"),
        ("Succeeded", None),
    ]
    assert bench.is_empty


def test_1_3_a_message_dequeued_too_often_is_dead_and_not_executed(bench: Bench) -> None:
    bench.fails = lambda context: True
    bench.send()
    flow = bench.flow(most=3)
    outcomes = [flow.handle(bench.next()) for _ in range(3)]
    assert outcomes == [Outcome.RETRIED, Outcome.RETRIED, Outcome.DEAD_LETTERED]
    assert len(bench.executions) == 2, "n attempts mean n - 1 executions"
    [letter] = bench.letters
    assert (letter.engine, letter.original_queue, letter.dequeue_count) == ("hmac", bench.queue.name, 3)
    assert letter.error_message == "ValueError: no key at attempt 2", "its own error, never a generic one"
    failed = [entry.created_at for entry in bench.history]
    assert (letter.first_failure_at, letter.last_failure_at) == (failed[0], failed[-1])
    assert json.loads(letter.original_message)["payload"] == {"key": 7}
    assert (letter.status, letter.correlation_id, letter.instance_id) == (LetterStatus.PENDING, "c-1", "publisher")
    assert bench.is_empty


def test_1_3_a_message_whose_workers_died_tells_so(bench: Bench) -> None:
    bench.send()
    for _ in range(2):
        bench.next()  # received, and never heard of again
    assert bench.flow(most=3).handle(bench.next()) is Outcome.DEAD_LETTERED
    [letter] = bench.letters
    assert letter.error_message == "worker lost during attempt 2"


def test_1_4_what_has_succeeded_is_not_executed_again(bench: Bench) -> None:
    bench.send()
    bench.flow().handle(bench.next())
    bench.queue.send(json.dumps({"messageId": "m-2", "correlationId": "c-1", "payload": {}}), message_id="m-2")
    assert bench.flow().handle(bench.next()) is Outcome.ALREADY_DONE
    assert len(bench.executions) == 1
    assert len(bench.history) == 1
    assert bench.is_empty


def test_1_4_another_operation_of_the_same_correlation_id_is_executed(bench: Bench) -> None:
    bench.send()
    bench.flow().handle(bench.next())
    bench.queue.send(json.dumps({"correlationId": "c-1", "operation": "notify", "payload": {}}), message_id="m-2")
    assert bench.flow().handle(bench.next()) is Outcome.SUCCEEDED
    assert len(bench.executions) == 2


def test_1_4_a_success_is_found_before_the_count_is_looked_at(bench: Bench) -> None:
    """A worker dies between history and delete on its last attempt: the message is done, and no dead letter."""
    bench.send()
    bench.next()

    def die(boundary: str) -> None:
        if boundary == "recorded":
            raise Killed

    with pytest.raises(Killed):
        bench.flow(die, most=3).handle(bench.next())
    assert bench.flow(most=3).handle(bench.next()) is Outcome.ALREADY_DONE
    assert bench.letters == []
    assert bench.is_empty


def test_1_6_an_unreadable_message_is_a_dead_letter_at_once(bench: Bench) -> None:
    bench.queue.send("not json", message_id="m-1")
    assert bench.flow().handle(bench.next()) is Outcome.DEAD_LETTERED
    [letter] = bench.letters
    assert letter.original_message == "not json"
    assert "not JSON" in letter.error_message
    assert bench.executions == []
    assert bench.is_empty


BOUNDARIES = ["received", "found not done", "alone", "executed", "recorded"]


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_worker_killed_at_any_boundary_leaves_one_end(bench: Bench, boundary: str) -> None:
    bench.send()
    _die_once(bench, boundary)
    _to_the_end(bench)
    assert [str(entry.status) for entry in bench.history] == ["Succeeded"]
    assert bench.letters == []
    after_success = boundary in ("recorded",)
    assert len(bench.executions) == (1 if after_success or boundary in BOUNDARIES[:3] else 2)


@pytest.mark.parametrize("boundary", ["received", "found not done", "failed", "failure recorded", "buried"])
def test_a_failing_message_whose_workers_are_killed_ends_in_one_dead_letter(bench: Bench, boundary: str) -> None:
    bench.fails = lambda context: True
    bench.send()
    _die_once(bench, boundary)
    _to_the_end(bench)
    assert all(str(entry.status) == "Failed" for entry in bench.history)
    [letter] = bench.letters
    assert letter.status is LetterStatus.PENDING


def _die_once(bench: Bench, boundary: str) -> None:
    """Handle deliveries until one reaches the boundary, where its worker dies."""
    died: list[str] = []

    def die(reached: str) -> None:
        if reached == boundary and not died:
            died.append(reached)
            raise Killed

    while not died:
        try:
            bench.flow(die).handle(bench.next())
        except Killed:
            return


def _to_the_end(bench: Bench) -> None:
    """Handle deliveries until the message is gone."""
    while True:
        found = [*bench.queue.receive(1, 1)]
        if found:
            outcome = bench.flow().handle(found[0])
            if outcome in (Outcome.SUCCEEDED, Outcome.ALREADY_DONE, Outcome.DEAD_LETTERED):
                break
        let_time_pass(bench.queue, 1.1)
        bench.queue.tend()
    assert bench.is_empty


def test_an_execution_that_lost_its_message_records_nothing(bench: Bench) -> None:
    bench.send()
    message = bench.next()

    def lose(boundary: str) -> None:
        if boundary == "executed":
            assert bench.queue.delete(message)

    assert bench.flow(lose).handle(message) is Outcome.LOST
    assert bench.history == []


def test_too_few_attempts_are_refused(sqlite_url: str) -> None:
    with embedded_queue(sqlite_url) as queue:
        bench = Bench(queue, sql_records(queue))
        with pytest.raises(ConfigurationError, match=r"n means n - 1 executions\. Use 2 or more"):
            bench.flow(most=1)
