"""Section 1.2, the execution flow: what happens to a message, in which order."""

from __future__ import annotations

import json

from holdfast.engines.flow import Outcome
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
