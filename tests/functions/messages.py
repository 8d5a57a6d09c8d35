"""The messages between host and worker that azure-functions-runtime reads and writes.

The library takes its message classes from whoever embeds it: in Azure that is the worker process with its generated
protobuf classes. These have the same names and fields, and refuse a field they do not know just as protobuf does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar


@dataclass(slots=True)
class TypedData:
    """One value; at most one field is set, as in a protobuf ``oneof``."""

    string: str | None = None
    json: str | None = None
    bytes: bytes | None = None
    http: RpcHttp | None = None
    int: int | None = None
    double: float | None = None

    def WhichOneof(self, group: str) -> str | None:  # noqa: N802 - protobuf's name
        assert group == "data"
        set_fields = [name for name in self.__slots__ if getattr(self, name) is not None]
        assert len(set_fields) <= 1, set_fields
        return set_fields[0] if set_fields else None


@dataclass(slots=True)
class RpcHttp:
    method: str = ""
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: TypedData | None = None
    params: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    status_code: str = ""
    cookies: list[Any] | None = None
    enable_content_negotiation: bool = False


@dataclass(slots=True)
class ParameterBinding:
    name: str
    data: TypedData | None

    def WhichOneof(self, group: str) -> str:  # noqa: N802 - protobuf's name
        assert group == "rpc_data"
        return "data"


@dataclass(slots=True)
class BindingInfo:
    # Enum values of the protocol; `in` is a keyword and nobody here reads it.
    out: ClassVar[int] = 1
    inout: ClassVar[int] = 2
    undefined: ClassVar[int] = 0

    type: str
    data_type: int | None
    direction: int


@dataclass(slots=True)
class RpcException:
    message: str
    stack_trace: str


@dataclass(slots=True)
class StatusResult:
    Failure: ClassVar[int] = 0
    Success: ClassVar[int] = 1

    status: int
    exception: RpcException | None = None


@dataclass(slots=True)
class WorkerMetadata:
    runtime_name: str
    runtime_version: str
    worker_version: str
    worker_bitness: str
    custom_properties: dict[str, str]


@dataclass(slots=True)
class WorkerInitRequest:
    function_app_directory: str
    capabilities: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class WorkerInitResponse:
    capabilities: dict[str, str]
    worker_metadata: WorkerMetadata
    result: StatusResult


@dataclass(slots=True)
class RpcRetryOptions:
    max_retry_count: int
    retry_strategy: str
    delay_interval: timedelta | None = None
    minimum_interval: timedelta | None = None
    maximum_interval: timedelta | None = None


@dataclass(slots=True)
class RpcFunctionMetadata:
    name: str
    function_id: str
    managed_dependency_enabled: bool
    directory: str
    script_file: str
    entry_point: str
    is_proxy: bool
    language: str
    bindings: dict[str, BindingInfo]
    raw_bindings: list[str]
    retry_options: RpcRetryOptions | None
    properties: dict[str, str]


@dataclass(slots=True)
class FunctionMetadataResponse:
    use_default_metadata_indexing: bool
    function_metadata_results: list[RpcFunctionMetadata]
    result: StatusResult


@dataclass(slots=True)
class FunctionLoadRequest:
    function_id: str


@dataclass(slots=True)
class FunctionLoadResponse:
    function_id: str
    result: StatusResult


@dataclass(slots=True)
class TraceContext:
    trace_parent: str = ""
    trace_state: str = ""
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RetryContext:
    retry_count: int = 0
    max_retry_count: int = 0
    exception: RpcException | None = None


@dataclass(slots=True)
class InvocationRequest:
    invocation_id: str
    function_id: str
    input_data: list[ParameterBinding]
    trigger_metadata: dict[str, TypedData]
    trace_context: TraceContext = field(default_factory=TraceContext)
    retry_context: RetryContext = field(default_factory=RetryContext)


@dataclass(slots=True)
class InvocationResponse:
    invocation_id: str
    result: StatusResult
    return_value: TypedData | None = None
    output_data: list[ParameterBinding] | None = None


@dataclass(slots=True)
class StreamingMessage:
    worker_init_request: WorkerInitRequest | None = None
    function_load_request: FunctionLoadRequest | None = None
    invocation_request: InvocationRequest | None = None


@dataclass(slots=True)
class WorkerRequest:
    """What the embedding worker process hands to the library with every message."""

    request: StreamingMessage
    properties: dict[str, Any] = field(default_factory=dict)
