"""Section 1.6, history: one entry for every execution that ended."""

from __future__ import annotations

import json

from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.runner import Outcome
from tests.engines.places import Bench


def test_1_6_1_a_success_tells_operation_duration_and_output(bench: Bench) -> None:
    def work(context: EngineContext, message: EngineMessage) -> dict[str, str]:
        bench.place.clock.advance(1.5)
        return {"newKey": "k-8 ü"}

    bench.work = work
    bench.send(operation="notify")
    assert bench.deliver() is Outcome.SUCCEEDED
    [entry] = bench.history
    assert (str(entry.status), entry.operation, entry.duration_ms) == ("Succeeded", "notify", 1500)
    assert (json.loads(entry.output or ""), entry.error) == ({"newKey": "k-8 ü"}, None)


def test_1_6_2_a_failure_tells_error_and_duration(bench: Bench) -> None:
    def work(context: EngineContext, message: EngineMessage) -> None:
        bench.place.clock.advance(0.25)
        raise PermissionError("the vault said no")

    bench.work = work
    bench.send()
    assert bench.deliver() is Outcome.RETRIED
    [entry] = bench.history
    assert (str(entry.status), entry.error, entry.duration_ms, entry.output) == (
        "Failed",
        "PermissionError: the vault said no",
        250,
        None,
    )


def test_1_6_3_every_entry_has_the_messages_correlation_id(bench: Bench) -> None:
    bench.fails = lambda context: context.attempt == 1
    bench.send(correlation_id="order/7 #ü")
    bench.to_the_end()
    found = bench.records.history.of_correlation("hmac", "order/7 #ü")
    assert [(str(entry.status), entry.correlation_id, entry.attempt) for entry in found] == [
        ("Failed", "order/7 #ü", 1),
        ("Succeeded", "order/7 #ü", 2),
    ]


def test_1_6_the_input_is_the_message_with_unknown_fields(bench: Bench) -> None:
    bench.send(traceparent="00-abc", instanceId="i-7")
    bench.deliver()
    [entry] = bench.history
    told = json.loads(entry.input or "")
    assert (told["payload"], told["traceparent"], entry.instance_id) == ({"key": 7}, "00-abc", "i-7")


def test_1_6_what_is_not_executed_is_not_in_the_history(singleton: Bench) -> None:
    singleton.hf.registry.acquire("another", duration_seconds=50)
    singleton.send()
    assert singleton.deliver() is Outcome.CONFLICT
    assert singleton.history == []
