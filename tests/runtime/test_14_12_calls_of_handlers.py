"""What holds for the handlers of every workload: nothing leaks from one call to the next, no task's error is hidden."""

from __future__ import annotations

import contextvars
import decimal
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, RetryPolicy
from holdfast.core.clock import SystemClock
from holdfast.core.errors import ConfigurationError, HandlerError
from holdfast.database.error_text import bounded_traceback, error_text, public_error_text, traceback_in_public
from holdfast.runtime.context import HandlerContext
from holdfast.runtime.housekeeping import Chore, Housekeeping
from holdfast.runtime.invocation import HandlerInvoker
from tests.components.processes import wait_until

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


class Lease:
    """One that is never lost."""

    lost = threading.Event()
    ttl_seconds = 60.0

    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


def call(handler: Callable[..., Any], events: list[Any]) -> Any:
    return HandlerInvoker(handler).invoke(events, None, Lease())


def leaky(events: list[Any]) -> tuple[str, int]:
    found = TENANT.get(), decimal.getcontext().prec
    TENANT.set(events[0])
    decimal.getcontext().prec = 5
    return found


async def leaky_async(events: list[Any]) -> tuple[str, int]:
    return leaky(events)


@pytest.mark.parametrize("handler", [leaky, leaky_async])
def test_14_12_what_a_handler_sets_is_gone_with_it(handler: Callable[..., Any]) -> None:
    token = TENANT.set("the caller's")
    try:
        assert [call(handler, [tenant]) for tenant in ("a", "b")] == [("the caller's", 28)] * 2
        assert (TENANT.get(), decimal.getcontext().prec) == ("the caller's", 28)
    finally:
        TENANT.reset(token)


def test_14_12_work_that_an_async_handler_returns_instead_of_doing_it_is_an_error() -> None:
    ran: list[int] = []

    async def inner() -> None:
        ran.append(1)

    async def forgetful(events: list[Any]) -> Any:
        return inner()

    with pytest.raises(HandlerError, match=r"returned '.*inner' without awaiting it, so it was never done"):
        call(forgetful, [])
    assert ran == []

    def passing_on(events: list[Any]) -> Any:
        return inner()

    call(passing_on, [])
    assert ran == [1], "what a def hands on is awaited here"


def group() -> ExceptionGroup[Exception]:
    order = 4711  # tracebacks show the source
    try:
        raise ValueError(f"order {order}")
    except ValueError as error:
        return ExceptionGroup("unhandled errors in a TaskGroup", [error, ExceptionGroup("inner", [KeyError("price")])])


def test_14_12_a_group_tells_the_errors_of_its_tasks() -> None:
    assert error_text(group()) == (
        "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): ValueError: order 4711; KeyError: 'price'"
    )
    public = public_error_text(group())
    assert public.startswith(f"ExceptionGroup of ValueError at {Path(__file__).name}:")
    assert public.endswith("; KeyError")
    assert "4711" not in public
    assert "order 4711" in bounded_traceback(group())
    in_public = traceback_in_public(group())
    assert "in group" in in_public
    assert "4711" not in in_public


def test_14_12_a_policy_looks_into_a_group() -> None:
    policy = RetryPolicy(retry_on=(ValueError, KeyError))
    assert policy.retries(group())
    assert not RetryPolicy(retry_on=ValueError).retries(group())


def test_14_12_progress_that_cannot_be_kept_is_refused_by_every_context() -> None:
    kept: list[Any] = []
    context = HandlerContext(_beat=kept.append)
    for progress in ({"at": object()}, float("inf"), ["x" * 1_100_000]):
        with pytest.raises(ConfigurationError, match="The progress"):
            context.heartbeat(progress)  # type: ignore[arg-type] # that is the point
    context.progress({"done": 3})
    assert kept == [{"done": 3}]


def test_14_12_pruning_does_not_hold_periodic_jobs_up(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = Holdfast(sqlite_url)
    hf.migrate()
    hf.periodic(hf.job(topic="clock", name="tick")(lambda: None), "* * * * * *")
    stop, pruning = threading.Event(), threading.Event()

    def prune_for_long(*_: object) -> int:
        pruning.set()
        stop.wait(60)
        return 0

    monkeypatch.setattr(hf.jobs.store, "prune", prune_for_long)
    housekeeping = Housekeeping(hf.jobs.chores(), stop, clock=SystemClock())
    thread = threading.Thread(target=housekeeping.run)
    thread.start()
    try:
        assert pruning.wait(30)
        wait_until(lambda: any(stats.jobs for stats in hf.jobs.store.stats()), "a slot to be enqueued meanwhile")
    finally:
        stop.set()
        thread.join()
        hf._provider.dispose_all()


def test_14_12_a_long_chore_that_fails_is_tried_again_beside_the_others(caplog: pytest.LogCaptureFixture) -> None:
    stop, done = threading.Event(), threading.Event()

    def prune() -> float:
        if not caplog.records:
            raise ConfigurationError("not yet")
        done.set()
        return 60.0

    chores = [Chore("counting", lambda: None, 60.0), Chore("pruning", prune, 0.01, may_take_long=True)]
    thread = threading.Thread(target=Housekeeping(chores, stop, clock=SystemClock()).run)
    with caplog.at_level(logging.WARNING):
        thread.start()
        assert done.wait(30)
    stop.set()
    thread.join()
    assert not thread.is_alive()
