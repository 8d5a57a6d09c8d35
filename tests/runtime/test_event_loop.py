"""Async handlers of triggers, processors and engines share an event loop: one bad handler must not take the others."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast import Holdfast
from holdfast.core.errors import WorkerDiedError
from holdfast.runtime import event_loop
from holdfast.runtime.event_loop import EventLoop, handlers_loop
from tests.components.processes import wait_until
from tests.trigger.shop import Shop

BAD = ["trigger", "processor", "engine"]
LEASE_SECONDS = 1.5


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    found = Shop(request.getfixturevalue(request.param))
    yield found
    found.close()


@pytest.fixture(autouse=True)
def own_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test a loop that it may block or break."""
    from holdfast.core.clock import SystemClock

    monkeypatch.setattr(event_loop, "_of_process", EventLoop(SystemClock()))
    yield
    event_loop._of_process.stop()


@contextmanager
def running(hf: Holdfast) -> Iterator[list[object]]:
    """Run an application; gives how it ended."""
    ends: list[object] = []

    def run() -> None:
        try:
            ends.append(hf.run(handle_signals=False, drain_seconds=5))
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ends
    finally:
        hf.stop()
        thread.join(60)
    assert not thread.is_alive()


class Application:
    """A bad handler of one workload beside good ones of each, all async."""

    def __init__(self, shop: Shop, bad_workload: str, misbehave: Callable[[], object]) -> None:
        self.shop, self.hf = shop, shop.hf
        self.begun = threading.Event()
        self.done: set[str] = set()
        self._declare_bad(bad_workload, misbehave)
        self._declare_good()

    def _declare_bad(self, workload: str, misbehave: Callable[[], object]) -> None:
        async def bad(_: object) -> None:
            self.begun.set()
            result = misbehave()
            if asyncio.iscoroutine(result):
                await result

        hf = self.hf
        if workload == "trigger":
            hf.trigger("orders", cursor="updated_at", name="bad", lease_seconds=LEASE_SECONDS)(bad)
            self.shop.place([1])
        elif workload == "processor":
            hf.processor("bad", types=["bad"], lease_seconds=LEASE_SECONDS, transactional=False)(bad)
            self.append("bad")
        else:
            hf.engine("bad", operation="op", visibility_seconds=LEASE_SECONDS, conflict_seconds=0.1)(bad)
            hf.engines.send("bad", {})

    def _declare_good(self) -> None:
        async def processor(messages: object) -> None:
            self.done.add("processor")

        async def engine(message: object) -> None:
            self.done.add("engine")

        def job() -> None:
            self.done.add("job")

        self.hf.processor("good", types=["good"], lease_seconds=LEASE_SECONDS)(processor)
        self.hf.engine("good", operation="op", visibility_seconds=LEASE_SECONDS)(engine)
        self._job = self.hf.job(topic="good", name="good")(job)

    def append(self, kind: str) -> None:
        with self.shop.engine.begin() as connection:
            self.hf.outbox.append(connection, kind, {})

    def give_work(self) -> None:
        """Ask the good handlers for something."""
        self.append("good")
        self.hf.engines.send("good", {})
        self._job.enqueue()


@pytest.mark.parametrize("workload", BAD)
def test_a_child_task_that_exits_takes_nobody_with_it(shop: Shop, workload: str) -> None:
    async def leave() -> None:
        sys.exit(3)

    async def misbehave() -> None:
        asyncio.get_running_loop().create_task(leave())
        await asyncio.sleep(0)

    application = Application(shop, workload, misbehave)
    with running(shop.hf) as ends:
        assert application.begun.wait(30)
        application.give_work()
        wait_until(lambda: application.done == {"processor", "engine", "job"}, "the good handlers")
        assert handlers_loop().is_alive
    assert ends == [True]


@pytest.mark.parametrize("workload", BAD)
def test_a_loop_that_is_blocked_is_said_once_and_what_needs_it_is_left_to_others(
    shop: Shop, workload: str, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    application = Application(shop, workload, lambda: release.wait(60))
    other = Holdfast(shop.hf._config.connection_url)
    taken: set[str] = set()
    other.processor("good", types=["good"], lease_seconds=LEASE_SECONDS)(lambda messages: taken.add("processor"))
    other.engine("good", operation="op", visibility_seconds=LEASE_SECONDS)(lambda message: taken.add("engine"))
    with running(shop.hf):
        try:
            assert application.begun.wait(30)
            wait_until(lambda: handlers_loop().is_stuck, "the loop to be stuck")
            application.give_work()
            wait_until(lambda: "job" in application.done, "the job, which needs no loop")
            with running(other):
                wait_until(lambda: taken == {"processor", "engine"}, "the other process")
        finally:
            release.set()
    assert caplog.text.count("The event loop does not turn: handler") == 1
    assert ".bad' blocks it" in caplog.text
    assert application.done == {"job"}


def test_what_already_waits_on_a_blocked_loop_is_kept_for_no_longer_than_its_lease(shop: Shop) -> None:
    block, release = threading.Event(), threading.Event()

    async def misbehave() -> None:
        while not block.is_set():
            await asyncio.sleep(0.01)
        release.wait(60)

    application = Application(shop, "processor", misbehave)
    begun, taken = threading.Event(), threading.Event()

    async def innocent(messages: object) -> None:
        begun.set()
        await asyncio.sleep(3600)

    application.hf.processor("innocent", types=["good"], lease_seconds=LEASE_SECONDS, transactional=False)(innocent)
    other = Holdfast(shop.hf._config.connection_url, app_name="other")
    other.processor("innocent", types=["good"], lease_seconds=LEASE_SECONDS)(lambda messages: taken.set())
    with running(shop.hf):
        try:
            application.append("good")
            assert application.begun.wait(30)
            assert begun.wait(30)
            block.set()
            with running(other):
                assert taken.wait(60)
        finally:
            release.set()


@pytest.mark.parametrize("workload", BAD)
def test_a_loop_that_dies_is_a_part_that_died(
    shop: Shop, workload: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turn_on = EventLoop._turn_on

    def turn_once(own: EventLoop, loop: asyncio.AbstractEventLoop) -> None:
        turn_on(own, loop)
        raise RuntimeError("planted: the loop breaks")

    monkeypatch.setattr(EventLoop, "_turn_on", turn_once)

    async def misbehave() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(3600)

    application = Application(shop, workload, misbehave)
    with running(shop.hf) as ends:
        wait_until(lambda: bool(ends), "the process to end by itself")
    [end] = ends
    assert isinstance(end, WorkerDiedError)
    assert "The event loop of async handlers died" in str(end)
    assert application.begun.is_set()
    repeated = threading.Event()
    monkeypatch.setattr(EventLoop, "_turn_on", turn_on)
    caplog.set_level(logging.INFO)
    after = Holdfast(shop.hf._config.connection_url)
    _declare_again(after, workload, repeated)
    with running(after):
        assert repeated.wait(30), "what it held was let go"


def _declare_again(hf: Holdfast, workload: str, repeated: threading.Event) -> None:
    def handle(_: object) -> None:
        repeated.set()

    if workload == "trigger":
        hf.trigger("orders", cursor="updated_at", name="bad")(handle)
    elif workload == "processor":
        hf.processor("bad", types=["bad"])(handle)
    else:
        hf.engine("bad", operation="op")(handle)
