"""Section 1.7, errors: transient ones leave the message in the queue, permanent ones end in the dead letters."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from holdfast.core.errors import Ambiguous, Unavailable
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.operations.protocol import OperationFailed
from holdfast.engines.ports import Ended
from holdfast.engines.runner import Outcome
from holdfast.jobs.model import Claim, Settled, WorkerId
from holdfast.records.dead_letters import NewLetter
from tests.engines.places import Bench, Place

AZURE = [pytest.param("azure", marks=pytest.mark.component("azurite"))]
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.component("postgres18"))]


def test_1_7_a_transient_failure_leaves_the_message_for_a_retry(bench: Bench) -> None:
    bench.fails = lambda context: context.attempt < 2
    bench.send()
    assert bench.to_the_end() == [Outcome.RETRIED, Outcome.SUCCEEDED]
    assert bench.letters == []


def test_1_7_a_permanent_failure_is_a_dead_letter_after_the_attempts(bench: Bench) -> None:
    bench.fails = lambda context: True
    bench.send()
    assert bench.to_the_end()[-1] is Outcome.DEAD_LETTERED
    assert bench.ends() == ["dead"]


def test_1_7_an_orchestrator_that_fails_for_good_is_a_dead_letter(bench: Bench) -> None:
    def failed(context: EngineContext, message: EngineMessage) -> None:
        raise OperationFailed(f"the orchestration failed at attempt {context.attempt}")

    bench.work = failed
    bench.send()
    assert bench.to_the_end() == [Outcome.RETRIED, Outcome.RETRIED, Outcome.DEAD_LETTERED]
    assert bench.letters[0].error_message == "OperationFailed: the orchestration failed at attempt 2"


def test_1_7_an_unreadable_message_is_a_dead_letter_at_once(bench: Bench) -> None:
    bench.queue.send("not json", message_id="m-1")
    assert bench.deliver() is Outcome.DEAD_LETTERED
    [letter] = bench.letters
    assert letter.original_message == "not json"
    assert "not JSON" in letter.error_message
    assert bench.executions == []
    assert bench.is_empty


def test_1_7_an_operation_that_is_not_declared_here_is_a_failure_that_names_those_that_are(bench: Bench) -> None:
    bench.send(operation="revoke")
    assert bench.to_the_end()[-1] is Outcome.DEAD_LETTERED
    assert "no operation 'revoke' here. It has: rotate, notify." in bench.letters[0].error_message


@pytest.mark.parametrize("place", AZURE, indirect=True)
@pytest.mark.parametrize("error", [Unavailable("down"), Ambiguous("lost")], ids=["refused", "answer lost"])
@pytest.mark.parametrize("step", ["extend", "delete"])
def test_1_7_a_queue_that_fails_after_the_execution_loses_nothing(
    bench: Bench, step: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send()
    queue = bench.queue
    message = bench.next(queue)

    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr(queue, step, fail)
    with pytest.raises(type(error)):
        bench.flow(queue).handle(message)
    bench.to_the_end()
    assert bench.ends() == ["Succeeded"]
    assert bench.is_empty


@pytest.mark.parametrize("place", AZURE, indirect=True)
@pytest.mark.parametrize("step", ["failure", "success"])
@pytest.mark.parametrize("has_landed", [True, False], ids=["answer lost", "refused"])
def test_1_7_a_history_whose_answer_is_lost_loses_nothing(bench: Bench, step: str, has_landed: bool) -> None:
    bench.fails = lambda context: step == "failure" and context.attempt == 1
    bench.send()
    driven = bench.flow()
    message = bench.next(driven.queue)
    record = driven.records.record

    def lose(ended: Ended) -> None:
        if has_landed:
            record(ended)
        raise Ambiguous("The answer was lost.")

    driven.records.record = lose  # type: ignore[method-assign]
    with pytest.raises(Ambiguous):
        driven.handle(message)
    bench.to_the_end()
    assert bench.ends() == ["Succeeded"]
    assert bench.is_empty


@pytest.mark.parametrize("place", AZURE, indirect=True)
@pytest.mark.parametrize("has_landed", [True, False], ids=["answer lost", "refused"])
def test_1_7_a_dead_letter_whose_answer_is_lost_is_written_once(bench: Bench, has_landed: bool) -> None:
    bench.fails = lambda context: True
    bench.send()
    bench.deliver()
    bench.deliver()
    driven = bench.flow()
    message = bench.next(driven.queue)
    bury = driven.records.bury

    def lose(letter: NewLetter) -> None:
        if has_landed:
            bury(letter)
        raise Ambiguous("The answer was lost.")

    driven.records.bury = lose  # type: ignore[method-assign]
    with pytest.raises(Ambiguous):
        driven.handle(message)
    assert bench.to_the_end() == [Outcome.DEAD_LETTERED]
    assert bench.ends() == ["dead"]


@pytest.mark.parametrize("place", DATABASES, indirect=True)
@pytest.mark.parametrize("end", ["success", "failure", "dead letter"])
@pytest.mark.parametrize("has_landed", [True, False], ids=["answer lost", "refused"])
def test_1_7_a_report_that_is_not_answered_is_sent_again_and_counts_once(
    place: Place, end: str, has_landed: bool
) -> None:
    bench = Bench(place, max_retry_attempts=2)
    bench.fails = lambda context: end != "success"
    bench.send()
    if end == "dead letter":
        bench.deliver()
    driven = bench.flow()
    assert driven.handler is not None
    settler = driven.handler.delivering.retries if end == "failure" else driven.handler.delivering.drops
    settle, lost = settler.settle, list[int]()

    def lose_once(worker: WorkerId, batch: Sequence[Settled]) -> set[Claim]:
        if lost:
            return settle(worker, batch)
        lost.append(1)
        if has_landed:
            settle(worker, batch)
        raise Ambiguous("The answer was lost.")

    settler.settle = lose_once  # type: ignore[method-assign]
    driven.handle(bench.next(driven.queue))
    assert lost
    assert bench.statuses == {"success": ["Succeeded"], "failure": ["Failed"], "dead letter": ["Failed"]}[end]
    assert len(bench.letters) == (end == "dead letter")
    assert bench.is_empty is (end != "failure")


def test_1_7_a_result_too_large_for_the_table_is_a_success_all_the_same(bench: Bench) -> None:
    noise = random.Random(1).randbytes(2_000_000).hex()
    bench.work = lambda context, message: noise
    bench.send()
    assert bench.deliver() is Outcome.SUCCEEDED
    told = json.loads(bench.history[0].output or "")
    assert told == ({"tooLarge": 4_000_002} if bench.place.is_azure else noise)
    assert bench.is_empty


def test_1_7_an_error_of_any_length_is_told(bench: Bench) -> None:
    noise = random.Random(1).randbytes(2_000_000).hex()

    def work(context: EngineContext, message: EngineMessage) -> None:
        raise ValueError(noise)

    bench.work = work
    bench.send()
    assert bench.to_the_end()[-1] is Outcome.DEAD_LETTERED
    assert bench.statuses == ["Failed", "Failed"]
    assert bench.letters[0].error_message.startswith(f"ValueError: {noise[:10_000]}")


def test_1_7_a_message_that_is_wrong_keeps_the_ids_that_can_be_read(bench: Bench) -> None:
    bench.send(causationId=9, instanceId="tenant-1")
    assert bench.deliver() is Outcome.DEAD_LETTERED
    [letter] = bench.letters
    assert (letter.item_id, letter.correlation_id, letter.instance_id) == ("m-1", "c-1", "tenant-1")
    assert "causationId" in letter.error_message
