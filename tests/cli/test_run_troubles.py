"""`holdfast run` of two real workers, one of which meets a handler that hangs, exits, or comes again and again."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.cli.shop import Shop
from tests.cli.workers import end, two_running
from tests.components.processes import wait_until

APP = """
import asyncio
import os
import sys
import threading

from holdfast import Holdfast, Snooze

hf = Holdfast()

@hf.job(topic="hangs", max_attempts=3, max_seconds=1, lease_seconds=2, retry_base_seconds=0.01)
def hangs(context):
    if context.attempt == 1:
        threading.Event().wait()
    return os.getpid()

@hf.job(topic="exits", max_attempts=1, lease_seconds=2)
async def exits():
    await asyncio.create_task(leave())

async def leave():
    sys.exit("a child task leaves")

@hf.job(topic="quick", lease_seconds=2)
async def quick():
    return os.getpid()

@hf.job(topic="later", max_attempts=1000)
def later():
    raise Snooze(0.2)
"""
QUICK = 10
SNOOZING = 80


class Troubles:
    """The application above: its queue, and how its jobs ended."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self._hf = shop.holdfast()

    def add(self, name: str, count: int = 1) -> None:
        declared = {item.operation: item for item in self._hf.jobs.definitions}
        job = declared.get(name) or self._hf.job(topic=name, name=name)(lambda: None)
        job.enqueue_many([{}] * count)

    def ended(self, topic: str, status: str = "Succeeded") -> list[str]:
        """Return the outputs of attempts in the history."""
        query = text("SELECT output FROM holdfast_history WHERE engine = :engine AND status = :status")
        with self._hf.database.connect() as connection:
            return list(connection.execute(query, {"engine": f"jobs:{topic}", "status": status}).scalars())


@pytest.fixture
def troubles(shop: Shop, postgres_url: str) -> Troubles:
    shop.url = postgres_url
    shop.write_app(APP)
    return Troubles(shop)


@pytest.mark.component("postgres18")
def test_a_worker_that_loses_its_last_place_ends_and_says_so_and_the_other_does_the_rest(troubles: Troubles) -> None:
    with two_running(troubles.shop, "--concurrency", "1", log="output") as workers:
        troubles.add("hangs")
        troubles.add("quick", QUICK)
        wait_until(lambda: troubles.ended("hangs") and len(troubles.ended("quick")) == QUICK, "all jobs")
        [hung] = [worker for worker in workers if worker.process.pid != int(troubles.ended("hangs")[0])]
        assert hung.wait() == 1
        assert "The jobs' worker died: it has lost the last place for a handler" in hung.output
        assert "Traceback" not in hung.output
        end(*(worker for worker in workers if worker is not hung))
    assert len(troubles.ended("hangs", "Failed")) == 1


@pytest.mark.component("postgres18")
def test_a_child_task_that_exits_takes_no_innocent_job_with_it(troubles: Troubles) -> None:
    with two_running(troubles.shop, log="output") as workers:
        troubles.add("exits", 2)
        troubles.add("quick", QUICK)
        wait_until(lambda: len(troubles.ended("quick")) == QUICK, "the innocent jobs")
        wait_until(lambda: len(troubles.ended("exits", "Failed")) == 2, "those that exit to fail")
        end(*workers)
    assert troubles.ended("quick", "Failed") == []


@pytest.mark.component("postgres18")
def test_jobs_that_come_again_and_again_keep_no_other_waiting(troubles: Troubles) -> None:
    troubles.add("later", SNOOZING)
    with two_running(troubles.shop, "--concurrency", "4", log="output") as workers:
        troubles.add("quick", QUICK)
        wait_until(lambda: len(troubles.ended("quick")) == QUICK, "the later jobs")
        end(*workers)
