"""The calls, one by one, as a client in any language sees them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from sqlalchemy import text

from holdfast.jobs.definition import JobDefinition, JobSettings
from holdfast.jobs.grpc import holdfast_jobs_pb2 as wire
from holdfast.jobs.grpc.connection import RemoteConnection
from holdfast.jobs.grpc.moments import moment_of, timestamp_of
from holdfast.jobs.grpc.server import ServerSettings
from holdfast.jobs.model import JobId, TopicLimits
from tests.components.processes import wait_until
from tests.jobs.queues import ANNE, Queue, open_queue
from tests.jobs.remote import Remote, Stream, held, report

KIB = 1024


@pytest.fixture
def queue(postgres_url: str) -> Iterator[Queue]:
    with open_queue(postgres_url) as opened:
        yield opened


@pytest.fixture
def remote(queue: Queue) -> Iterator[Remote]:
    settings = ServerSettings(
        poll_seconds=0.05, watchdog_seconds=0.1, max_payload_bytes=KIB, max_message_bytes=64 * KIB
    )
    remote = Remote(queue, settings=settings)

    def greet(name: str, times: int = 1) -> None: ...

    declared = JobSettings(max_attempts=3, lease_seconds=77, retry_base_seconds=2)
    remote.definitions.append(JobDefinition(greet, topic="email", store=lambda: queue.store, settings=declared))
    with remote.serving():
        yield remote


@pytest.fixture
def connection(remote: Remote) -> Iterator[RemoteConnection]:
    with remote.connection() as opened:
        yield opened


def refusal(connection: RemoteConnection, method: str, request: Any) -> tuple[grpc.StatusCode, str]:
    """Return how the server refuses a call."""
    with pytest.raises(grpc.RpcError) as raised:
        getattr(connection.stub, method)(request, metadata=connection.metadata, timeout=30)
    error: Any = raised.value
    return error.code(), error.details()


def call(connection: RemoteConnection, method: str, request: Any) -> Any:
    return getattr(connection.stub, method)(request, metadata=connection.metadata, timeout=30)


def assigned(connection: RemoteConnection, count: int = 1, worker: str = "w") -> list[wire.JobAssignment]:
    """Return jobs that a worker was given through a stream that has ended since."""
    stream = Stream(connection, worker)
    stream.grant(count)
    found = stream.until(count)
    stream.close()
    return found


# Reports


@pytest.mark.parametrize("attempt", [{}, {"attempt": 0}, {"attempt": -1}])
def test_a_report_without_an_attempt_is_invalid(
    connection: RemoteConnection, queue: Queue, attempt: dict[str, Any]
) -> None:
    job = queue.add()
    [assignment] = assigned(connection)
    bad = wire.Report(job_id=job.id, receipt=assignment.receipt, succeeded=wire.Succeeded(), **attempt)
    code, details = refusal(connection, "ReportResult", wire.ReportResultRequest(worker="w", report=bad))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"job {job.id}, has the attempt" in details
    request = wire.ReportResultsRequest(worker="w", reports=[report(assignment), bad])
    code, details = refusal(connection, "ReportResults", request)
    assert (code, details.startswith(f"reports[1], job {job.id}")) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    beat = wire.HeartbeatRequest(worker="w", jobs=[wire.HeldJob(job_id=job.id, receipt="of another", **attempt)])
    assert refusal(connection, "Heartbeat", beat)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert queue.status(job.id) == "running"


def test_a_stale_report_changes_nothing_and_says_so(connection: RemoteConnection, queue: Queue) -> None:
    job = queue.add()
    [assignment] = assigned(connection)
    queue.expire(job.id, 1)
    wait_until(lambda: queue.status(job.id) != "running", "the watchdog")
    code, details = refusal(connection, "ReportResult", wire.ReportResultRequest(worker="w", report=report(assignment)))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details.startswith(f"Job {job.id}, attempt 1, is not worker w's any more")
    assert (queue.status(job.id), queue.column(job.id, "suspicions")) == ("suspect", 1)
    assert queue.history() == []


def test_another_workers_receipt_is_no_good(connection: RemoteConnection, queue: Queue) -> None:
    queue.add()
    [assignment] = assigned(connection)
    request = wire.ReportResultRequest(worker="someone-else", report=report(assignment))
    assert refusal(connection, "ReportResult", request)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert queue.status(JobId(assignment.job_id)) == "running"


def test_a_remote_worker_cannot_pass_for_one_beside_the_database(connection: RemoteConnection, queue: Queue) -> None:
    queue.add()
    job = queue.claim_one(ANNE)
    stolen = wire.Report(job_id=job.id, attempt=job.attempt, receipt="0:x", succeeded=wire.Succeeded())
    request = wire.ReportResultRequest(worker=ANNE, report=stolen)
    assert refusal(connection, "ReportResult", request)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert queue.status(job.id) == "running"


def test_a_batch_is_judged_report_by_report(connection: RemoteConnection, queue: Queue) -> None:
    jobs = [queue.add() for _ in range(5)]
    good, stale, failed, put_back, cancelled = assigned(connection, 5)
    later = report(stale, put_back=wire.PutBack(seconds=60))
    call(connection, "ReportResult", wire.ReportResultRequest(worker="w", report=later))
    queue.store.cancel([JobId(cancelled.job_id)], "enough")
    reports = [
        report(good, succeeded=wire.Succeeded(output='{"n": 1}')),
        report(stale),
        report(failed, failed=wire.Failed(error="no\0", is_final=True)),
        report(put_back, put_back=wire.PutBack(seconds=60, reason="later")),
        report(cancelled, stopped=wire.Stopped()),
    ]
    answer = call(connection, "ReportResults", wire.ReportResultsRequest(worker="w", reports=reports))
    assert [outcome.is_accepted for outcome in answer.outcomes] == [True, False, True, True, True]
    assert [outcome.status for outcome in answer.outcomes] == ["", "", "dead", "", ""]
    assert [queue.status(job.id) for job in jobs] == [None, "scheduled", "dead", "scheduled", "cancelled"]
    assert queue.dead_letters()[0]["error_message"] == "no\N{REPLACEMENT CHARACTER}"


def test_a_success_may_be_reported_again_until_it_is_answered(connection: RemoteConnection, queue: Queue) -> None:
    queue.add(correlation_id="order-1")
    [assignment] = assigned(connection)
    request = wire.ReportResultRequest(worker="w", report=report(assignment))
    for _ in range(2):
        assert call(connection, "ReportResult", request).outcome.is_accepted
    assert len(queue.history()) == 1
    request.report.attempt = 2
    assert refusal(connection, "ReportResult", request)[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_a_unique_key_outlives_a_remote_success(connection: RemoteConnection, queue: Queue) -> None:
    first = queue.add(unique_key="k", unique_seconds=3600)
    [assignment] = assigned(connection)
    call(connection, "ReportResult", wire.ReportResultRequest(worker="w", report=report(assignment)))
    again = queue.add(unique_key="k", unique_seconds=3600)
    assert (again.is_new, again.id) == (False, first.id)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"receipt": ""}, "has no receipt"),
        ({"succeeded": wire.Succeeded(output="{")}, "its output is not JSON"),
        ({"succeeded": wire.Succeeded(output='"' + "x" * KIB + '"')}, "its output has 1,026 bytes"),
        ({"failed": wire.Failed(retry_in_seconds=-1)}, "failed.retry_in_seconds is -1"),
        ({"failed": wire.Failed(retry_in_seconds=float("nan"))}, "failed.retry_in_seconds is nan"),
        ({"put_back": wire.PutBack(seconds=float("inf"))}, "put_back.seconds is inf"),
        ({"job_id": 0}, "names no job"),
    ],
)
def test_a_report_that_cannot_be_is_refused(
    connection: RemoteConnection, queue: Queue, change: dict[str, Any], told: str
) -> None:
    queue.add()
    [assignment] = assigned(connection)
    fields = {"job_id": assignment.job_id, "attempt": 1, "receipt": assignment.receipt, **change}
    if not {"failed", "put_back"} & fields.keys():
        fields.setdefault("succeeded", wire.Succeeded())
    request = wire.ReportResultRequest(worker="w", report=wire.Report(**fields))
    code, details = refusal(connection, "ReportResult", request)
    assert (code, told in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details
    assert queue.status(JobId(assignment.job_id)) == "running"


def test_a_report_must_say_how_the_attempt_ended(connection: RemoteConnection, queue: Queue) -> None:
    job = queue.add()
    [assignment] = assigned(connection)
    unsaid = wire.Report(job_id=job.id, attempt=1, receipt=assignment.receipt)
    code, details = refusal(connection, "ReportResult", wire.ReportResultRequest(worker="w", report=unsaid))
    assert (code, f"job {job.id} does not say how" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_two_reports_of_one_claim_are_refused(connection: RemoteConnection, queue: Queue) -> None:
    queue.add()
    [assignment] = assigned(connection)
    request = wire.ReportResultsRequest(worker="w", reports=[report(assignment), report(assignment)])
    code, details = refusal(connection, "ReportResults", request)
    assert (code, details.startswith("reports[1] is the second")) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.parametrize("worker", ["", "!x", "x" * 151, "a\nb"])
def test_a_worker_needs_a_name(connection: RemoteConnection, worker: str) -> None:
    code, details = refusal(connection, "Heartbeat", wire.HeartbeatRequest(worker=worker))
    assert (code, "orker" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


# Heartbeats


def test_a_beat_tells_what_is_held_what_is_lost_and_what_is_cancelled(
    connection: RemoteConnection, queue: Queue
) -> None:
    for _ in range(3):
        queue.add(lease_seconds=30)
    kept, lost, cancelled = assigned(connection, 3)
    call(connection, "ReportResult", wire.ReportResultRequest(worker="w", report=report(lost)))
    queue.store.cancel([JobId(cancelled.job_id)], "enough")
    before = queue.column(JobId(kept.job_id), "lease_until")
    jobs = [held(kept, progress='{"done": 3}'), held(lost), held(cancelled)]
    answer = call(connection, "Heartbeat", wire.HeartbeatRequest(worker="w", jobs=jobs))
    assert [(state.job_id, state.is_held) for state in answer.jobs] == [
        (kept.job_id, True),
        (lost.job_id, False),
        (cancelled.job_id, True),
    ]
    assert [state.HasField("cancel_reason") for state in answer.jobs] == [False, False, True]
    assert answer.jobs[2].cancel_reason == "enough"
    assert queue.column(JobId(kept.job_id), "lease_until") > before
    assert queue.column(JobId(kept.job_id), "progress") == '{"done": 3}'


def test_progress_must_be_json(connection: RemoteConnection, queue: Queue) -> None:
    job = queue.add()
    [assignment] = assigned(connection)
    beat = wire.HeartbeatRequest(worker="w", jobs=[held(assignment, progress="half")])
    code, details = refusal(connection, "Heartbeat", beat)
    assert (code, f"job {job.id}: its progress is not JSON" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


# Streams


def test_no_more_is_assigned_than_credit_was_granted(connection: RemoteConnection, queue: Queue) -> None:
    for _ in range(10):
        queue.add()
    stream = Stream(connection)
    stream.grant(3)
    stream.until(3)
    call(connection, "Enqueue", wire.EnqueueRequest(jobs=[wire.NewJob(topic="email", operation="send")]))
    stream.grant(2)
    stream.until(5)
    stream.close()
    assert len(stream.assignments) == 5
    assert len(queue.rows("SELECT id FROM holdfast_jobs WHERE status = 'running'")) == 5
    assert {row["locked_by"] for row in queue.rows("SELECT locked_by FROM holdfast_jobs WHERE status = 'running'")} == {
        "remote:w"
    }


def test_credit_ends_with_its_stream_and_jobs_do_not(connection: RemoteConnection, queue: Queue) -> None:
    stream = Stream(connection)
    stream.grant(10)
    queue.add()
    [assignment] = stream.until(1)
    stream.close()
    waiting = queue.add()
    second = Stream(connection)
    beat = wire.HeartbeatRequest(worker="w", jobs=[held(assignment)])
    assert call(connection, "Heartbeat", beat).jobs[0].is_held
    call(connection, "ReportResult", wire.ReportResultRequest(worker="w", report=report(assignment)))
    second.close()
    assert (second.assignments, queue.status(waiting.id)) == ([], "ready")


def test_an_assignment_tells_all_about_its_job(connection: RemoteConnection, queue: Queue) -> None:
    run_at = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    job = wire.NewJob(
        topic="email",
        operation="send",
        payload='{"n": 1}',
        run_at=timestamp_of(run_at),
        priority=-5,
        max_attempts=9,
        lease_seconds=45.5,
        retry_base_seconds=3,
        retry_max_seconds=33,
        unique_key="u",
        unique_seconds=60,
        limit_key=None,
        correlation_id="order-1",
        instance_id="shop-3",
        tags=["red", "blue"],
    )
    added = call(connection, "Enqueue", wire.EnqueueRequest(jobs=[job])).job
    [told] = assigned(connection)
    assert (told.job_id, told.attempt, told.topic, told.operation) == (added.job_id, 1, "email", "send")
    assert (told.payload, told.correlation_id, told.instance_id) == ('{"n": 1}', "order-1", "shop-3")
    assert (told.lease_seconds, told.failures, told.max_attempts, told.priority) == (45.5, 0, 9, -5)
    assert (list(told.tags), moment_of("run_at", told.run_at)) == (["red", "blue"], run_at)
    assert told.HasField("created_at")
    assert not told.HasField("limit_key")
    row = queue.store.get(JobId(added.job_id))
    assert row is not None
    assert (row.columns["retry_base_seconds"], row.columns["retry_max_seconds"]) == (3, 33)


def test_jobs_are_assigned_when_their_time_has_come(connection: RemoteConnection, queue: Queue) -> None:
    job = wire.NewJob(topic="email", operation="send", delay_seconds=3600)
    added = call(connection, "Enqueue", wire.EnqueueRequest(jobs=[job])).job
    stream = Stream(connection)
    stream.grant(5)
    other = queue.add()
    assert [told.job_id for told in stream.until(1)] == [other.id]
    queue.step(3601)
    assert stream.until(2)[1].job_id == added.job_id
    stream.close()


def test_a_stream_is_told_of_cancelled_jobs(connection: RemoteConnection, queue: Queue) -> None:
    job = queue.add()
    stream = Stream(connection)
    stream.grant(1)
    stream.until(1)
    queue.store.cancel([job.id], "enough")
    wait_until(lambda: stream.beats == 1, "the hint")
    stream.close()


def test_a_second_stream_of_a_worker_ends_the_first(connection: RemoteConnection, queue: Queue) -> None:
    first = Stream(connection)
    first.grant(1)
    queue.add()
    first.until(1)
    second = Stream(connection)
    assert first.ended().code() is grpc.StatusCode.ABORTED
    second.grant(1)
    queue.add()
    second.until(1)
    second.close()


def telling(topic: str, names: list[str]) -> wire.WorkerMessage:
    """Return the start of a worker of the topic email that tells what it can run."""
    operations = [wire.Operations(topic=topic, names=names)]
    return wire.WorkerMessage(start=wire.Start(worker="w", topics=["email"], operations=operations))


def test_a_worker_is_given_what_it_says_it_can_run(connection: RemoteConnection, queue: Queue) -> None:
    told = [wire.Operations(topic="email", names=["send", "print"])]
    stream = Stream(connection, topics=("email", "sms"), operations=told)
    foreign = [queue.add(operation="foreign", priority=9).id for _ in range(3)]
    wanted = [queue.add(operation="print").id, queue.add().id, queue.add("sms", "anything").id]
    stream.grant(10)
    assert sorted(assignment.job_id for assignment in stream.until(3)) == wanted
    queue.add(operation="print")
    stream.until(4)
    stream.close()
    assert [queue.column(job_id, "attempt") for job_id in foreign] == [0, 0, 0]


def test_an_older_worker_that_says_nothing_is_given_any_operation(connection: RemoteConnection, queue: Queue) -> None:
    queue.store.set_limits("limited", TopicLimits(max_running=5))
    stream = Stream(connection, topics=("email", "limited"))
    added = [queue.add(topic, operation).id for topic in ("email", "limited") for operation in ("send", "print")]
    stream.grant(10)
    assignments = stream.until(4)
    assert sorted(assignment.job_id for assignment in assignments) == added
    unknown = [report(assignment, put_back=wire.PutBack(seconds=30)) for assignment in assignments]
    call(connection, "ReportResults", wire.ReportResultsRequest(worker="w", reports=unknown))
    assert {queue.status(job_id) for job_id in added} == {"scheduled"}
    stream.close()


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (wire.WorkerMessage(), "first message of a stream must be start"),
        (wire.WorkerMessage(grant=wire.Grant(credit=1)), "first message of a stream must be start"),
        (wire.WorkerMessage(start=wire.Start(topics=["email"])), "names no worker"),
        (wire.WorkerMessage(start=wire.Start(worker="w")), "asks for 0 topics"),
        (wire.WorkerMessage(start=wire.Start(worker="w", topics=[""])), "it is empty"),
        (wire.WorkerMessage(start=wire.Start(worker="w", topics=["email"], credit=100_001)), "100,000 jobs at most"),
        (telling("sms", ["send"]), "tells operations of 'sms'"),
        (telling("email", []), "Name at least one operation"),
        (telling("email", [" send"]), "begins or ends with a space"),
        (telling("email", ["send"] * 10_001), "more than 10,000 operations"),
    ],
)
def test_a_stream_that_begins_wrongly_is_refused(
    connection: RemoteConnection, message: wire.WorkerMessage, told: str
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        list(connection.stub.StreamJobs(iter([message]), metadata=connection.metadata))
    error: Any = raised.value
    assert (error.code(), told in error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True), error.details()


def test_a_stream_has_one_start(connection: RemoteConnection) -> None:
    stream = Stream(connection)
    stream.send(wire.WorkerMessage(start=wire.Start(worker="w", topics=["email"])))
    assert stream.ended().code() is grpc.StatusCode.INVALID_ARGUMENT


# Enqueues


def test_a_topic_nobody_works_on_is_accepted_and_visible(connection: RemoteConnection, queue: Queue) -> None:
    job = wire.NewJob(topic="nobody's", operation="anything")
    answer = call(connection, "Enqueue", wire.EnqueueRequest(jobs=[job]))
    assert (answer.added, answer.job.is_new) == (1, True)
    assert queue.status(JobId(answer.job.job_id)) == "ready"
    assert [stats.topic for stats in queue.store.stats()] == ["nobody's"]


def test_a_taken_unique_key_adds_nothing(connection: RemoteConnection) -> None:
    request = wire.EnqueueRequest(jobs=[wire.NewJob(topic="email", operation="send", unique_key="k")])
    first, second = (call(connection, "Enqueue", request) for _ in range(2))
    assert (first.job.is_new, second.job.is_new, second.added) == (True, False, 0)
    assert first.job.job_id == second.job.job_id


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"payload": "{"}, "its payload is not JSON"),
        ({"payload": '{"n": NaN}'}, "NaN is not a JSON value"),
        ({"payload": "[1]"}, "its payload is a JSON list"),
        ({"payload": "[" * 1000}, "its payload is not JSON"),
        ({"payload": '{"n": "' + "x" * KIB + '"}'}, "its payload has 1,033 bytes, and 1,024 are the most"),
        ({"topic": ""}, "topic '' cannot be used"),
        ({"topic": "!x"}, "starts with '!'"),
        ({"operation": "x" * 151}, "it has 151 characters"),
        ({"priority": 40_000}, "priority=40000"),
        ({"lease_seconds": 0}, "lease_seconds=0.0"),
        ({"max_attempts": -1}, "max_attempts=-1"),
        ({"delay_seconds": float("inf")}, "delay_seconds=inf"),
        ({"unique_key": ""}, "unique_key ''"),
        ({"tags": ["x"] * 51}, "50 tags at most"),
        ({"run_at": {"seconds": -(10**12)}}, "run_at is not a moment"),
    ],
)
def test_a_job_that_cannot_be_is_refused_and_none_is_added(
    connection: RemoteConnection, queue: Queue, change: dict[str, Any], told: str
) -> None:
    good = wire.NewJob(topic="email", operation="send")
    bad = wire.NewJob(**{"topic": "email", "operation": "send", **change})
    code, details = refusal(connection, "Enqueue", wire.EnqueueRequest(jobs=[good, bad]))
    assert (code, told in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details
    assert queue.store.stats() == []


def test_an_empty_enqueue_is_refused(connection: RemoteConnection) -> None:
    assert refusal(connection, "Enqueue", wire.EnqueueRequest())[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_a_message_that_is_too_large_is_refused(connection: RemoteConnection) -> None:
    jobs = [wire.NewJob(topic="email", operation="send", payload='{"n": "' + "x" * 900 + '"}')] * 100
    assert refusal(connection, "Enqueue", wire.EnqueueRequest(jobs=jobs))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_the_application_declares_holds_for_jobs_from_outside(connection: RemoteConnection, queue: Queue) -> None:
    job = wire.NewJob(topic="email", operation="greet", payload='{"name": "Ada"}', retry_base_seconds=9)
    added = call(connection, "Enqueue", wire.EnqueueRequest(jobs=[job])).job
    row = queue.store.get(JobId(added.job_id))
    assert row is not None
    assert [row.columns[name] for name in ("max_attempts", "lease_seconds", "retry_base_seconds")] == [3, 77, 9]
    job.payload = '{"name": 7}'
    code, details = refusal(connection, "Enqueue", wire.EnqueueRequest(jobs=[job]))
    assert (code, "argument 'name'" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details


def test_a_delay_counts_by_the_databases_clock(connection: RemoteConnection, queue: Queue) -> None:
    queue.step(86_400)
    job = wire.NewJob(topic="email", operation="send", delay_seconds=60)
    added = call(connection, "Enqueue", wire.EnqueueRequest(jobs=[job])).job
    due_in = queue.column(JobId(added.job_id), "run_at") - queue.store.now()
    assert timedelta() < due_in <= timedelta(seconds=60)


def test_missing_tables_are_named(connection: RemoteConnection, queue: Queue) -> None:
    with queue.engine.begin() as away:
        away.execute(text("ALTER TABLE holdfast_jobs RENAME TO elsewhere"))
    request = wire.EnqueueRequest(jobs=[wire.NewJob(topic="email", operation="send")])
    code, details = refusal(connection, "Enqueue", request)
    assert (code, "Create them with 'holdfast migrate'" in details) == (grpc.StatusCode.INTERNAL, True)
