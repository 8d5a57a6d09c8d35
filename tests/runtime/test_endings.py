"""A handler that has ended its transaction itself is not repeated, however it ends after that, or does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import QueuePool

from holdfast import Discard, Holdfast, Retry, Skip, Snooze
from holdfast.core.errors import LostLeaseError, Unavailable
from holdfast.core.types import FencingToken
from holdfast.database.connection_slots import slots_of
from holdfast.jobs.running import Running
from holdfast.lease.held_lease import Lease
from holdfast.outbox.store import CheckpointStore
from holdfast.runtime.transaction import HandlerTransaction
from tests.components.processes import wait_until
from tests.runtime.account import ENDED_ITSELF, Settled
from tests.runtime.async_ways import commit_driver
from tests.runtime.conftest import COMPONENTS, NewDatabase
from tests.runtime.scenes import Ending
from tests.runtime.stage import Stage, end_with, open_stage
from tests.runtime.ways import EVERYWHERE, SQLITE
from tests.runtime.workloads import Processors, Queued, Triggers, failure_of, running, stopped_reason

ITEM = "ended"
OWNERS = {"job": "jobs:cells", "engine": "cells"}
DATABASES = [pytest.param(name, marks=COMPONENTS[name]) for name in EVERYWHERE]
DECISIONS: dict[str, Callable[[], Exception]] = {
    "snooze": partial(Snooze, in_seconds=0.0),
    "retry": partial(Retry, in_seconds=0.0),
    "discard": Discard,
}


@pytest.fixture(scope="module", params=DATABASES)
def jobs(request: pytest.FixtureRequest, new_database: NewDatabase) -> Iterator[Stage]:
    with new_database(request.param) as url, open_stage("job", url) as opened:
        yield opened


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((workload, name), id=f"{workload}-{name}", marks=COMPONENTS[name])
        for workload in OWNERS
        for name in EVERYWHERE
    ],
)
def queued(request: pytest.FixtureRequest, new_database: NewDatabase) -> Iterator[Stage]:
    workload, database = request.param
    with new_database(database) as url, open_stage(workload, url) as opened:
        yield opened


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Return what a handler waits for that does not end by itself."""
    event = threading.Event()
    yield event
    event.set()


def commit_itself(stage: Stage, item: str, context: Any) -> None:
    scene = stage.scene(item, context)
    scene.write("before")
    scene.driver.commit()


def settled(stage: Stage) -> dict[str, Settled]:
    assert isinstance(stage.workload, Queued)
    return stage.workload.settled()


def assert_left_to_an_operator(stage: Stage, item: str) -> None:
    found = settled(stage)[item]
    assert (found.is_done, found.rests) == (False, True)
    assert ENDED_ITSELF in (found.reason or "")
    assert stage.kept()[item] == [(1, "before")]


@pytest.mark.parametrize("decision", DECISIONS)
def test_what_a_job_decides_does_not_outrank_that_it_ended_its_transaction(jobs: Stage, decision: str) -> None:
    def act(item: str, context: Any) -> None:
        commit_itself(jobs, item, context)
        raise DECISIONS[decision]()

    jobs.workload.add([decision])
    jobs.workload.run([decision], act)
    assert_left_to_an_operator(jobs, decision)


def test_a_job_that_runs_for_too_long_after_that_is_not_repeated(jobs: Stage, release: threading.Event) -> None:
    def act(item: str, context: Any) -> None:
        commit_itself(jobs, item, context)
        release.wait()

    jobs.workload.add(["overdue"])
    with running(declared(jobs, act, max_seconds=1.0)):
        wait_until(lambda: "overdue" in settled(jobs), "it to end")
        release.set()
    assert_left_to_an_operator(jobs, "overdue")


def test_what_was_claimed_by_a_worker_that_stops_after_that_is_not_repeated(
    queued: Stage, release: threading.Event
) -> None:
    def act(item: str, context: Any) -> None:
        commit_itself(queued, item, context)
        release.wait()

    assert isinstance(queued.workload, Queued)
    app = queued.workload.declared(act)
    queued.workload.add(["drained"])
    with running(app, drain_seconds=0.01):
        wait_until(lambda: bool(queued.calls.get("drained")) and "drained" in queued.kept(), "the handler to commit")
    assert_left_to_an_operator(queued, "drained")
    assert_it_is_its_own(queued, "drained")


