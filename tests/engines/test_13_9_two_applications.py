"""Two applications in one place, with engines of the same name: each takes, and has done, its own messages alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import update

from holdfast.core.errors import ConfigurationError
from holdfast.engines.queues.embedded import FORMER_OPERATION
from holdfast.engines.runner import Outcome
from holdfast.jobs.listing import jobs_table
from holdfast.jobs.settings import WorkerSettings
from holdfast.records.dead_letters import DeadLetter, LetterStatus
from holdfast.records.protocol import EVERY_LETTER
from holdfast.records.schema import dead_letters_table, history_table
from tests.engines.conftest import PLACES, open_place
from tests.engines.places import ENGINE, Bench, Place
from tests.engines.test_retrying import dead_letter, kill_retry, retries, unchanged

DATABASES = ["sqlite", "postgres", "mariadb"]
ONE_DATABASE = pytest.mark.parametrize("place", DATABASES, indirect=True)


@pytest.fixture(params=[*PLACES, "mariadb"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    opened = open_place(request.param, request)
    yield opened
    opened.empty()


@pytest.fixture
def two(place: Place) -> tuple[Bench, Bench]:
    """Return applications that share the database; in Azure the tables, and each has a queue of its own."""
    first = Bench(place)
    return first, Bench(replace(place, app_name="another", tables=getattr(first, "tables", None)))


def forget_applications(bench: Bench) -> None:
    """Leave rows as an earlier release has written them."""
    with bench.hf.database.begin() as connection:
        for table in (history_table, dead_letters_table):
            connection.execute(update(table).values(application=None))


@ONE_DATABASE
def test_13_9_each_application_takes_its_own_messages(two: tuple[Bench, Bench]) -> None:
    first, second = two
    first.hf.engines.send(ENGINE, 1, message_id="m-1", correlation_id="c-1")
    assert second.to_the_end() == []
    second.hf.engines.send(ENGINE, 2, message_id="m-1", correlation_id="c-2")
    assert second.to_the_end() == [Outcome.SUCCEEDED]
    assert first.to_the_end() == [Outcome.SUCCEEDED]
    assert [[message.payload for message in bench.executions] for bench in two] == [[1], [2]]


@ONE_DATABASE
def test_13_9_messages_that_an_older_version_sent_are_taken(two: tuple[Bench, Bench]) -> None:
    first, _ = two
    first.hf.engines.send(ENGINE, 1)
    with first.hf.database.begin() as connection:
        connection.execute(update(jobs_table).values(operation=FORMER_OPERATION))
    assert first.to_the_end() == [Outcome.SUCCEEDED]
    handlers = first.hf.engines.handlers()
    assert {handler.operation for handler in handlers} == {FORMER_OPERATION, f"message@{first.place.app_name}"}
    assert len({id(handler.delivering) for handler in handlers}) == 1, "they share one engine's concurrency"


# What has succeeded in one is not done for the other


def test_13_9_what_has_succeeded_in_one_application_is_not_done_for_the_other(two: tuple[Bench, Bench]) -> None:
    for bench in two:
        bench.send()
        assert bench.to_the_end() == [Outcome.SUCCEEDED]
    first, second = two
    assert [entry.application for entry in first.history] == [first.place.app_name, "another"]
    for bench in two:
        bench.send("m-2")
        assert bench.to_the_end() == [Outcome.ALREADY_DONE]
    assert [len(bench.executions) for bench in (first, second)] == [1, 1]


@ONE_DATABASE
def test_13_9_a_message_of_another_application_is_no_twin(two: tuple[Bench, Bench]) -> None:
    first, second = two
    first.send()
    first.next()  # a worker of it has it in hand
    second.send()
    assert second.deliver() is Outcome.SUCCEEDED
    first.send("m-2")
    assert first.deliver() is Outcome.CONFLICT, "a twin of one's own application is one"


@ONE_DATABASE
def test_13_9_a_success_of_an_earlier_release_counts_for_every_application(two: tuple[Bench, Bench]) -> None:
    first, second = two
    first.send()
    first.to_the_end()
    forget_applications(first)
    for bench in two:
        bench.send("m-2")
        assert bench.to_the_end() == [Outcome.ALREADY_DONE]
    assert second.executions == []


def test_13_9_failures_and_letters_of_the_other_application_are_not_taken_for_own(two: tuple[Bench, Bench]) -> None:
    first, second = two
    died = dead_letter(first)
    assert died.application == first.place.app_name
    second.send(holdfastDequeueCount=1)  # a copy, whose original may have come to its end
    assert second.to_the_end() == [Outcome.SUCCEEDED]
    for bench in two:
        bench.fails = lambda context: True
        bench.send("m-2", "c-2")
        assert bench.to_the_end()[-1] is Outcome.DEAD_LETTERED
    again = [letter for letter in first.letters if letter.correlation_id == "c-2"]
    assert {letter.application for letter in again} == {first.place.app_name, "another"}
    assert {letter.dequeue_count for letter in again} == {first.options["max_retry_attempts"]}


@ONE_DATABASE
def test_13_9_letters_of_two_applications_about_messages_of_one_id_and_moment_are_both_kept(
    two: tuple[Bench, Bench],
) -> None:
    for bench in two:
        bench.send()
        bench.fails = lambda context: True
    with two[0].hf.database.begin() as connection:
        connection.execute(update(jobs_table).values(created_at=two[0].place.clock.now()))
    for bench in two:
        assert bench.to_the_end()[-1] is Outcome.DEAD_LETTERED
    assert {letter.application for letter in two[0].letters} == {bench.place.app_name for bench in two}


# Dead letters go back to whom they are of


def be_seen(bench: Bench) -> None:
    """Let a worker of the application be listed, as it lists itself when it starts."""
    worker = bench.hf.jobs.worker(threading.Event(), WorkerSettings(), others=bench.hf.engines.handlers())
    worker._announcement.tick()


def retried(bench: Bench, letter: DeadLetter) -> str:
    return bench.hf.redrive.retry(letter, "anne")


@ONE_DATABASE
def test_13_9_a_letter_that_another_application_puts_back_goes_to_the_queue_of_its_own(
    two: tuple[Bench, Bench],
) -> None:
    first, second = two
    letter = dead_letter(first)
    be_seen(first)
    message_id = retried(second, letter)
    assert second.to_the_end() == []
    assert first.to_the_end() == [Outcome.SUCCEEDED]
    assert [message.message_id for message in first.executions] == [message_id]


def test_13_9_a_letter_of_another_application_that_nobody_is_known_to_read_stays(two: tuple[Bench, Bench]) -> None:
    first, second = two
    letter = dead_letter(first)
    with pytest.raises(ConfigurationError, match=f"it is of application '{first.place.app_name}'.*nothing was changed"):
        retried(second, letter)
    assert unchanged(first, letter)
    retried(first, letter)
    assert first.to_the_end() == [Outcome.SUCCEEDED]


@ONE_DATABASE
def test_13_9_of_many_letters_those_of_others_are_refused_and_the_rest_put_back(two: tuple[Bench, Bench]) -> None:
    first, second = two
    theirs = dead_letter(first)
    second.send("m-2", "c-2")
    second.fails = lambda context: True
    second.to_the_end()
    second.fails = lambda context: False
    found = [*second.hf.redrive.retry_all(EVERY_LETTER, "anne")]
    assert sum(each.count for each in found) == 1
    assert ["it is of application" in text for each in found for text in each.refusals] == [True]
    assert unchanged(first, theirs)


@pytest.mark.parametrize("place", ["azure"], indirect=True)
@pytest.mark.parametrize("boundary", ["retry begun", "enqueued"])
def test_13_9_the_sweep_leaves_begun_retries_of_other_applications_to_them(
    two: tuple[Bench, Bench], boundary: str
) -> None:
    first, second = two
    letter = dead_letter(first)
    kill_retry(first, letter, boundary)
    assert retries(second).sweep(older_than_seconds=0) == 0
    with pytest.raises(ConfigurationError, match="it is of application"):
        retried(second, letter)
    assert retries(first).sweep(older_than_seconds=0) == 1
    first.to_the_end()
    assert [message.correlation_id for message in first.executions] == ["c-1"]
    assert second.to_the_end() == []


@ONE_DATABASE
def test_13_9_a_letter_of_an_earlier_release_is_put_back_by_whoever_declares_its_engine(
    two: tuple[Bench, Bench],
) -> None:
    first, second = two
    dead_letter(first)
    forget_applications(first)
    [letter] = first.letters
    assert letter.application is None
    retried(second, letter)
    assert first.to_the_end() == []
    assert second.to_the_end() == [Outcome.SUCCEEDED]
    [settled] = first.letters
    assert settled.status is LetterStatus.RESOLVED
