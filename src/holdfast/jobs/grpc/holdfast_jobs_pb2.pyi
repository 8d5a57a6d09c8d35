import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerMessage(_message.Message):
    __slots__ = ("start", "grant")
    START_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    start: Start
    grant: Grant
    def __init__(self, start: _Optional[_Union[Start, _Mapping]] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("worker", "topics", "credit", "operations", "tests_suspects")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    TESTS_SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    credit: int
    operations: _containers.RepeatedCompositeFieldContainer[Operations]
    tests_suspects: bool
    def __init__(self, worker: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., credit: _Optional[int] = ..., operations: _Optional[_Iterable[_Union[Operations, _Mapping]]] = ..., tests_suspects: bool = ...) -> None: ...

class Operations(_message.Message):
    __slots__ = ("topic", "names")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("credit", "tests_suspects")
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    TESTS_SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    credit: int
    tests_suspects: bool
    def __init__(self, credit: _Optional[int] = ..., tests_suspects: bool = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("assignment", "beat_now")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    BEAT_NOW_FIELD_NUMBER: _ClassVar[int]
    assignment: JobAssignment
    beat_now: BeatNow
    def __init__(self, assignment: _Optional[_Union[JobAssignment, _Mapping]] = ..., beat_now: _Optional[_Union[BeatNow, _Mapping]] = ...) -> None: ...

class BeatNow(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JobAssignment(_message.Message):
    __slots__ = ("job_id", "attempt", "topic", "operation", "payload", "correlation_id", "lease_seconds", "failures", "max_attempts", "tags", "instance_id", "priority", "run_at", "created_at", "limit_key", "receipt", "is_suspect", "suspicions")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_KEY_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    IS_SUSPECT_FIELD_NUMBER: _ClassVar[int]
    SUSPICIONS_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    attempt: int
    topic: str
    operation: str
    payload: str
    correlation_id: str
    lease_seconds: float
    failures: int
    max_attempts: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    instance_id: str
    priority: int
    run_at: _timestamp_pb2.Timestamp
    created_at: _timestamp_pb2.Timestamp
    limit_key: str
    receipt: str
    is_suspect: bool
    suspicions: int
    def __init__(self, job_id: _Optional[int] = ..., attempt: _Optional[int] = ..., topic: _Optional[str] = ..., operation: _Optional[str] = ..., payload: _Optional[str] = ..., correlation_id: _Optional[str] = ..., lease_seconds: _Optional[float] = ..., failures: _Optional[int] = ..., max_attempts: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., instance_id: _Optional[str] = ..., priority: _Optional[int] = ..., run_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., limit_key: _Optional[str] = ..., receipt: _Optional[str] = ..., is_suspect: bool = ..., suspicions: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker", "jobs")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    jobs: _containers.RepeatedCompositeFieldContainer[HeldJob]
    def __init__(self, worker: _Optional[str] = ..., jobs: _Optional[_Iterable[_Union[HeldJob, _Mapping]]] = ...) -> None: ...

class HeldJob(_message.Message):
    __slots__ = ("job_id", "attempt", "progress", "receipt", "is_tested")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    IS_TESTED_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    attempt: int
    progress: str
    receipt: str
    is_tested: bool
    def __init__(self, job_id: _Optional[int] = ..., attempt: _Optional[int] = ..., progress: _Optional[str] = ..., receipt: _Optional[str] = ..., is_tested: bool = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobState]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobState, _Mapping]]] = ...) -> None: ...

