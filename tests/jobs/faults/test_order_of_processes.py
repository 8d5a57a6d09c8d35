"""Two real worker processes: jobs that come again and again, and a topic that cannot be claimed keep nobody waiting."""

from __future__ import annotations

from tests.components.processes import wait_until
from tests.jobs.operations_app import LIMITED, SNOOZE, TOPIC
from tests.jobs.queues import Queue
from tests.jobs.test_rolling_deploy import worker

LATER = "later"


def _ended(queue: Queue, operation: str) -> int:
    return sum(entry["operation"] == operation for entry in queue.history())


def test_jobs_that_snooze_and_a_topic_in_trouble_let_later_jobs_start(queue: Queue) -> None:
    with worker(queue, SNOOZE, LATER), worker(queue, SNOOZE, LATER) as second:
        queue.add(LIMITED, LIMITED)
        wait_until(lambda: _ended(queue, LIMITED) == 1, "the limited topic to work")
        queue.spoil_limit(LIMITED)
        queue.add(LIMITED, LIMITED)
        wait_until(lambda: f"of the limited topic '{LIMITED}' failed" in second.output, "the trouble to be told")
        for _ in range(80):
            queue.add(TOPIC, SNOOZE)
        attempts = "SELECT min(attempt) AS least FROM holdfast_jobs WHERE operation = 'snooze'"
        wait_until(lambda: queue.rows(attempts)[0]["least"] >= 2, "all to snooze again and again")
        for _ in range(10):
            queue.add(TOPIC, LATER)
        wait_until(lambda: _ended(queue, LATER) == 10, "the later ones", 15)
        assert _ended(queue, LIMITED) == 1


def test_a_suspect_that_cannot_be_claimed_keeps_no_job_and_no_other_suspect_waiting(queue: Queue) -> None:
    """[SUSPECT-1]"""
    stuck, other = queue.add(LIMITED, LIMITED).id, queue.add(TOPIC, LATER).id
    held = queue.claim(topics=(LIMITED, TOPIC))  # nobody has limited it yet
    with worker(queue, LATER) as first, worker(queue, LATER) as second:
        queue.spoil_limit(LIMITED)
        for lost in held:
            queue.expire(*lost.claim)
        queue.store.reap()
        wait_until(lambda: queue.status(other) is None, "the other suspect to end")
        for _ in range(20):
            queue.add(TOPIC, LATER)
        wait_until(lambda: _ended(queue, LATER) == 21, "everything else", 15)
        for each in (first, second):
            each.wait_for_line(f"Claiming suspects of the topic '{LIMITED}' failed")
        assert queue.status(stuck) == "suspect"
