"""Handlers with a transaction cannot get into each other's way, and every one of them ends."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast.core.config import DbConfig
from holdfast.core.errors import Ambiguous, HandlerError, Unavailable
from holdfast.database.connection_slots import Slots, slots_of
from holdfast.database.pools import EngineProvider
from holdfast.jobs.context import JobContext
from holdfast.jobs.outcomes import Discard
from holdfast.jobs.running import Running
from holdfast.jobs.settings import WorkerSettings
from holdfast.jobs.worker import JobWorker
from holdfast.runtime import transaction as handler_transaction
from holdfast.runtime.async_transaction import AsyncTransaction
from holdfast.runtime.lent_connection import LentConnection
from holdfast.runtime.transaction import HandlerTransaction
from tests.components.processes import wait_until
from tests.jobs.queues import Queue
from tests.jobs.workers import Work

MANY = WorkerSettings(concurrency=20, poll_seconds=0.05)
POOL_SIZE = 2
MORE_THAN_THE_LOOPS_OWN_THREADS = 40
INSERT = text("INSERT INTO effects VALUES (:n)")
ENDLESS = {
    "postgresql": "SELECT pg_sleep(600)",
    "mysql": "SELECT SLEEP(600)",
    "sqlite": "WITH RECURSIVE more (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more) SELECT count(*) FROM more",
}


@pytest.fixture
def work(queue: Queue) -> Work:
    return Work(queue)


@pytest.fixture
def small_pool(queue: Queue) -> Iterator[Engine]:
    """Two connections; whoever asks the pool for a third gets an error at once."""
    engine = EngineProvider().create_isolated_engine(
        DbConfig(
            connection_url=queue.engine.url.render_as_string(hide_password=False),
            pool_size=POOL_SIZE,
            engine_kwargs={"max_overflow": 0, "pool_timeout": 0},
        )
    )
    yield engine
    engine.dispose()


@pytest.fixture
def effects(queue: Queue) -> Effects:
    with queue.engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER NOT NULL)"))
    return Effects(queue)


class Effects:
    """What handlers wrote."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def all(self) -> list[int]:
        return [row["n"] for row in self._queue.rows("SELECT n FROM effects ORDER BY n")]


def reasons(queue: Queue) -> list[str]:
    return [letter["error_message"] for letter in queue.dead_letters()]


def run_all(work: Work) -> None:
    with work.running():
        work.until_empty()


# There are fewer connections than handlers


def test_async_handlers_wait_for_a_connection_on_the_loop(queue: Queue, small_pool: Engine, effects: Effects) -> None:
    async def write(context: JobContext, n: int) -> None:
        await context.transaction.execute(INSERT, {"n": n})
        await asyncio.sleep(0)
        await context.transaction.execute(INSERT, {"n": n})

    work = Work(queue, MANY, small_pool)
    work.job(write, max_attempts=1).enqueue_many([{"n": n} for n in range(20)])
    run_all(work)
    assert reasons(queue) == []
    assert effects.all() == sorted([*range(20), *range(20)])


def test_threads_wait_for_a_connection(queue: Queue, small_pool: Engine, effects: Effects) -> None:
    all_here = threading.Barrier(20)

    def write(context: JobContext, n: int) -> None:
        all_here.wait(30)
        context.transaction.execute(INSERT, {"n": n})

    work = Work(queue, MANY, small_pool)
    work.job(write, max_attempts=1).enqueue_many([{"n": n} for n in range(20)])
    run_all(work)
    assert reasons(queue) == []
    assert effects.all() == list(range(20))


def test_threads_and_the_loop_share_the_connections(queue: Queue, small_pool: Engine, effects: Effects) -> None:
    def write(context: JobContext, n: int) -> None:
        context.transaction.execute(INSERT, {"n": n})

    async def write_async(context: JobContext, n: int) -> None:
        await context.transaction.execute(INSERT, {"n": n})

    work = Work(queue, MANY, small_pool)
    work.job(write, max_attempts=1).enqueue_many([{"n": n} for n in range(20)])
    work.job(write_async, max_attempts=1).enqueue_many([{"n": n} for n in range(20, 40)])
    run_all(work)
    assert reasons(queue) == []
    assert effects.all() == list(range(40))


def test_steps_do_not_need_the_threads_of_the_loop(queue: Queue) -> None:
    release = threading.Event()
    transaction = HandlerTransaction(queue.engine, 30.0)

    async def use() -> int:
        loop = asyncio.get_running_loop()
        taken = [loop.run_in_executor(None, release.wait, 60) for _ in range(MORE_THAN_THE_LOOPS_OWN_THREADS)]
        try:
            found = await asyncio.wait_for(AsyncTransaction(transaction).execute(text("SELECT 7")), 30)
            return int(found.scalar_one())
        finally:
            release.set()
            await asyncio.gather(*taken)

    assert asyncio.run(use()) == 7
    transaction.close()


