"""What a process with nothing to do asks of PostgreSQL: counted in statements for each round, not in time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine

from holdfast import Holdfast, RowChange
from holdfast.jobs.worker import WorkerSettings
from holdfast.outbox.message import Message
from holdfast.outbox.processors import Processors
from holdfast.trigger.sources.horizons.samples import samples_of
from tests.clocks import SteppedClock
from tests.components.processes import wait_until
from tests.trigger.shop import Shop

TRIGGERS = 20


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Shop]:
    found = Shop(postgres_url)
    yield found
    found.close()


@contextmanager
def counting() -> Iterator[list[str]]:
    """Note every statement that this process sends through SQLAlchemy."""
    seen: list[str] = []

    def note(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@contextmanager
def running(hf: Holdfast) -> Iterator[None]:
    thread = threading.Thread(target=lambda: hf.run(handle_signals=False))
    thread.start()
    try:
        yield
    finally:
        hf.stop()
        thread.join(60)
    assert not thread.is_alive()


def quiet(changes: list[RowChange]) -> None:
    """Do nothing."""


def declare_triggers(shop: Shop) -> list[str]:
    names = [f"orders-{number}" for number in range(TRIGGERS)]
    for name in names:
        shop.hf.trigger("orders", cursor="updated_at", name=name)(quiet)
    return names


def test_idle_triggers_ask_once_each_and_share_one_sample(shop: Shop) -> None:
    """[HORIZON-SHARED] The second of two rounds, when everything was looked up before."""
    clock = SteppedClock()
    samples_of(shop.engine)._clock = clock
    runners = [shop.hf.runner(name) for name in declare_triggers(shop)]
    with ExitStack() as held:
        leases = [held.enter_context(runner.leased()) for runner in runners]
        for _ in range(2):
            clock.advance(1.0)
            with counting() as seen:
                for runner, lease in zip(runners, leases, strict=True):
                    assert runner.process_batch(lease).caught_up
    asked = [statement for statement in seen if "holdfast_state" not in statement]
    assert sum("FROM orders" in statement for statement in asked) == TRIGGERS
    assert sum("FROM pg_stat_activity" in statement for statement in asked) == 1
    assert len(asked) == TRIGGERS + 2, "the sample is two statements: sessions, then prepared transactions"


def test_idle_triggers_need_no_more_than_25_threads(shop: Shop) -> None:
    names = declare_triggers(shop)
    before = set(threading.enumerate())
    with running(shop.hf):
        wait_until(lambda: all(is_held(shop.hf, name) for name in names), "every lease", 60)
        started = set(threading.enumerate()) - before
    assert len(started) <= 25, sorted(thread.name for thread in started)


def is_held(hf: Holdfast, name: str) -> bool:
    view = hf.state.read(name)
    return view is not None and view.lease is not None and view.lease.owner_id is not None


def test_an_idle_processor_asks_one_thing_a_round_and_rests_longer_and_longer(shop: Shop) -> None:
    shop.hf.processor("totals")(quiet)
    processors: Processors = shop.hf.processors
    processors.register()
    [work] = processors.works()
    assert [work.rest_seconds(idle) for idle in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    runner = work.make()
    with runner.leased() as lease:
        runner.process_batch(lease)
        with counting() as seen:
            assert runner.process_batch(lease).caught_up
    assert len(seen) == 1, seen


def test_an_idle_jobs_worker_asks_three_things_a_round_and_rests_five_polls(shop: Shop) -> None:
    shop.hf.job(topic="mail", name="mail")(lambda: None)
    worker = shop.hf.jobs.worker(threading.Event(), WorkerSettings())
    assert worker._claim(has_news=True) == 0
    worker._promote_at = 0.0
    with counting() as seen:
        assert worker._claim(has_news=True) == 0
    assert len(seen) <= 3, seen
    assert worker._rest(10) > 4.0


def test_a_processor_that_rests_is_woken_by_an_append(shop: Shop) -> None:
    """Its poll is as long as the test may take: only a wake-up can be in time."""
    seen: list[str] = []

    @shop.hf.processor("totals", poll_seconds=600.0)
    def totals(messages: list[Message]) -> None:
        seen.extend(message.message_id for message in messages)

    with running(shop.hf):
        for number in range(3):
            with shop.engine.begin() as connection:
                shop.hf.outbox.append(connection, "OrderPlaced", {}, message_id=f"m{number}")
            wait_until(lambda number=number: len(seen) == number + 1, "the message")  # type: ignore[misc]
    assert seen == ["m0", "m1", "m2"]


def test_a_processor_that_rests_notices_what_people_do(shop: Shop) -> None:
    seen: list[str] = []

    @shop.hf.processor("totals", poll_seconds=600.0)
    def totals(messages: list[Message]) -> None:
        seen.extend(message.message_id for message in messages)

    with running(shop.hf):
        with shop.engine.begin() as connection:
            shop.hf.outbox.append(connection, "OrderPlaced", {}, message_id="m1")
        wait_until(lambda: seen == ["m1"], "the message")
        shop.hf.processors.by_hand.reset("totals", None, actor="anne")
        wait_until(lambda: seen == ["m1", "m1"], "the message again")


def test_a_message_that_waits_for_an_older_transaction_does_not_wait_for_the_long_rest(shop: Shop) -> None:
    shop.hf.processor("totals")(quiet)
    shop.hf.processors.register()
    [work] = shop.hf.processors.works()
    assert work.is_held_back is not None
    runner = work.make()
    with shop.engine.connect() as older, older.begin(), runner.leased() as lease:
        older.execute(text("SELECT pg_current_xact_id()"))
        with shop.engine.begin() as connection:
            shop.hf.outbox.append(connection, "OrderPlaced", {})
        assert runner.process_batch(lease).delivered == 0
        assert work.is_held_back(runner)
        older.rollback()
        assert runner.process_batch(lease).delivered == 1
        assert not work.is_held_back(runner)


def test_a_message_may_be_appended_in_a_transaction_that_is_prepared(shop: Shop) -> None:
    with shop.engine.connect() as connection:
        transaction = connection.begin_twophase()
        shop.hf.outbox.append(connection, "OrderPlaced", {}, message_id="m1")
        transaction.prepare()
        transaction.commit()
    with shop.engine.connect() as connection:
        assert connection.execute(text("SELECT message_id FROM holdfast_outbox")).scalars().all() == ["m1"]
