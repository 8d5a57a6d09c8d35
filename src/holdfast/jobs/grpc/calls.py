"""The calls of the .proto file as gRPC needs them, for client and server alike: what goes in and what comes out.

They are read from the description that the generated messages carry, so there is no second list of them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc

from . import holdfast_jobs_pb2 as wire
from .admission import Admission
from .security import Scope

SCOPES = {
    "StreamJobs": Scope.WORK,
    "Heartbeat": Scope.WORK,
    "ReportResult": Scope.WORK,
    "ReportResults": Scope.WORK,
    "Enqueue": Scope.ENQUEUE,
}
"""What a token must be for, call by call. One that is not here is not served."""

_SERVICE = wire.DESCRIPTOR.services_by_name["Jobs"]


def stub(channel: Any) -> Any:
    """Return what calls a server: a callable for each call, by its name."""
    calls = {
        method.name: getattr(channel, _form(method))(
            f"/{_SERVICE.full_name}/{method.name}",
            request_serializer=getattr(wire, method.input_type.name).SerializeToString,
            response_deserializer=getattr(wire, method.output_type.name).FromString,
        )
        for method in _SERVICE.methods
    }
    return SimpleNamespace(**calls)


def handlers(service: object, admission: Admission) -> Any:
    """Return what answers calls: each by the method of the service that has its name, behind the admission of calls.

    All are streams to gRPC, also those of one message: on the wire that is the same, and we decide when to read.
    """

    def behind_gate(method: Any) -> Any:
        path, serve = f"/{_SERVICE.full_name}/{method.name}", getattr(service, method.name)
        passing = admission.stream if method.client_streaming else admission.call
        return passing(path, SCOPES[method.name], serve)

    answers = {
        method.name: grpc.stream_stream_rpc_method_handler(
            behind_gate(method),
            request_deserializer=getattr(wire, method.input_type.name).FromString,
            response_serializer=getattr(wire, method.output_type.name).SerializeToString,
        )
        for method in _SERVICE.methods
    }
    return grpc.method_handlers_generic_handler(_SERVICE.full_name, answers)


def _form(method: Any) -> str:
    return "stream_stream" if method.client_streaming else "unary_unary"