def assert_it_is_its_own(stage: Stage, item: str) -> None:
    """The dead letter of a message is its engine's, with an entry in the history, and the message is gone."""
    app = stage.workload.app()
    [letter] = [letter for letter in app.dead_letters.page().items if letter.correlation_id == item]
    assert letter.engine == OWNERS[stage.workload.name]
    assert [(entry.engine, entry.error is not None) for entry in app.history.of_correlation(letter.engine, item)] == [
        (letter.engine, True)
    ]
    with stage.apart.connect() as connection:
        states = connection.execute(text("SELECT status FROM holdfast_jobs WHERE correlation_id = :id"), {"id": item})
        assert states.scalars().all() == ([] if stage.workload.name == "engine" else ["dead"])


@pytest.mark.parametrize("how", [*Ending, "cancelled"])
def test_what_was_claimed_and_loses_its_lease_by_the_clock_after_that_is_not_repeated(
    queued: Stage, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, is_async, begun = f"lost-{how}", how == "cancelled", dict[str, Running]()
    begin = Running.begin

    def noted(self: Running, now: float) -> None:
        begun[str(self.job.correlation_id)] = self
        begin(self, now)

    monkeypatch.setattr(Running, "begin", noted)

    def act(item: str, context: Any) -> None:
        commit_itself(queued, item, context)
        begun[item].lose(is_certain=False)  # as whoever watches the clock does when no beat was answered
        end_with(Ending(how))

    async def act_async(item: str, context: Any) -> None:
        scene = queued.scene(item, context)
        await scene.write_async("before")
        await scene.transaction.run_sync(commit_driver)
        begun[item].lose(is_certain=False)
        await asyncio.Event().wait()  # the loss of the lease cancels it

    queued.workload.add([item])
    queued.workload.run([item], act_async if is_async else act, is_async=is_async)
    assert_left_to_an_operator(queued, item)


def declared(stage: Stage, act: Any, *, max_seconds: float | None) -> Any:
    app = stage.workload.app()

    def cell(context: Any, item: str) -> None:
        act(item, context)

    app.job(
        "cells", name="cell", max_attempts=2, retry_base_seconds=0.001, retry_max_seconds=0.001, max_seconds=max_seconds
    )(cell)
    return app


def test_the_place_of_a_handler_that_hangs_is_free_for_the_next(
    new_database: NewDatabase, release: threading.Event
) -> None:
    """SQLite has one: every later job would wait for it for ever."""
    with new_database(SQLITE) as url, open_stage("job", url) as stage:

        def act(item: str, context: Any) -> None:
            stage.scene(item, context).write("before")
            if item == "hangs" and len(stage.calls[item]) == 1:
                release.wait()

        stage.workload.add(["hangs"])
        with running(declared(stage, act, max_seconds=1.0)):
            wait_until(lambda: stage.workload.is_done("hangs"), "the next attempt to have the place")
            release.set()
        assert stage.kept() == {"hangs": [(2, "before")]}


@pytest.mark.parametrize("database", DATABASES)
def test_the_pool_opens_another_connection_for_one_that_was_cut(database: str, new_database: NewDatabase) -> None:
    with new_database(database) as url:
        engine = create_engine(url, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=5)
        places = slots_of(engine)
        hanging = HandlerTransaction(engine, 30.0, places=places)
        hanging.connection.execute(text("SELECT 1"))
        hanging.cut()
        later = HandlerTransaction(engine, 30.0, places=places)
        assert later.connection.scalar(text("SELECT 1")) == 1
        later.close()
        hanging.close()
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        engine.dispose()


@pytest.mark.parametrize("database", DATABASES)
def test_a_message_that_is_skipped_after_that_stops_its_processor(database: str, new_database: NewDatabase) -> None:
    with new_database(database) as url, open_stage("processor", url) as stage:
        app = stage.workload.app()

        @app.processor(ITEM, types=[ITEM])
        def handle(batch: Any, context: Any) -> Skip:
            commit_itself(stage, ITEM, context)
            return Skip("not ours")

        stage.workload.add([ITEM])
        for _ in range(2):
            failure_of(lambda: app.processors.run_until_caught_up(ITEM))
        [place] = app.processors.checkpoints.of(ITEM)
        assert (place.checkpoint, place.may_run) == (None, False)
        assert ENDED_ITSELF in (place.reason or "")
        assert stage.kept() == {ITEM: [(1, "before")]}


STOPS: dict[str, Any] = {"trigger": Lease, "processor": CheckpointStore}
ERRORS = {"failed": Unavailable("not answered"), "lost": LostLeaseError("not ours any more")}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("workload", STOPS)
def test_a_stop_that_could_not_be_written_is_written_before_anything_else(
    workload: str, error: str, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, failures = STOPS[workload].stop, [ERRORS[error], ERRORS[error]]

    def stop(self: Any, *given: Any) -> Any:
        if failures:
            raise failures.pop()
        return really(self, *given)

    monkeypatch.setattr(STOPS[workload], "stop", stop)
    with new_database(SQLITE) as url, open_stage(workload, url) as stage:
        stage.workload.add([ITEM])
        assert isinstance(stage.workload, Triggers | Processors)
        app = stage.workload.declared(ITEM, lambda item, context: commit_itself(stage, item, context))
        with running(app):
            wait_until(lambda: ENDED_ITSELF in why_it_is_stopped(app, workload), "the stop to be written")
        assert len(stage.calls[ITEM]) == 1
        assert stage.kept() == {ITEM: [(1, "before")]}


def why_it_is_stopped(app: Holdfast, workload: str) -> str:
    if workload == "trigger":
        return stopped_reason(app, ITEM) or ""
    return "".join(place.reason or "" for place in app.processors.checkpoints.of(ITEM) if not place.may_run)


LEASED = [pytest.param(workload, name, marks=COMPONENTS[name]) for workload in STOPS for name in EVERYWHERE]


@contextmanager
def leased_stage(workload: str, database: str, new_database: NewDatabase) -> Iterator[Stage]:
    with new_database(database) as url, open_stage(workload, url) as stage:
        stage.workload.add([ITEM])
        yield stage


def declared_leased(stage: Stage, act: Any) -> Holdfast:
    assert isinstance(stage.workload, Triggers | Processors)
    return stage.workload.declared(ITEM, act)


@pytest.mark.parametrize(("workload", "database"), LEASED)
def test_what_is_left_behind_by_a_worker_that_stops_after_that_is_stopped(
    workload: str, database: str, new_database: NewDatabase, release: threading.Event
) -> None:
    with leased_stage(workload, database, new_database) as stage:

        def act(item: str, context: Any) -> None:
            commit_itself(stage, item, context)
            release.wait()

        app = declared_leased(stage, act)
        with running(app, drain_seconds=0.01):
            wait_until(lambda: ITEM in stage.kept(), "the handler to commit")
        assert ENDED_ITSELF in why_it_is_stopped(app, workload)
        release.set()
        assert not stage.workload.run([ITEM], act)[ITEM].is_done
        assert stage.kept() == {ITEM: [(1, "before")]}


@pytest.mark.parametrize(("workload", "database"), LEASED)
def test_what_is_left_behind_in_a_whole_transaction_is_undone_and_done_by_the_next(
    workload: str, database: str, new_database: NewDatabase, release: threading.Event
) -> None:
    written = threading.Event()
    with leased_stage(workload, database, new_database) as stage:

        def act(item: str, context: Any) -> None:
            stage.scene(item, context).write("before")
            written.set()
            release.wait()

        with running(declared_leased(stage, act), drain_seconds=0.01):
            assert written.wait(30)
        next_one = stage.workload.run([ITEM], lambda item, context: stage.scene(item, context).write("before"))
        assert next_one[ITEM].is_done
        assert stage.kept() == {ITEM: [(2, "before")]}


@pytest.mark.parametrize("ending", Ending)
@pytest.mark.parametrize(("workload", "database"), LEASED)
def test_what_loses_its_lease_by_the_clock_after_that_is_stopped(
    workload: str, database: str, ending: Ending, new_database: NewDatabase
) -> None:
    with leased_stage(workload, database, new_database) as stage:

        def act(item: str, context: Any) -> None:
            commit_itself(stage, item, context)
            context.lease_lost.set()  # as whoever watches the clock does
            end_with(ending)

        settled = stage.workload.run([ITEM], act)[ITEM]
        assert (settled.is_done, settled.rests) == (False, True)
        assert ENDED_ITSELF in (settled.reason or "")
        assert stage.kept() == {ITEM: [(1, "before")]}


@pytest.mark.parametrize("database", DATABASES)
def test_a_processor_that_was_succeeded_after_that_stops_when_it_is_in_charge_again(
    database: str, new_database: NewDatabase
) -> None:
    with leased_stage("processor", database, new_database) as stage:
        checkpoints = stage.workload.app().processors.checkpoints

        def act(item: str, context: Any) -> None:
            commit_itself(stage, item, context)
            [place] = checkpoints.of(ITEM)
            assert checkpoints.take_over(place.id, FencingToken(context.fencing_token + 1), 30.0) is not None

        app = declared_leased(stage, act)
        with running(app):
            wait_until(lambda: ENDED_ITSELF in why_it_is_stopped(app, "processor"), "the stop to be written")
        assert stage.kept() == {ITEM: [(1, "before")]}