class JobState(_message.Message):
    __slots__ = ("job_id", "attempt", "is_held", "cancel_reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    IS_HELD_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    attempt: int
    is_held: bool
    cancel_reason: str
    def __init__(self, job_id: _Optional[int] = ..., attempt: _Optional[int] = ..., is_held: bool = ..., cancel_reason: _Optional[str] = ...) -> None: ...

class ReportResultRequest(_message.Message):
    __slots__ = ("worker", "report")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    report: Report
    def __init__(self, worker: _Optional[str] = ..., report: _Optional[_Union[Report, _Mapping]] = ...) -> None: ...

class ReportResultResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    def __init__(self, outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...

class ReportResultsRequest(_message.Message):
    __slots__ = ("worker", "reports")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    def __init__(self, worker: _Optional[str] = ..., reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ...) -> None: ...

class ReportResultsResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("job_id", "attempt", "receipt", "duration_ms", "succeeded", "failed", "put_back", "stopped")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    PUT_BACK_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    attempt: int
    receipt: str
    duration_ms: int
    succeeded: Succeeded
    failed: Failed
    put_back: PutBack
    stopped: Stopped
    def __init__(self, job_id: _Optional[int] = ..., attempt: _Optional[int] = ..., receipt: _Optional[str] = ..., duration_ms: _Optional[int] = ..., succeeded: _Optional[_Union[Succeeded, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., put_back: _Optional[_Union[PutBack, _Mapping]] = ..., stopped: _Optional[_Union[Stopped, _Mapping]] = ...) -> None: ...

class Succeeded(_message.Message):
    __slots__ = ("output",)
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    output: str
    def __init__(self, output: _Optional[str] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("error", "retry_in_seconds", "is_final")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RETRY_IN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    error: str
    retry_in_seconds: float
    is_final: bool
    def __init__(self, error: _Optional[str] = ..., retry_in_seconds: _Optional[float] = ..., is_final: bool = ...) -> None: ...

class PutBack(_message.Message):
    __slots__ = ("seconds", "reason", "is_misfit")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_MISFIT_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    reason: str
    is_misfit: bool
    def __init__(self, seconds: _Optional[float] = ..., reason: _Optional[str] = ..., is_misfit: bool = ...) -> None: ...

class Stopped(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("job_id", "attempt", "is_accepted", "status")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    IS_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    attempt: int
    is_accepted: bool
    status: str
    def __init__(self, job_id: _Optional[int] = ..., attempt: _Optional[int] = ..., is_accepted: bool = ..., status: _Optional[str] = ...) -> None: ...

class EnqueueRequest(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[NewJob]
    def __init__(self, jobs: _Optional[_Iterable[_Union[NewJob, _Mapping]]] = ...) -> None: ...

class NewJob(_message.Message):
    __slots__ = ("topic", "operation", "payload", "run_at", "delay_seconds", "priority", "max_attempts", "lease_seconds", "retry_base_seconds", "retry_max_seconds", "unique_key", "unique_seconds", "limit_key", "correlation_id", "instance_id", "tags")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_FIELD_NUMBER: _ClassVar[int]
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RETRY_BASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RETRY_MAX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_KEY_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    operation: str
    payload: str
    run_at: _timestamp_pb2.Timestamp
    delay_seconds: float
    priority: int
    max_attempts: int
    lease_seconds: float
    retry_base_seconds: float
    retry_max_seconds: float
    unique_key: str
    unique_seconds: float
    limit_key: str
    correlation_id: str
    instance_id: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., operation: _Optional[str] = ..., payload: _Optional[str] = ..., run_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., delay_seconds: _Optional[float] = ..., priority: _Optional[int] = ..., max_attempts: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., retry_base_seconds: _Optional[float] = ..., retry_max_seconds: _Optional[float] = ..., unique_key: _Optional[str] = ..., unique_seconds: _Optional[float] = ..., limit_key: _Optional[str] = ..., correlation_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class EnqueueResponse(_message.Message):
    __slots__ = ("added", "job")
    ADDED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    added: int
    job: EnqueuedJob
    def __init__(self, added: _Optional[int] = ..., job: _Optional[_Union[EnqueuedJob, _Mapping]] = ...) -> None: ...

class EnqueuedJob(_message.Message):
    __slots__ = ("job_id", "correlation_id", "is_new")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    correlation_id: str
    is_new: bool
    def __init__(self, job_id: _Optional[int] = ..., correlation_id: _Optional[str] = ..., is_new: bool = ...) -> None: ...
