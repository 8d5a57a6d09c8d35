"""Section 1.3, retries and the dead letters: when a message is executed, and when it is not any more."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from holdfast.core.errors import ConfigurationError
from holdfast.core.retry import RetryPolicy
from holdfast.engines.runner import Outcome
from holdfast.jobs.listing import jobs_table
from holdfast.records.dead_letters import LetterStatus
from tests.engines.places import ENGINE, Bench, Place
from tests.engines.queues import free_what_the_dead_held


def test_1_3_1_a_message_is_read_from_the_engines_own_queue(bench: Bench) -> None:
    bench.send()
    assert bench.queue.name == bench.place.queue_name
    assert bench.deliver() is Outcome.SUCCEEDED
    assert bench.executions[0].payload == {"key": 7}


def test_1_3_2_the_dequeue_count_is_looked_at_and_told_to_the_operation(bench: Bench) -> None:
    bench.fails = lambda context: context.attempt == 1
    bench.send()
    bench.to_the_end()
    assert [context.attempt for context in bench.contexts] == [1, 2]


def test_1_3_3_dequeue_count_at_the_maximum_writes_to_the_dlq_deletes_and_does_not_execute(bench: Bench) -> None:
    bench.fails = lambda context: True
    bench.send()
    outcomes = [bench.deliver() for _ in range(3)]
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


def test_1_3_3_a_message_whose_workers_died_tells_so(bench: Bench) -> None:
    bench.send()
    first = bench.lose_workers(2)
    assert bench.deliver() is Outcome.DEAD_LETTERED
    [letter] = bench.letters
    deliveries = 2 if bench.place.is_azure else 3
    assert letter.error_message == f"worker lost during attempt {deliveries}"
    assert letter.dequeue_count == deliveries + 1, "every delivery counts there, also that which is not charged"
    assert letter.first_failure_at == letter.last_failure_at == first.inserted_at


def test_1_3_3_a_message_that_failed_before_its_worker_died_tells_its_own_error(bench: Bench) -> None:
    bench.fails = lambda context: True
    bench.send()
    bench.deliver()
    bench.lose_workers(1)
    assert bench.deliver() is Outcome.DEAD_LETTERED
    [letter] = bench.letters
    assert letter.error_message == "ValueError: no key at attempt 1"
    assert letter.first_failure_at == bench.history[0].created_at


def test_1_3_3_the_dead_letter_holds_the_message_as_it_came_with_unknown_fields(bench: Bench) -> None:
    bench.fails = lambda context: True
    bench.send(traceparent="00-abc", nested={"a": [1, None, "ü"]})
    bench.to_the_end()
    [letter] = bench.letters
    kept = json.loads(letter.original_message)
    assert (kept["traceparent"], kept["nested"]) == ("00-abc", {"a": [1, None, "ü"]})


@pytest.mark.parametrize("most", [2, 3, 6])
def test_1_3_4_a_message_below_the_maximum_is_executed(place: Place, most: int) -> None:
    bench = Bench(place, max_retry_attempts=most)
    bench.fails = lambda context: True
    bench.send()
    assert bench.to_the_end() == [Outcome.RETRIED] * (most - 1) + [Outcome.DEAD_LETTERED]
    assert len(bench.executions) == most - 1


def test_1_3_4_on_success_history_is_written_and_the_message_is_deleted(bench: Bench) -> None:
    bench.send()
    assert bench.deliver() is Outcome.SUCCEEDED
    assert bench.statuses == ["Succeeded"]
    assert bench.is_empty


def test_1_3_4_a_failure_is_recorded_and_the_message_comes_again(bench: Bench) -> None:
    bench.fails = lambda context: context.attempt == 1
    bench.send()
    assert bench.deliver() is Outcome.RETRIED
    assert bench.deliver() is Outcome.SUCCEEDED
    assert [(str(entry.status), entry.error) for entry in bench.history] == [
        ("Failed", "ValueError: no key at attempt 1"),
        ("Succeeded", None),
    ]
    assert bench.is_empty


def test_1_3_4_a_message_that_failed_waits_for_its_backoff(place: Place) -> None:
    waits = RetryPolicy(base_delay_seconds=20, max_delay_seconds=20)
    bench = Bench(place, retry_policy=waits)
    bench.fails = lambda context: True
    bench.send()
    assert bench.deliver() is Outcome.RETRIED
    queue = bench.queue
    free_what_the_dead_held(queue)
    assert queue.receive(1, 30) == []
    assert bench.deliver() is Outcome.RETRIED, "after its time"


def test_1_3_too_few_attempts_are_refused(place: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"n means n - 1 executions\. Use 2 or more"):
        Bench(place, max_retry_attempts=1)


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_1_3_engine_messages_in_the_embedded_queue_have_no_maximum_of_the_jobs_own(place: Place) -> None:
    bench = Bench(place, max_retry_attempts=40)
    bench.send()
    with bench.hf.database.connect() as connection:
        assert connection.execute(jobs_table.select()).one().max_attempts is None
    bench.fails = lambda context: context.attempt < 30
    assert bench.to_the_end(most=30)[-1] is Outcome.SUCCEEDED, "far beyond the attempts of a job"
    assert bench.letters == []


def test_1_3_a_dead_letter_that_is_written_twice_is_one_row(bench: Bench) -> None:
    """The worker dies between the letter and the delete, twice."""
    bench.fails = lambda context: True
    bench.send()
    for _ in range(2):
        bench.deliver()
    for _ in range(2):
        assert bench.die_at("buried")
    assert bench.deliver() is Outcome.DEAD_LETTERED
    [letter] = bench.letters
    first_written = 3 if bench.place.is_azure else 5  # in a database the letter and the delete are one transaction
    assert letter.dequeue_count == first_written
    assert bench.is_empty


def test_1_3_the_row_key_is_the_message_and_when_the_queue_got_it(bench: Bench) -> None:
    bench.fails = lambda context: True
    bench.send()
    inserted_at = bench.next().inserted_at
    bench.to_the_end()
    [letter] = bench.letters
    assert letter.row_key == f"m-1-{inserted_at:%Y%m%dT%H%M%S%f}Z"
    assert inserted_at.utcoffset() == timedelta(0)
    assert bench.records.letters.get(ENGINE, letter.row_key) == letter
