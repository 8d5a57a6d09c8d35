"""Jobs that were claimed and then lost or cancelled before the event loop had room for them leave the worker again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from holdfast.core.clock import SystemClock
from holdfast.jobs.definition import JobDefinition
from holdfast.jobs.handler_threads import LoopRunner
from holdfast.jobs.lanes import Lane
from holdfast.jobs.running import Running
from tests.components.processes import wait_until
from tests.jobs.queues import ANNE, open_queue


@pytest.mark.parametrize("is_lost", [True, False])
def test_what_was_stopped_before_its_turn_is_still_handed_on(tmp_path: Path, is_lost: bool) -> None:
    """If it were only dropped, it would take up room in the worker, or be beaten for, until the worker ends."""
    seen, release = [], threading.Event()

    async def run(running: Running) -> None:
        seen.append(running)
        await asyncio.to_thread(release.wait, 30)

    async def send() -> None: ...

    with open_queue(f"sqlite:///{tmp_path / 'queue.db'}") as queue:
        definition = JobDefinition(send, topic="email", store=lambda: queue.store)
        definition.enqueue_many([{}, {}])
        first, second = (
            Running(job, definition, Lane(1, 0), 0.0) for job in queue.store.claim(ANNE, {"email": ["send"]}, 2)
        )
    runner = LoopRunner(1, run, SystemClock())
    runner.start([first, second])
    wait_until(lambda: seen == [first], "the first to run")
    if is_lost:
        second.lose(is_certain=True)
    else:
        second.cancel("nobody needs it")
    release.set()
    wait_until(lambda: seen == [first, second], "the second to have its turn")
    runner.stop()
