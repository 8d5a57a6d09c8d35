"""``context.transaction`` of engines: effects, success and the end of the message are one, or none of them is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text

from holdfast.core.errors import Ambiguous, ConfigurationError, UndoneError
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.runner import Outcome
from holdfast.jobs import model
from holdfast.runtime.transaction import ENDED, HandlerTransaction
from tests.engines.conftest import open_place
from tests.engines.places import ENGINE, Bench, Place
from tests.engines.queues import free_what_the_dead_held
from tests.jobs.failover import read_only

DATABASES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.component("postgres18")),
    pytest.param("mariadb", marks=pytest.mark.component("mariadb")),
]
KINDS = [{}, {"singleton": True, "lock_seconds": 60}]


@pytest.fixture(params=DATABASES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    opened = open_place(request.param, request)
    with opened.application().database.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS effects (n INTEGER NOT NULL)"))
        connection.execute(text("DELETE FROM effects"))
    yield opened
    opened.empty()


@pytest.fixture(params=KINDS, ids=["plain", "singleton"])
def bench(place: Place, request: pytest.FixtureRequest) -> Bench:
    made = Bench(place, **request.param)
    made.work = insert
    made.send()
    return made


def insert(context: EngineContext, message: EngineMessage) -> dict[str, int]:
    context.transaction.execute(text("INSERT INTO effects VALUES (1)"))
    return {"done": 1}


def then(step: Callable[[EngineContext], Any]) -> Callable[[EngineContext, EngineMessage], Any]:
    def work(context: EngineContext, message: EngineMessage) -> None:
        insert(context, message)
        step(context)

    return work


def effects(bench: Bench) -> int:
    with bench.hf.database.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM effects")).scalar_one())


def test_effects_success_and_deletion_commit_together(bench: Bench) -> None:
    assert bench.deliver() is Outcome.SUCCEEDED
    assert (effects(bench), bench.statuses, bench.is_empty) == (1, ["Succeeded"], True)
    assert bench.history[0].output == '{"done": 1}'


@pytest.mark.parametrize("boundary", ["executed", "recorded"])
def test_a_worker_that_dies_before_the_commit_leaves_nothing(bench: Bench, boundary: str) -> None:
    assert bench.die_at(boundary)
    assert (effects(bench), bench.history) == (0, [])
    assert bench.to_the_end()[-1] is Outcome.SUCCEEDED
    assert (effects(bench), bench.ends()) == (1, ["Succeeded"])


def test_a_singleton_that_dies_after_the_commit_is_found_done(place: Place) -> None:
    bench = Bench(place, singleton=True, lock_seconds=60)
    bench.work = insert
    bench.send()
    assert bench.die_at("released")
    assert (effects(bench), bench.statuses) == (1, ["Succeeded"])
    assert bench.to_the_end() == [Outcome.ALREADY_DONE]
    assert effects(bench) == 1


def fail_once(context: EngineContext) -> None:
    if context.attempt == 1:
        raise ValueError("no")


def test_what_a_handler_wrote_before_it_raised_is_undone(bench: Bench) -> None:
    bench.work = then(fail_once)
    assert bench.to_the_end() == [Outcome.RETRIED, Outcome.SUCCEEDED]
    assert (effects(bench), bench.statuses) == (1, ["Failed", "Succeeded"])


def end_by_driver(context: EngineContext) -> None:
    context.transaction.connection.driver_connection.commit()


def end_and_raise(context: EngineContext) -> None:
    end_by_driver(context)
    raise ValueError("and then")


@pytest.mark.parametrize("step", [end_by_driver, end_and_raise])
def test_a_handler_that_ends_the_transaction_is_buried_and_not_repeated(
    bench: Bench, step: Callable[[EngineContext], None]
) -> None:
    bench.work = then(step)
    assert bench.to_the_end() == [Outcome.DEAD_LETTERED]
    assert len(bench.executions) == 1
    assert (effects(bench), bench.statuses, bench.ends()) == (1, ["Failed"], ["dead"])
    [letter] = bench.letters
    assert letter.error_message.startswith(ENDED)
    assert (letter.engine, letter.dequeue_count, letter.item_id) == (ENGINE, 1, "m-1")


def test_commit_and_rollback_are_refused(bench: Bench) -> None:
    bench.work = then(lambda context: context.transaction.commit())
    assert bench.deliver() is Outcome.RETRIED
    assert effects(bench) == 0
    assert "commit() on context.transaction, which is refused" in (bench.history[0].error or "")


def refuse_quietly(context: EngineContext) -> None:
    with suppress(Exception):
        context.transaction.commit()


def test_a_refusal_that_the_handler_swallows_is_a_failure_that_kept_nothing(bench: Bench) -> None:
    bench.work = then(refuse_quietly)
    assert bench.deliver() is Outcome.RETRIED
    assert (effects(bench), bench.letters) == (0, [])


def test_a_message_that_was_lost_meanwhile_keeps_nothing(bench: Bench) -> None:
    driven = bench.flow()
    message = bench.next(driven.queue)

    def take_over(context: EngineContext, message: EngineMessage) -> None:
        bench.place.ahead_seconds += 61  # nobody has beaten for it
        free_what_the_dead_held(driven.queue)
        insert(context, message)

    bench.work = take_over
    assert driven.handle(message) is Outcome.LOST
    assert (effects(bench), bench.history) == (0, [])


@pytest.mark.parametrize("has_landed", [True, False], ids=["answer lost", "refused"])
def test_a_commit_that_is_not_answered_counts_once(
    bench: Bench, has_landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, lost = HandlerTransaction._commit, list[int]()

    def lose_once(transaction: HandlerTransaction) -> None:
        if lost:
            commit(transaction)
            return
        lost.append(1)
        if has_landed:
            commit(transaction)
        transaction.close()
        raise Ambiguous("The answer was lost.")

    monkeypatch.setattr(HandlerTransaction, "_commit", lose_once)
    bench.to_the_end()
    assert lost
    assert (effects(bench), bench.ends()) == (1, ["Succeeded"])
    assert len(bench.executions) == (1 if has_landed else 2)


def test_an_async_handler_awaits_it(place: Place) -> None:
    bench = Bench(place)
    hf = place.application()

    async def handle(context: EngineContext, message: EngineMessage) -> None:
        await context.transaction.execute(text("INSERT INTO effects VALUES (1)"))

    hf.engine(ENGINE, queue=place.queue_name, operation="rotate")(handle)
    bench.send()
    assert bench.deliver(hf=hf) is Outcome.SUCCEEDED
    assert (effects(bench), bench.is_empty) == (1, True)


def test_a_context_tells_what_every_handler_is_told(bench: Bench) -> None:
    def look(context: EngineContext, message: EngineMessage) -> list[Any]:
        context.progress({"half": True})
        context.heartbeat()
        return [context.correlation_id, context.attempt, context.fencing_token, context.deadline]

    bench.work = look
    assert bench.deliver() is Outcome.SUCCEEDED
    assert bench.history[0].output == '["c-1", 1, 1, null]'


def test_where_the_tables_are_elsewhere_there_is_none_and_the_error_says_why(place: Place) -> None:
    bench = Bench(place, max_retry_attempts=2)
    bench.is_apart = True
    bench.work = insert
    bench.send()
    assert bench.to_the_end() == [Outcome.RETRIED, Outcome.DEAD_LETTERED]
    assert "must both be in the application's database" in bench.letters[0].error_message


def test_other_places_have_none() -> None:
    with pytest.raises(ConfigurationError, match=r"context\.transaction is not available"):
        _ = EngineContext(engine="e", operation="o", message_id="m", instance_id="i").transaction


def end_session(context: EngineContext) -> None:
    """Let the database undo the transaction: its server ends the session, or the file takes no writes."""
    match context.transaction.dialect.name:
        case "postgresql":
            context.transaction.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        case _:
            context.transaction.execute(text("KILL CONNECTION_ID()"))


def test_14_8_what_the_database_undid_is_no_attempt(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "UNDONE_SECONDS", 0.001)
    counts: list[int] = []

    def work(context: EngineContext, message: EngineMessage) -> dict[str, int]:
        counts.append(context.attempt)
        if bench.place.kind == "sqlite" and len(counts) == 1:
            with read_only("sqlite://"):
                return insert(context, message)
        done = insert(context, message)
        if len(counts) == 1:
            end_session(context)
        return done

    bench.work = work
    assert bench.deliver() is Outcome.UNDONE
    assert (bench.history, effects(bench)) == ([], 0)
    assert bench.to_the_end()[-1] is Outcome.SUCCEEDED
    assert (counts, effects(bench), bench.statuses) == ([1, 1], 1, ["Succeeded"])


def test_14_8_a_conflict_at_commit_is_no_attempt_but_counts_in_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "UNDONE_SECONDS", 0.001)
    monkeypatch.setattr(model, "MOST_UNDONE", 2)
    committed, refusals = HandlerTransaction._commit, iter(range(3))

    def commit(self: HandlerTransaction) -> None:
        if next(refusals, None) is None:
            return committed(self)
        self.close()
        raise UndoneError("the database refused the commit, and nothing was kept: a conflict.")

    monkeypatch.setattr(HandlerTransaction, "_commit", commit)
    assert bench.to_the_end() == [Outcome.UNDONE, Outcome.UNDONE, Outcome.RETRIED, Outcome.SUCCEEDED]
    assert (effects(bench), bench.statuses) == (1, ["Failed", "Succeeded"])
