"""Section 1.2, the execution flow: what happens to a message, in which order."""

from __future__ import annotations

import json

from holdfast.engines.runner import Outcome
from tests.engines.places import Bench


def test_1_2_a_message_is_executed_recorded_and_deleted(bench: Bench) -> None:
    bench.send(instanceId="i-7")
    assert bench.deliver() is Outcome.SUCCEEDED
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


def steps(bench: Bench) -> list[str]:
    """Take the next message through its flow; return the boundaries it came to."""
    reached: list[str] = []
    bench.deliver(reached.append)
    return reached


def test_1_2_history_and_count_are_looked_at_then_it_is_executed_then_recorded(bench: Bench) -> None:
    bench.send()
    assert steps(bench) == ["received", "found not done", "alone", "executed", "recorded"]


def test_1_2_a_retry_count_that_is_exceeded_leads_to_the_dlq_and_to_nothing_else(bench: Bench) -> None:
    bench.send()
    bench.lose_workers(2)
    assert steps(bench) == ["received", "found not done", "buried"]
    assert bench.executions == []


def test_1_2_a_message_is_deleted_only_after_its_end_is_in_the_history(bench: Bench) -> None:
    bench.send()
    queue = bench.queue
    message = bench.next(queue)
    kept: list[bool] = []

    def look(boundary: str) -> None:
        if boundary == "executed":
            kept.append(bench._has_messages(queue))

    assert bench.flow(queue, look).handle(message) is Outcome.SUCCEEDED
    assert kept == [True], "starting is not finishing"
    assert not bench._has_messages(queue)


def test_1_2_a_singleton_meets_the_lock_before_it_is_executed(singleton: Bench) -> None:
    singleton.hf.registry.acquire("another", duration_seconds=50)
    singleton.send()
    assert steps(singleton) == ["received", "found not done", "conflict"]
    singleton.place.let_time_pass()
    assert steps(singleton) == ["received", "found not done", "alone", "executed", "recorded", "released"]
