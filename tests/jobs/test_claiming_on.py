"""On PostgreSQL claims go on where the last one ended, for a moment: nothing is left out, and the index stays cheap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.jobs.model import ClaimedJob, NewJob
from holdfast.jobs.stores.postgres import PostgresJobStore
from tests.clocks import SteppedClock
from tests.jobs.queues import ANNE, BERT, Queue, open_queue

pytestmark = pytest.mark.component("postgres18")


@pytest.fixture
def queue(postgres_url: str) -> Iterator[Queue]:
    with open_queue(postgres_url) as opened:
        yield opened


@pytest.fixture
def clock(queue: Queue) -> SteppedClock:
    assert isinstance(queue.store, PostgresJobStore)
    queue.store.clock = clock = SteppedClock()
    return clock


def add(queue: Queue, count: int, **options: object) -> list[int]:
    jobs = [NewJob(topic="email", operation="send", payload="{}", **options) for _ in range(count)]  # type: ignore[arg-type]  # as given
    return [queue.store.enqueue(job).id for job in jobs]


def ids(claimed: list[ClaimedJob]) -> list[int]:
    return sorted(job.id for job in claimed)


def test_claims_in_a_row_leave_nothing_out(queue: Queue, clock: SteppedClock) -> None:
    added = add(queue, 350)
    assert ids(queue.claim(100)) == added[:100]
    assert ids(queue.claim(100)) == added[100:200]
    assert ids(queue.claim(100)) == added[200:300]
    assert ids(queue.claim(100)) == added[300:]
    assert queue.claim(100) == []


def test_what_was_put_in_front_is_found_after_a_moment(queue: Queue, clock: SteppedClock) -> None:
    added = add(queue, 250)
    queue.claim(100)
    urgent = add(queue, 3, priority=9)
    assert ids(queue.claim(100)) == added[100:200]
    clock.advance(1)
    assert set(urgent) <= set(ids(queue.claim(100)))


def test_what_was_put_back_is_found_when_nothing_is_left_behind(queue: Queue, clock: SteppedClock) -> None:
    add(queue, 100)
    claimed = queue.claim(100)
    urgent = add(queue, 1, priority=9)
    queue.claim(100)
    assert len(claimed) == 100
    assert queue.claim(100) == []
    assert queue.status(urgent[0]) == "running"  # type: ignore[arg-type]  # an id


def test_a_topic_paused_in_between_gives_nothing(queue: Queue, clock: SteppedClock) -> None:
    add(queue, 250)
    queue.claim(100)
    queue.store.pause("email", True)
    assert queue.claim(100) == []


def test_a_claim_that_goes_on_reads_no_entries_of_claimed_jobs(queue: Queue, clock: SteppedClock) -> None:
    add(queue, 1200)
    for _ in range(5):
        queue.claim(200)
    read = "SELECT idx_tup_read AS n FROM pg_stat_user_indexes WHERE indexrelname = 'holdfast_jobs_ready'"
    flush = "SELECT pg_stat_force_next_flush()"
    queue.rows(flush)
    before = queue.rows(read)[0]["n"]
    assert len(queue.claim(200, BERT if ANNE == "bert" else ANNE)) == 200
    queue.rows(flush)
    assert queue.rows(read)[0]["n"] - before <= 450