def test_jobs_end_without_the_threads_of_the_loop(work: Work, effects: Effects) -> None:
    release = threading.Event()

    async def write(context: JobContext) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(MORE_THAN_THE_LOOPS_OWN_THREADS):
            loop.run_in_executor(None, release.wait, 60)
        await context.transaction.execute(INSERT, {"n": 1})

    work.job(write).enqueue()
    try:
        run_all(work)
    finally:
        release.set()
    assert effects.all() == [1]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_transaction_that_did_not_open_keeps_no_place(
    queue: Queue, effects: Effects, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    begin = HandlerTransaction._begun
    refused: list[int] = []

    def refuse_some(self: HandlerTransaction) -> LentConnection:
        if len(refused) < MANY.concurrency:
            refused.append(1)
            raise Unavailable("no more connections")
        return begin(self)

    monkeypatch.setattr(HandlerTransaction, "_begun", refuse_some)

    def swallow(context: JobContext, n: int) -> None:
        try:
            context.transaction.execute(INSERT, {"n": n})
        except Unavailable:
            return

    async def swallow_async(context: JobContext, n: int) -> None:
        try:
            await context.transaction.execute(INSERT, {"n": n})
        except Unavailable:
            return

    work = Work(queue, MANY)
    work.job(swallow_async if is_async else swallow).enqueue_many([{"n": n} for n in range(40)])
    run_all(work)
    assert len(effects.all()) == 40 - MANY.concurrency


def test_there_are_as_many_places_as_connections(queue: Queue, small_pool: Engine) -> None:
    places = slots_of(small_pool)
    assert places is not None
    is_sqlite = queue.engine.dialect.name == "sqlite"
    assert places._free == (1 if is_sqlite else POOL_SIZE)


def test_an_endless_pool_has_no_bound(postgres_url: str) -> None:
    provider = EngineProvider()
    for options in ({"max_overflow": -1}, {"pool_size": 0}):
        endless = provider.create_isolated_engine(DbConfig(connection_url=postgres_url, engine_kwargs=options))
        assert slots_of(endless) is None
        endless.dispose()


def test_who_stops_waiting_for_a_place_does_not_take_it_along() -> None:
    places = Slots(1)

    async def wait() -> None:
        await places.take_async()
        impatient = asyncio.create_task(places.take_async())
        unlucky = asyncio.create_task(places.take_async())
        patient = asyncio.create_task(places.take_async())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        places.give_back()
        unlucky.cancel()  # it has the place by now, but does not know yet
        await asyncio.gather(unlucky, return_exceptions=True)
        await asyncio.wait_for(patient, 30)
        assert impatient.cancelled()
        assert unlucky.cancelled()

    asyncio.run(wait())
    places.give_back()
    places.take()


# Every attempt ends


def the_only_one(worker: JobWorker) -> Running:
    [running] = wait_until(worker._in_flight.all, "the job to be claimed")
    return running


def is_in_use(transaction: HandlerTransaction) -> bool:
    if transaction._in_use.acquire(blocking=False):
        transaction._in_use.release()
        return False
    return True


def test_a_statement_that_does_not_end_is_broken_off(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_transaction, "_STATEMENT_SECONDS", 0.3)
    endless = text(ENDLESS[work.queue.engine.dialect.name])
    transactions: list[HandlerTransaction] = []

    async def hang(context: JobContext) -> None:
        if context.attempt == 1:
            await context.transaction.execute(text("SELECT 1"))
            transactions.append(context.transaction._transaction)
            await context.transaction.execute(endless)

    work.job(hang).enqueue()
    with work.running() as worker:
        running = the_only_one(worker)
        wait_until(lambda: transactions and is_in_use(transactions[0]), "the statement to be sent")
        running.lose(is_certain=False)
        work.until_empty()
    assert [entry["attempt"] for entry in work.queue.history()] == [2]
    assert not transactions[0].is_used


def test_a_transaction_that_ends_while_it_is_opened_is_let_go_of(
    queue: Queue, small_pool: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_transaction, "_STATEMENT_SECONDS", 0.01)
    places, opening, go_on = Slots(1), threading.Event(), threading.Event()

    class Slow(HandlerTransaction):
        def _begun(self) -> LentConnection:
            opening.set()
            go_on.wait(30)
            return super()._begun()

    transaction = Slow(small_pool, 30.0, places=places)

    def use() -> None:
        with suppress(HandlerError):
            transaction.lend(lambda connection: connection.execute(text("SELECT 1")))

    thread = threading.Thread(target=use)
    thread.start()
    assert opening.wait(30)
    transaction.close()
    go_on.set()
    thread.join()
    assert small_pool.pool.checkedout() == 0  # type: ignore[attr-defined]
    places.take()
    with pytest.raises(HandlerError, match="after its delivery had ended"):
        _ = transaction.connection


@pytest.mark.parametrize("is_async", [False, True])
def test_a_job_is_reported_even_if_its_transaction_cannot_be_ended(
    work: Work, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    def fail(self: HandlerTransaction) -> None:
        close(self)
        raise OSError("bad file descriptor")

    close = HandlerTransaction.close
    monkeypatch.setattr(HandlerTransaction, "close", fail)

    def write(context: JobContext) -> None:
        context.transaction.execute(text("SELECT 1"))
        raise ValueError("no")

    async def write_async(context: JobContext) -> None:
        await context.transaction.execute(text("SELECT 1"))
        raise ValueError("no")

    work.job(write_async if is_async else write, max_attempts=1).enqueue()
    run_all(work)
    assert reasons(work.queue) == ["OSError: bad file descriptor"]


def test_a_wish_that_cannot_be_told_is_a_failure(work: Work) -> None:
    class Mute(Discard):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def wish() -> None:
        raise Mute

    work.job(wish, max_attempts=1).enqueue()
    run_all(work)
    assert reasons(work.queue) == ["RuntimeError: no words"]


# Progress


@pytest.mark.parametrize("is_async", [False, True])
def test_progress_can_be_told_while_the_transaction_is_open(work: Work, effects: Effects, is_async: bool) -> None:
    def write(context: JobContext) -> None:
        context.transaction.execute(INSERT, {"n": 1})
        context.heartbeat(progress={"done": 1})
        context.transaction.execute(INSERT, {"n": 2})

    async def write_async(context: JobContext) -> None:
        await context.transaction.execute(INSERT, {"n": 1})
        await context.heartbeat(progress={"done": 1})
        await context.transaction.execute(INSERT, {"n": 2})

    work.job(write_async if is_async else write, max_attempts=1).enqueue()
    run_all(work)
    assert reasons(work.queue) == []
    assert effects.all() == [1, 2]


def test_telling_progress_does_not_hold_up_the_loop(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    loop_went_on, seen, told = threading.Event(), [], []
    progress = type(work.queue.store).progress

    def slow(store: Any, worker: Any, claim: Any, value: str | None) -> bool:
        seen.append(loop_went_on.wait(30))
        return progress(store, worker, claim, value)

    monkeypatch.setattr(type(work.queue.store), "progress", slow)

    async def tell(context: JobContext) -> None:
        asyncio.get_running_loop().call_soon(loop_went_on.set)
        await context.heartbeat(progress={"done": 1})
        told.append(work.queue.column(context.job_id, "progress"))

    work.job(tell, max_attempts=1).enqueue()
    run_all(work)
    assert seen == [True]
    assert [json.loads(value) for value in told] == [{"done": 1}]


# What is said about a failure


def test_a_bad_payload_for_another_job_is_no_reason_to_give_up_this_one(work: Work) -> None:
    def child(n: int) -> None: ...

    def parent(context: JobContext) -> None:
        child_job.enqueue(n=1 if context.attempt > 1 else "one")

    child_job = work.job(child)
    work.job(parent, max_attempts=2).enqueue()
    run_all(work)
    assert reasons(work.queue) == []
    failed = [entry["error"] for entry in work.queue.history() if entry["status"] == "Failed"]
    assert len(failed) == 1
    assert failed[0].startswith("PayloadError: ")


@pytest.mark.parametrize("kind", [Unavailable, Ambiguous])
def test_only_a_commit_that_failed_is_called_one(
    work: Work, effects: Effects, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def refuse(self: HandlerTransaction) -> None:
        self.close()
        raise kind("not today")

    monkeypatch.setattr(HandlerTransaction, "_commit", refuse)

    def itself() -> None:
        raise kind("a store of my own")

    def write(context: JobContext) -> None:
        context.transaction.execute(INSERT, {"n": 1})

    work.job(itself, max_attempts=1).enqueue()
    work.job(write, max_attempts=1).enqueue()
    run_all(work)
    assert sorted(reasons(work.queue)) == sorted(
        [
            f"{kind.__name__}: a store of my own",
            "The commit failed, and everything was undone: not today. It may run once, and what it did elsewhere was "
            "not undone, so it is not begun again. Look at that, then let it run with 'holdfast dlq retry'; declare a "
            "job that does nothing elsewhere with transactional=True.",
        ]
    )
    assert effects.all() == []


# Results


class Stubborn(dict[str, int]):
    def items(self) -> Any:
        raise LookupError("not mine to give")


def deep() -> list[Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


RESULTS = {
    "nested": (deep(), None),
    "stubborn": (Stubborn(a=1), None),
    "large": ("x" * 1024 * 1024, None),
    "large in bytes": ("é" * 600_000, None),
    "fits": ("x" * (1024 * 1024 - 2), "x" * (1024 * 1024 - 2)),
    "half a pair": ("a\ud83db", "a?b"),
    "nul": ("a\x00b", "a\x00b"),
}


def test_a_result_that_cannot_be_kept_does_not_undo_a_success(work: Work) -> None:
    def give(which: str) -> Any:
        return RESULTS[which][0]

    job = work.job(give, max_attempts=1)
    job.enqueue_many([{"which": which} for which in RESULTS])
    run_all(work)
    history = work.queue.history()
    ended = {json.loads(entry["input"])["which"]: entry for entry in history}
    assert {entry["status"] for entry in history} == {"Succeeded"}
    assert ended.keys() == RESULTS.keys()
    assert len(history) == len(ended)
    for which, (_, kept) in RESULTS.items():
        output = ended[which]["output"]
        assert (None if output is None else json.loads(output)) == kept, which
