"""What a process with nothing to do asks of PostgreSQL: counted in statements for each round, not in time."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine

from holdfast import Holdfast, RowChange
from holdfast.core.clock import SystemClock
from holdfast.jobs.settings import WorkerSettings
from holdfast.lease.held_lease import Lease
from holdfast.lease.store import StateStore
from holdfast.outbox.message import Message
from holdfast.outbox.processors import Processors
from holdfast.runtime.keeper import keeping
from holdfast.trigger.sources.horizons.samples import samples_of
from tests.clocks import SteppedClock
from tests.components.processes import wait_until
from tests.trigger.shop import Shop

TRIGGERS = 20
PROCESSORS = 8
RESTED_SECONDS = 12.0


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
            assert runner.process_batch(lease).caught_up
    assert len(seen) == 1, seen


def test_idle_processors_share_one_look(shop: Shop) -> None:
    for number in range(PROCESSORS):
        shop.hf.processor(f"totals-{number}", types=[f"type-{number}"])(quiet)
    shop.hf.processors.register()
    runners = [work.make() for work in shop.hf.processors.works()]
    with ExitStack() as held:
        leases = [held.enter_context(runner.leased()) for runner in runners]
        for _ in range(2):
            with counting() as seen:
                for runner, lease in zip(runners, leases, strict=True):
                    assert runner.process_batch(lease).caught_up
    assert len(seen) == 1, seen


def test_a_look_shows_what_came_and_what_people_did_though_nobody_was_woken(shop: Shop) -> None:
    clock = SteppedClock()
    delivered: list[str] = []
    shop.hf.processor("totals")(lambda messages: delivered.extend(message.message_id for message in messages))
    shop.hf.processors.register()
    runner: Any = shop.hf.processors.works()[0].make()
    runner._lookout._clock = clock
    with runner.leased() as lease:
        assert runner.process_batch(lease).caught_up
        assert runner.process_batch(lease).caught_up
        with shop.engine.begin() as connection:
            shop.hf.outbox.append(connection, "OrderPlaced", {}, message_id="m1")
        clock.advance(2.5)
        assert runner.process_batch(lease).delivered == 1
        assert [runner.process_batch(lease).delivered for _ in range(2)] == [0, 0]
        shop.hf.processors.operator.reset("totals", None, actor="anne")
        clock.advance(2.5)
        steps = [runner.process_batch(lease).delivered for _ in range(2)]
    assert delivered == ["m1", "m1"], steps


def leases_of(shop: Shop) -> list[Lease]:
    store = StateStore(shop.hf.state.documents, app_name="idle")
    return [store.acquire(f"lease-{number}", ttl_seconds=3.0) for number in range(PROCESSORS)]


def test_all_leases_are_extended_by_one_write(shop: Shop) -> None:
    leases = leases_of(shop)
    before = [lease._document.etag for lease in leases]
    with counting() as seen, ExitStack() as held:
        for lease in leases:
            held.enter_context(keeping(lease, SystemClock()))
        wait_until(
            lambda: all(lease._document.etag != etag for lease, etag in zip(leases, before, strict=True)), "the beats"
        )
    assert all("FROM (VALUES" in statement for statement in seen), seen
    for lease in leases:
        lease.heartbeat()  # each knows what was written


def test_a_lease_that_the_common_write_does_not_reach_holds_up_no_other(shop: Shop) -> None:
    """One document is locked by someone, one was taken by another holder, one is being written."""
    locked, taken, busy, *others = leases_of(shop)
    shop.hf.state.documents.replace(taken._name, b"{}", taken._document.condition())
    with shop.engine.connect() as connection, connection.begin(), busy._lane:
        connection.execute(text("SELECT 1 FROM holdfast_state WHERE name = :name FOR UPDATE"), {"name": locked._name})
        before = {lease: lease._document.etag for lease in (locked, taken, busy, *others)}
        on_thread(lambda: Lease.heartbeat_together([locked, taken, busy, *others]))
        assert [lease._document.etag == before[lease] for lease in (locked, taken, busy)] == [True] * 3
        assert not any(lease._document.etag == before[lease] for lease in others)


def on_thread(step: Callable[[], None]) -> None:
    """Take a step on another thread: lanes of leases may be entered twice by one."""
    thread = threading.Thread(target=step)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_a_process_that_rests_asks_at_most_two_things_a_second(shop: Shop) -> None:
    """Whatever it asks: counted over the time on the clock, in which it takes each of its rests more than twice."""
    shop.hf.job(topic="mail", name="mail")(lambda: None)
    for number in range(PROCESSORS):
        shop.hf.processor(f"totals-{number}", types=[f"type-{number}"])(quiet)
        shop.hf.engine(f"engine-{number}", operation="op")(lambda message: None)
    clock = SystemClock()
    with counting() as seen, running(shop.hf):
        wait_until(
            lambda: sum("AS has_redelivery" in statement for statement in list(seen)) >= 2, "everyone to rest", 60
        )
        wait_until(lambda: not_since(seen, "looked_at AS MATERIALIZED"), "nobody to read any more", 60)
        begun, began = len(seen), clock.monotonic()
        wait_until(lambda: clock.monotonic() - began >= RESTED_SECONDS, "the time to pass", 60)
        asked, seconds = list(seen)[begun:], clock.monotonic() - began
    assert any("asked.after_rank" in statement for statement in asked), "it looks for jobs all the same"
    assert len(asked) <= 2 * seconds, Counter(statement.strip()[:60] for statement in asked)


def not_since(seen: list[str], words: str) -> bool:
    """Return whether the last ten statements are others."""
    return not any(words in statement for statement in list(seen)[-10:])


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
        shop.hf.processors.operator.reset("totals", None, actor="anne")
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


FORK = """
import os, sys, threading
from sqlalchemy import create_engine
from holdfast.runtime.listener import are_listening, listen

engine = create_engine(sys.argv[1])
ready, heard = threading.Event(), threading.Event()
listen(engine, "some_channel", lambda payload: ready.set())
assert ready.wait(30)
child = os.fork()
if child == 0:
    engine.dispose(close=False)
    own = listen(engine, "some_channel", lambda payload: heard.set())
    os._exit(0 if heard.wait(30) and are_listening() else 1)
assert os.waitpid(child, 0)[1] == 0, "the child does not listen"
"""


def test_a_forked_process_listens_by_itself(postgres_url: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, postgres_url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
