"""Jobs as an application declares and runs them: ``hf.job``, ``hf.periodic``, ``hf.run``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from holdfast import ConfigurationError, Discard, Holdfast, JobContext, JobStatus
from holdfast.jobs.model import TopicLimits
from holdfast.jobs.schema import MIGRATIONS as JOB_MIGRATIONS
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.records.schema import MIGRATIONS as RECORD_MIGRATIONS
from holdfast.schema import MIGRATIONS
from tests.components.processes import wait_until


@pytest.fixture(params=["empty_sqlite_url", "empty_postgres_url", "empty_mariadb_url"])
def hf(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    app = Holdfast(request.getfixturevalue(request.param))
    yield app
    app._provider.dispose_all()


@contextmanager
def running(hf: Holdfast, topics: list[str] | None = None) -> Iterator[None]:
    finished: list[bool] = []
    started = threading.Event()
    thread = threading.Thread(
        target=lambda: finished.append(hf.run(handle_signals=False, topics=topics, on_started=started.set))
    )
    thread.start()
    try:
        assert started.wait(30)
        yield
    finally:
        hf.stop()
        thread.join()
    assert finished == [True]


def test_a_job_is_declared_enqueued_run_and_its_result_read(hf: Holdfast) -> None:
    @hf.job(topic="sums")
    def add(a: int, b: int) -> int:
        return a + b

    @hf.job(topic="sums")
    def refuse() -> None:
        raise Discard("never")

    assert hf.migrate() == sorted(f"{step.number:04d} {step.name}" for step in MIGRATIONS)
    added, refused = add.enqueue(a=2, b=3), refuse.enqueue()
    assert hf.jobs.result(added.id) is None
    with running(hf):
        wait_until(lambda: hf.jobs.result(added.id) and hf.jobs.result(refused.id), "both to end")
    result, failure = hf.jobs.result(added.id), hf.jobs.result(refused.id)
    assert result is not None
    assert failure is not None
    assert (result.status, result.value) == (JobStatus.DONE, 5)
    assert (failure.status, failure.error) == (JobStatus.DEAD, "never")
    assert add(1, 1) == 2


def test_triggers_and_jobs_run_in_one_process(hf: Holdfast) -> None:
    seen: list[str] = []
    with hf.database.begin() as connection:
        connection.execute(text("CREATE TABLE items (id INTEGER PRIMARY KEY, v INTEGER)"))

    @hf.trigger("items", cursor="id", key="id", horizon="none", poll_seconds=0.05)
    def changed(changes: list[object]) -> None:
        mail.enqueue()
        seen.append("trigger")

    @hf.job(topic="mail")
    def mail() -> None:
        seen.append("job")

    hf.migrate()
    with hf.database.begin() as connection:
        connection.execute(text("INSERT INTO items VALUES (1, 1)"))
    with running(hf):
        wait_until(lambda: sorted(seen) == ["job", "trigger"], "both")


def test_only_the_chosen_topics_run(hf: Holdfast) -> None:
    seen: list[str] = []

    @hf.job(topic="one", name="one")
    def one() -> None:
        seen.append("one")

    @hf.job(topic="two", name="two")
    def two() -> None:
        seen.append("two")

    hf.migrate()
    one_id, two_id = one.enqueue().id, two.enqueue().id
    with running(hf, topics=["two"]):
        wait_until(lambda: hf.jobs.result(two_id), "the chosen one")
    assert seen == ["two"]
    assert hf.jobs.result(one_id) is None
    with pytest.raises(ConfigurationError, match="No job is declared for topic 'three'"):
        hf.run(handle_signals=False, topics=["three"])


def test_a_periodic_job_is_enqueued_by_the_workers(hf: Holdfast) -> None:
    slots: list[datetime | None] = []

    @hf.job(topic="clock")
    def note(context: JobContext) -> None:
        slots.append(context.run_at)

    hf.periodic(note, "* * * * * *", name="every second")
    hf.migrate()
    with running(hf):
        wait_until(lambda: len(slots) >= 2, "two slots")
    assert all(slot is not None and slot.tzinfo is not None for slot in slots)
    assert len(set(slots)) == len(slots)


def test_limits_are_declared_when_a_worker_starts_and_taken_back(hf: Holdfast) -> None:
    @hf.job(topic="mail", concurrency=3, rate_per_key=(5, 60))
    def mail() -> None: ...

    hf.migrate()
    with running(hf):
        pass
    [topic] = hf.jobs.store.topics()
    assert topic.limits == TopicLimits(max_running=3, rate_count_per_key=5, rate_seconds_per_key=60)

    later = Holdfast(db_config=hf._config, engine_provider=hf._provider)
    later.job(topic="mail", name="mail")(lambda: None)
    with running(later):
        pass
    [topic] = hf.jobs.store.topics()
    assert topic.limits == TopicLimits()


def test_different_limits_for_one_topic_are_refused(hf: Holdfast) -> None:
    hf.job(topic="mail", name="a", concurrency=3)(lambda: None)
    with pytest.raises(ConfigurationError, match="different limits for topic 'mail'"):
        hf.job(topic="mail", name="b", concurrency=4)(lambda: None)


def test_two_jobs_of_one_name_are_refused(hf: Holdfast) -> None:
    hf.job(topic="mail", name="a")(lambda: None)
    with pytest.raises(ConfigurationError, match="two jobs named 'a' in topic 'mail'"):
        hf.job(topic="mail", name="a")(lambda: None)


def test_two_periodic_jobs_of_one_name_are_refused(hf: Holdfast) -> None:
    job = hf.job(topic="mail", name="a")(lambda: None)
    hf.periodic(job, "0 3 * * *")
    with pytest.raises(ConfigurationError, match="two periodic jobs named 'a'"):
        hf.periodic(job, "0 4 * * *")


def test_missing_tables_are_told_before_anything_runs(hf: Holdfast) -> None:
    hf.job(topic="mail", name="a")(lambda: None)
    with pytest.raises(ConfigurationError, match="holdfast migrate"):
        hf.run(handle_signals=False)


def test_tables_of_a_newer_version_are_refused(hf: Holdfast) -> None:
    hf.job(topic="mail", name="a")(lambda: None)
    hf.migrate()
    with hf.database.begin() as connection:
        connection.execute(text("INSERT INTO holdfast_migrations (number, name, needs) VALUES (99, 'later', 99)"))
    with pytest.raises(ConfigurationError, match=r"0099 later"):
        hf.run(handle_signals=False)


def test_jobs_need_no_state_documents_in_the_database(empty_sqlite_url: str) -> None:
    hf = Holdfast(empty_sqlite_url, state=MemoryDocumentStore())
    assert hf.migrate() == []
    job = hf.job(topic="mail", name="a")(lambda: None)
    steps = (*RECORD_MIGRATIONS, *JOB_MIGRATIONS)
    assert hf.migrate() == sorted(f"{step.number:04d} {step.name}" for step in steps)
    added = job.enqueue()
    with running(hf):
        wait_until(lambda: hf.jobs.result(added.id), "the job")
    hf._provider.dispose_all()


def test_a_job_for_later_waits_and_can_be_cancelled(hf: Holdfast) -> None:
    @hf.job(topic="mail")
    def mail() -> None: ...

    hf.migrate()
    added = mail.options(run_at=datetime.now(UTC) + timedelta(hours=1), tags=["night"]).enqueue()
    assert hf.jobs.cancel(added.id, reason="not needed") == {added.id: JobStatus.CANCELLED}
    result = hf.jobs.result(added.id)
    assert result is not None
    assert (result.status, result.error) == (JobStatus.CANCELLED, "cancelled: not needed")
    assert hf.jobs.retry(added.id) == {added.id}
    assert hf.jobs.result(added.id) is None


def test_what_cannot_be_a_job_is_refused_with_the_way_to_write_it(hf: Holdfast) -> None:
    with pytest.raises(ConfigurationError, match=r"Write @hf.job\(\) with parentheses"):
        hf.job(lambda: None)  # type: ignore[arg-type] # that is the point
    with pytest.raises(ConfigurationError, match="Only a job can be periodic"):
        hf.periodic(print, "* * * * *")  # type: ignore[arg-type] # that is the point


@pytest.mark.parametrize("job_id", ["7", None, 1.0, True])
def test_an_id_that_is_no_number_is_refused(hf: Holdfast, job_id: Any) -> None:
    hf.migrate()
    for call in (hf.jobs.cancel, hf.jobs.retry, hf.jobs.get, hf.jobs.result):
        with pytest.raises(ConfigurationError, match="whole number"):
            call(job_id)


def test_only_a_name_can_be_paused(hf: Holdfast) -> None:
    hf.migrate()
    with pytest.raises(ConfigurationError, match="it is empty"):
        hf.jobs.pause("")
    assert hf.jobs.store.topics() == []
