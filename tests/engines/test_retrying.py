"""A dead letter that is put back is never lost and never doubled, wherever its retry is killed [ENGINE-5]."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from holdfast.core.errors import (
    Ambiguous,
    ConfigurationError,
    Conflict,
    DbConnectionError,
    DbError,
    MessageError,
    Unavailable,
    UnfinishedRetry,
)
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.queues.protocol import MissingQueueError
from holdfast.engines.retrying import SteppedRetries
from holdfast.engines.runner import Outcome
from holdfast.engines.tables.azure_table import AzureTable
from holdfast.records import audit
from holdfast.records.dead_letters import DeadLetter, DeadLetters, LetterFilter, LetterStatus
from tests.components.processes import PythonWorker, wait_until
from tests.engines.driving import Killed
from tests.engines.places import ENGINE, Bench, Place
from tests.engines.tables import at_once
from tests.records.samples import days_ago, letter

SIMPLE_PLACES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.component("postgres18")),
]
AZURE = [pytest.param("azure", marks=pytest.mark.component("azurite"))]


def fails_always(context: EngineContext) -> bool:
    return True


def never_fails(context: EngineContext) -> bool:
    return False


def dead_letter(bench: Bench) -> DeadLetter:
    """Have a message fail until it is a dead letter; from then on nothing fails."""
    bench.send()
    bench.fails = fails_always
    assert bench.to_the_end()[-1] is Outcome.DEAD_LETTERED
    [letter] = bench.letters
    bench.fails = never_fails
    bench.executions.clear()
    return letter


def retries(bench: Bench, reached: Callable[[str], None] = lambda boundary: None) -> SteppedRetries:
    made = bench.hf.engines.retries
    made._reached = reached
    return made


def kill_retry(bench: Bench, letter: DeadLetter, boundary: str) -> None:
    def die(reached: str) -> None:
        if reached == boundary:
            raise Killed

    with pytest.raises(Killed):
        retries(bench, die).retry(letter, "anne")


def check_retried_once(bench: Bench, letter: DeadLetter) -> None:
    """Check that the letter is settled, its message was executed once, and nothing is left."""
    settled = bench.records.letters.get(letter.engine, letter.row_key)
    assert settled is not None
    assert (settled.status, settled.resolution_notes) == (LetterStatus.RESOLVED, "Retried")
    assert [message.message_id for message in bench.executions] == [settled.retried_as]
    assert bench.ends() == ["Succeeded"]
    assert bench.is_empty


def finished_by_sweep(bench: Bench, letter: DeadLetter) -> None:
    assert retries(bench).sweep(older_than_seconds=0) == 1


def finished_by_retry(bench: Bench, letter: DeadLetter) -> None:
    retries(bench).retry(letter, "bert")


FINISHED = [finished_by_sweep, finished_by_retry]


@pytest.mark.parametrize("finish", FINISHED)
@pytest.mark.parametrize("boundary", ["retry begun", "enqueued"])
def test_a_retry_killed_between_its_steps_is_finished_under_the_same_id(
    bench: Bench, boundary: str, finish: Callable[[Bench, DeadLetter], None]
) -> None:
    letter = dead_letter(bench)
    kill_retry(bench, letter, boundary)
    begun = bench.records.letters.get(ENGINE, letter.row_key)
    assert begun is not None
    assert (begun.status, begun.retry_begun_by) == (LetterStatus.PENDING, "anne")
    finish(bench, letter)
    bench.to_the_end()
    check_retried_once(bench, letter)
    settled = bench.records.letters.get(ENGINE, letter.row_key)
    assert settled is not None
    assert (settled.retried_as, settled.resolved_by) == (begun.retry_message_id, "anne")


def test_a_retry_killed_at_its_end_is_over(bench: Bench) -> None:
    letter = dead_letter(bench)
    kill_retry(bench, letter, "retry finished")
    assert retries(bench).sweep(older_than_seconds=0) == 0
    with pytest.raises(Conflict):
        retries(bench).retry(letter, "bert")
    bench.to_the_end()
    check_retried_once(bench, letter)


@pytest.mark.parametrize("finish", FINISHED)
def test_a_message_that_is_done_before_its_retry_is_finished_is_not_sent_again(
    bench: Bench, finish: Callable[[Bench, DeadLetter], None]
) -> None:
    letter = dead_letter(bench)
    kill_retry(bench, letter, "enqueued")
    assert bench.to_the_end() == [Outcome.SUCCEEDED]
    finish(bench, letter)
    assert bench.is_empty
    check_retried_once(bench, letter)


@pytest.mark.parametrize("finish", FINISHED)
def test_a_message_that_died_before_its_retry_is_finished_is_one_new_dead_letter(
    bench: Bench, finish: Callable[[Bench, DeadLetter], None]
) -> None:
    letter = dead_letter(bench)
    kill_retry(bench, letter, "enqueued")
    bench.fails = fails_always
    assert bench.to_the_end()[-1] is Outcome.DEAD_LETTERED
    finish(bench, letter)
    assert bench.is_empty
    check_died_again(bench, letter)


def check_died_again(bench: Bench, letter: DeadLetter) -> None:
    old, new = sorted(bench.letters, key=lambda each: each.row_key != letter.row_key)
    assert (old.row_key, old.status, old.retried_as) == (letter.row_key, LetterStatus.RESOLVED, new.item_id)
    assert (new.status, new.correlation_id, new.dequeue_count) == (LetterStatus.PENDING, "c-1", 3)
    assert bench.ends() == ["dead"]


def test_a_retried_message_that_dies_again_is_one_new_dead_letter_counted_afresh(bench: Bench) -> None:
    letter = dead_letter(bench)
    bench.hf.redrive.retry(letter, "anne")
    bench.fails = fails_always
    assert bench.to_the_end() == [Outcome.RETRIED, Outcome.RETRIED, Outcome.DEAD_LETTERED]
    check_died_again(bench, letter)
    assert {message.causation_id for message in bench.executions} == {"m-1"}, "it tells what it came from"


# Twins: the same message twice in the queue


def twins(bench: Bench) -> DeadLetter:
    """Retry a letter so that its message is in the queue twice, as far as the queue allows that."""
    letter = dead_letter(bench)
    kill_retry(bench, letter, "enqueued")
    retries(bench).sweep(older_than_seconds=0)
    return letter


def test_twins_that_are_delivered_at_once_run_one_after_the_other(bench: Bench) -> None:
    letter = twins(bench)
    conflicts: list[Outcome] = []

    def meanwhile(context: EngineContext, message: EngineMessage) -> None:
        queue = bench.queue
        for other in queue.receive(1, 30):
            conflicts.append(bench.flow(queue).handle(other))

    bench.work = meanwhile
    outcomes = bench.to_the_end()
    assert outcomes[0] is Outcome.SUCCEEDED
    assert conflicts == ([Outcome.CONFLICT] if bench.place.is_azure else [])
    check_retried_once(bench, letter)


def test_of_twins_the_second_cannot_succeed_once_the_first_is_dead(bench: Bench) -> None:
    """One of them fails until it dies, while a worker has the other; then nothing fails any more."""
    letter = twins(bench)
    queue = bench.queue
    first = bench.next(queue)
    queue.receive(1, 30)  # a worker has the second, and dies with it
    bench.fails = fails_always
    flow = bench.flow(queue)
    while flow.handle(first) is Outcome.RETRIED:
        [first] = wait_until(lambda: queue.receive(1, 30), "the message that failed")
    bench.fails = never_fails
    bench.to_the_end()
    check_died_again(bench, letter)
    assert bench.is_empty


def test_of_twins_one_is_not_buried_while_the_other_is_at_work(bench: Bench) -> None:
    twins(bench)
    buried: list[Outcome] = []

    def meanwhile(context: EngineContext, message: EngineMessage) -> None:
        bench.work = lambda *given: None
        queue = bench.queue
        for other in queue.receive(1, 30):
            last = type(other)(other.id, other.body, 3, other.inserted_at, other.receipt)
            buried.append(bench.flow(queue).handle(last))

    bench.work = meanwhile
    bench.to_the_end()
    assert buried == ([Outcome.CONFLICT] if bench.place.is_azure else [])
    assert bench.ends() == ["Succeeded"]


# Two people, lost answers


@pytest.mark.parametrize("place", SIMPLE_PLACES, indirect=True)
def test_of_two_people_one_retries_and_the_other_gets_409(bench: Bench) -> None:
    letter = dead_letter(bench)
    outcomes = at_once([partial(bench.hf.redrive.retry, letter, name) for name in ("anne", "bert")])
    assert sorted(isinstance(outcome, Conflict) for outcome in outcomes) == [False, True]
    bench.to_the_end()
    check_retried_once(bench, letter)


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_two_people_who_retry_step_by_step_send_one_message_id(bench: Bench) -> None:
    """The second either gets 409, or finishes what the first began."""
    letter = dead_letter(bench)
    outcomes = at_once([partial(retries(bench).retry, letter, name) for name in ("anne", "bert")])
    assert len({outcome for outcome in outcomes if isinstance(outcome, str)}) == 1
    bench.to_the_end()
    check_retried_once(bench, letter)


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_of_two_who_begin_in_one_moment_one_gets_409(bench: Bench) -> None:
    letter = dead_letter(bench)
    change = AzureTable.change

    def late(table: AzureTable, *given: Any) -> Any:
        patched.undo()
        retries(bench).retry(letter, "bert")
        return change(table, *given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AzureTable, "change", late)
        with pytest.raises(Conflict):
            retries(bench).retry(letter, "anne")
    bench.to_the_end()
    check_retried_once(bench, letter)


def test_a_send_whose_answer_was_lost_is_repeated_under_the_same_id(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = dead_letter(bench)
    stepped = bench.hf.engines.retries
    queue = stepped._queue(letter)
    send = queue.send

    def lost(body: str, *, message_id: str) -> str:
        send(body, message_id=message_id)
        raise Ambiguous("The answer was lost.")

    monkeypatch.setattr(queue, "send", lost)
    stepped._queue = lambda letter: queue
    with pytest.raises(Ambiguous):
        stepped.retry(letter, "anne")
    retries(bench).sweep(older_than_seconds=0)
    bench.to_the_end()
    check_retried_once(bench, letter)


# What cannot be put back


def large_letter(bench: Bench) -> DeadLetter:
    """A letter whose message fitted its queue, and whose copy does not."""
    body = json.dumps({"messageId": "m-1", "payload": "x" * 49_100}, separators=(",", ":"))
    new = letter(engine=ENGINE, original_message=body, original_queue=bench.queue.name)
    assert bench.records.letters.add(new)
    return new


def unchanged(bench: Bench, before: DeadLetter) -> bool:
    return bench.records.letters.get(ENGINE, before.row_key) == before and bench.is_empty


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_a_letter_whose_copy_is_too_large_is_refused_before_anything_is_written(bench: Bench) -> None:
    large = large_letter(bench)
    with pytest.raises(MessageError, match="takes at most 65,536"):
        bench.hf.redrive.retry(large, "anne")
    assert unchanged(bench, large)
    [told] = bench.hf.redrive.retry_all(LetterFilter(engine=ENGINE), "anne")
    assert (told.count, len(told.refusals)) == (0, 1)
    assert unchanged(bench, large)


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_a_letter_whose_queue_is_gone_is_refused_before_anything_is_written(bench: Bench) -> None:
    gone = letter(engine=ENGINE, original_message="{}", original_queue="no-such-queue")
    assert bench.records.letters.add(gone)
    with pytest.raises(MissingQueueError, match="There is no queue 'no-such-queue'"):
        bench.hf.redrive.retry(gone, "anne")
    assert unchanged(bench, gone)


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_a_retry_that_was_begun_and_can_never_be_finished_says_how_to_settle_it(bench: Bench) -> None:
    large = large_letter(bench)
    begun = bench.records.letters.begin_retry(ENGINE, large.row_key, "anne", "m-2")
    with pytest.raises(MessageError, match=r"was begun and cannot be finished.*dlq resolve --force"):
        bench.hf.redrive.retry(begun, "bert")
    assert retries(bench).sweep(older_than_seconds=0) == 0
    with pytest.raises(Conflict, match="dlq resolve --force"):
        bench.hf.dead_letters.resolve(ENGINE, large.row_key, "by hand", "bert")
    bench.hf.dead_letters.resolve(ENGINE, large.row_key, "by hand", "bert", despite_retry=True)
    [row] = audit.page(bench.hf.database, action="dlq resolve").items
    assert row.details == {"notes": "by hand", "despite_retry_as": "m-2"}


@pytest.mark.parametrize("kind", [Unavailable, DbConnectionError, MissingQueueError])
def test_a_retry_that_breaks_off_after_its_first_step_says_that_it_was_begun(
    bench: Bench, kind: type[DbError], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dead_letter(bench)
    stepped = bench.hf.engines.retries
    queue = stepped._queue(found)

    def fail(body: str, *, message_id: str) -> str:
        raise kind("It does not answer.")

    monkeypatch.setattr(queue, "send", fail)
    stepped._queue = lambda each: queue
    with pytest.raises(UnfinishedRetry, match="was begun and could not be finished now"):
        stepped.retry(found, "anne")
    retries(bench).sweep(older_than_seconds=0)
    bench.to_the_end()
    check_retried_once(bench, found)


def test_a_letter_of_an_engine_that_is_not_declared_is_refused(bench: Bench) -> None:
    found = dead_letter(bench)
    stepped = bench.hf.engines.retries
    stepped._owners = replace(stepped._owners, is_declared=lambda engine: False)
    with pytest.raises(ConfigurationError, match=f"has no engine '{ENGINE}'.*dlq resolve"):
        stepped.retry(found, "anne")
    home = bench.hf.engines.redrive
    if home is not None:
        home._owners = replace(home._owners, is_declared=lambda engine: False)
        with bench.hf.database.begin() as connection:
            [refusal] = home.put_back(connection, [found], "anne")
        assert "has no engine" in str(refusal)
    assert unchanged(bench, found)


def test_the_sweep_leaves_retries_of_engines_that_are_not_declared_to_others(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    kill_retry(bench, dead_letter(bench), "retry begun")
    stepped = retries(bench)
    stepped._owners = replace(stepped._owners, is_declared=lambda engine: False)
    assert stepped.sweep(older_than_seconds=0) == 0
    assert "cannot be finished" not in caplog.text


@pytest.mark.parametrize("finish", FINISHED)
@pytest.mark.parametrize("body", ["no message", '{"instanceId": 7}'])
def test_a_message_nobody_can_read_that_died_before_its_retry_is_finished_is_one_new_dead_letter(
    bench: Bench, body: str, finish: Callable[[Bench, DeadLetter], None]
) -> None:
    bench.queue.send(body, message_id="m-1")
    assert bench.to_the_end() == [Outcome.DEAD_LETTERED]
    [unread] = bench.letters
    kill_retry(bench, unread, "enqueued")
    bench.place.clock.advance(
        (days_ago(-1) - bench.place.clock.now()).total_seconds()
    )  # the retry has the table's time
    assert bench.to_the_end() == [Outcome.DEAD_LETTERED]
    finish(bench, unread)
    assert bench.to_the_end() == []
    assert sorted(each.status for each in bench.letters) == [LetterStatus.PENDING, LetterStatus.RESOLVED]


# In one transaction, where letters and queue are in one database


@pytest.mark.parametrize("place", SIMPLE_PLACES, indirect=True)
@pytest.mark.parametrize("step", ["begin_retry", "finish_retry"])
def test_a_retry_in_one_transaction_that_is_killed_has_not_happened(
    bench: Bench, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = dead_letter(bench)
    done = getattr(DeadLetters, step)

    def die(*given: object) -> None:
        done(*given)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(DeadLetters, step, die)
        with pytest.raises(Killed):
            bench.hf.redrive.retry(letter, "anne")
    assert bench.letters == [letter]
    assert bench.is_empty
    bench.hf.redrive.retry(letter, "bert")
    bench.to_the_end()
    check_retried_once(bench, letter)


KILLED_INSIDE = """
import os, signal, sys
from holdfast import Holdfast
from holdfast.records.dead_letters import DeadLetters
hf = Holdfast(sys.argv[1], app_name=sys.argv[2])
hf.engine("hmac", queue="hmac-rotation-queue", operation="rotate")(lambda context, message: None)
finish = DeadLetters.finish_retry
def die(*given):
    finish(*given)
    print("inside", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
DeadLetters.finish_retry = die
[letter] = hf.dead_letters.page().items
hf.redrive.retry(letter, "anne")
"""


@pytest.mark.parametrize("place", SIMPLE_PLACES, indirect=True)
def test_a_retry_whose_process_is_killed_inside_the_transaction_has_not_happened(place: Place) -> None:
    bench = Bench(place)
    letter = dead_letter(bench)
    with PythonWorker("-c", KILLED_INSIDE, place.url, place.app_name) as worker:
        worker.wait_for_line("inside")
        assert worker.wait() == -9
    assert bench.letters == [letter]
    assert bench.is_empty
    bench.hf.redrive.retry(letter, "bert")
    bench.to_the_end()
    check_retried_once(bench, letter)
