"""Line 14, in the queue and its records: a row that cannot be read is given up and named, and its neighbours run."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from holdfast.core.errors import JobError, QueryError
from holdfast.jobs.listing import find
from holdfast.jobs.model import Failure, JobId, TopicLimits
from holdfast.records.dead_letters import DeadLetters
from holdfast.records.history import History
from holdfast.records.tables import SqlHistoryTable, SqlLetterTable
from tests.components.processes import wait_until
from tests.jobs.conftest import DATABASES
from tests.jobs.queues import ANNE, Queue, open_queue
from tests.jobs.workers import QUICK, Work

LETTERS = "SELECT item_id FROM holdfast_dead_letters"
NO_UTF8 = "CAST(x'47fc' AS TEXT)"
DAMAGES = {
    "postgresql": [
        *(("ready_at", value) for value in ("'infinity'", "'-infinity'")),
        *(("run_at", value) for value in ("'-infinity'", "'infinity'")),
        ("created_at", "'-infinity'"),
    ],
    "sqlite": [
        *((column, NO_UTF8) for column in ("payload", "correlation_id", "tags", "instance_id", "ready_at", "run_at")),
        *((column, "5") for column in ("ready_at", "run_at", "created_at")),
        *((column, "'soon'") for column in ("ready_at", "run_at", "created_at", "priority")),
        ("ready_at", "x'00ff'"),
    ],
    "mysql": [("ready_at", "'0000-00-00'"), ("run_at", "'0000-00-00'"), ("created_at", "'2026-00-00'")],
}
"""What can be damaged: a column, and what somebody writes there."""


@pytest.fixture(params=(*DATABASES, "postgres15_url"))
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    with open_queue(request.getfixturevalue(request.param)) as opened:
        yield opened


def damages(queue: Queue) -> list[tuple[str, str]]:
    return DAMAGES[queue.engine.dialect.name]


def damage(queue: Queue, table: str, column: str, value: str, where: str) -> None:
    with queue.engine.begin() as connection:
        if connection.dialect.name == "mysql":
            connection.execute(text("SET SESSION sql_mode = ''"))
        connection.execute(text(f"UPDATE {table} SET {column} = {value} WHERE {where}"))


def five_jobs(queue: Queue, column: str, value: str, topic: str) -> JobId:
    """Add five jobs, the third of them damaged, and return its id."""
    ids = [queue.add(topic, operation=f"send{n % 2}", payload=json.dumps({"n": n})).id for n in range(5)]
    damage(queue, "holdfast_jobs", column, value, f"id = {ids[2]}")
    return ids[2]


def require_letter(queue: Queue, job_id: JobId, column: str) -> None:
    assert [row["status"] for row in queue.rows("SELECT status FROM holdfast_jobs")].count("running") == 0
    [letter] = queue.rows("SELECT error_message FROM holdfast_dead_letters WHERE item_id = :item", item=f"job-{job_id}")
    said = f"The row of job {job_id} in holdfast_jobs cannot be read: its column '{column}' holds "
    assert letter["error_message"].startswith(said)


def test_14_14_a_job_that_cannot_be_read_is_a_dead_letter_and_its_neighbours_run(queue: Queue) -> None:
    for number, (column, value) in enumerate(damages(queue)):
        topic = f"topic{number}"
        bad = five_jobs(queue, column, value, topic)
        claimed = [*queue.claim(topics=(topic,)), *queue.claim(topics=(topic,))]
        assert sorted(json.loads(job.payload)["n"] for job in claimed) == [0, 1, 3, 4], (column, value)
        with queue.store.transaction() as connection:
            queue.store.drop_on(connection, ANNE, [job.claim for job in claimed])
        require_letter(queue, bad, column)


def test_14_14_nor_does_it_hold_up_a_limited_topic(queue: Queue) -> None:
    for number, (column, value) in enumerate(damages(queue)):
        topic = f"topic{number}"
        queue.store.set_limits(topic, TopicLimits(max_running=10))
        bad = five_jobs(queue, column, value, topic)
        claimed = queue.claim_limited(topic=topic)
        assert sorted(json.loads(job.payload)["n"] for job in claimed) == [0, 1, 3, 4], (column, value)
        with queue.store.transaction() as connection:
            queue.store.drop_on(connection, ANNE, [job.claim for job in claimed])
        require_letter(queue, bad, column)


def test_14_14_scheduled_jobs_become_due_beside_one_without_a_time(queue: Queue) -> None:
    """PostgreSQL 15 subtracts no infinite times."""
    for value in ("'infinity'", "'-infinity'") if queue.store.dialect == "postgresql" else ("5", "'soon'"):
        if queue.store.dialect == "mysql":
            value = "'0000-00-00'"
        now = queue.store.now()
        good, bad = (queue.add(run_at=now, payload=json.dumps({"n": n})).id for n in (1, 2))
        damage(queue, "holdfast_jobs", "run_at", value, f"id = {bad}")
        queue.store.next_due()
        queue.store.promote()
        queue.store.next_due()
        queue.store.stats()
        assert [job.id for job in queue.claim()] == [good]
        queue.store.stats()
        with queue.engine.begin() as connection:
            connection.execute(text("DELETE FROM holdfast_jobs"))


def test_14_14_a_worker_runs_the_neighbours(queue: Queue) -> None:
    work = Work(queue, QUICK)
    ran: list[int] = []
    job = work.job(lambda n: ran.append(n))
    column, value = damages(queue)[0]
    ids = [job.enqueue(n=n).id for n in range(5)]
    damage(queue, "holdfast_jobs", column, value, f"id = {ids[2]}")
    with work.running():
        wait_until(lambda: len(ran) == 4 and bool(queue.rows(LETTERS)), "the others and the letter")
    with pytest.raises(
        JobError, match=rf"^The row of job {ids[2]} in holdfast_jobs cannot be read: .*'{column}' holds"
    ):
        queue.store.get(ids[2])
    assert sorted(ran) == [0, 1, 3, 4]
    require_letter(queue, ids[2], column)


def test_14_14_a_listing_names_the_job_and_shows_the_others(queue: Queue) -> None:
    for column, value in damages(queue):
        if column == "priority":  # an integer, which a listing shows as it is
            continue
        ids = [queue.add(payload=json.dumps({"n": n})).id for n in range(5)]
        damage(queue, "holdfast_jobs", column, value, f"id = {ids[2]}")
        pages = [find(queue.engine, limit=2)]
        while pages[-1].continuation_token is not None:
            pages.append(find(queue.engine, limit=2, after=pages[-1].continuation_token))
        is_listed = column != "ready_at"  # which no listing shows
        expected = [id_ for id_ in reversed(ids) if not is_listed or id_ != ids[2]]
        assert [job.id for page in pages for job in page.items] == expected, (column, value)
        sentences = [sentence for page in pages for sentence in page.unreadable]
        said = f"The row of holdfast_jobs with id '{ids[2]}' cannot be read: its column '{column}' holds"
        assert [sentence.startswith(said) for sentence in sentences] == [True] * is_listed, sentences
        with queue.engine.begin() as connection:
            connection.execute(text("DELETE FROM holdfast_jobs"))


RECORDS = {
    "postgresql": [("history", "created_at", "'infinity'"), ("dead_letters", "last_failure_at", "'-infinity'")],
    "sqlite": [
        *(("history", column, NO_UTF8) for column in ("input", "correlation_id", "error", "operation", "created_at")),
        ("history", "created_at", "5"),
        *(("dead_letters", column, NO_UTF8) for column in ("original_message", "error_message", "correlation_id")),
        ("dead_letters", "last_failure_at", "5"),
        ("dead_letters", "first_failure_at", "'soon'"),
    ],
    "mysql": [("history", "created_at", "'0000-00-00'"), ("dead_letters", "first_failure_at", "'0000-00-00'")],
}


def test_14_14_history_and_letters_name_the_row_and_show_the_others(queue: Queue) -> None:
    history, letters = SqlHistoryTable(queue.engine), SqlLetterTable(queue.engine)
    for name, column, value in RECORDS[queue.engine.dialect.name]:
        for _ in range(3):
            queue.add(max_attempts=1)
        jobs = queue.claim()
        queue.store.fail(ANNE, [Failure(job.claim, 5, "boom", is_final=True) for job in jobs])
        damage(queue, f"holdfast_{name}", column, value, f"item_id = '{jobs[1].item_id}'")
        page = history.page(limit=3) if name == "history" else letters.page(limit=3)
        assert len(page.items) == 2
        assert page.continuation_token is None
        [sentence] = page.unreadable
        assert sentence.startswith(f"The row of holdfast_{name} with ")
        assert f"cannot be read: its column '{column}' holds" in sentence
        for one in page.items:
            assert (history if name == "history" else letters).get(one.engine, one.row_key) == one
        of_item = History(queue.engine).of_item if name == "history" else DeadLetters(queue.engine).of_item
        with pytest.raises(QueryError, match=f"its column '{column}' holds"):
            of_item(jobs[1].item_id)
        with queue.engine.begin() as connection:
            for table in ("jobs", "history", "dead_letters"):
                connection.execute(text(f"DELETE FROM holdfast_{table}"))
