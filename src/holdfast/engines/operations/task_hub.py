"""A task hub over gRPC, as far as an operation needs it. Only this module knows durabletask's client.

Every request has a deadline. What went wrong is raised as Holdfast's own errors: ``Unavailable`` may or may not have
landed, and a start that did is found by looking again, because its id is known.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from typing import Any, NamedTuple

from ...core.errors import ConfigurationError, Unavailable
from ...core.extras import needed
from .instances import Instance, Owner, Phase

with needed("Orchestrations on a task hub need durabletask", "durable"):
    import grpc
    from durabletask.client import OrchestrationState, OrchestrationStatus, TaskHubGrpcClient
    from durabletask.internal.orchestrator_service_pb2 import OrchestrationIdReusePolicy

_log = logging.getLogger("holdfast.engines.durabletask")
_PHASES = {
    OrchestrationStatus.COMPLETED: Phase.COMPLETED,
    OrchestrationStatus.FAILED: Phase.FAILED,
    OrchestrationStatus.TERMINATED: Phase.TERMINATED,
}  # everything else is under way
_STATUSES = {phase: status for status, phase in _PHASES.items()}
_REFUSALS = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
}


class TaskHub:
    """The instances of a task hub.

    Args:
        host_address: where it is.
        request_seconds: how long to wait for an answer.
    """

    def __init__(
        self,
        host_address: str,
        *,
        metadata: Sequence[tuple[str, str]],
        secure_channel: bool,
        interceptors: Sequence[Any],
        request_seconds: float,
    ) -> None:
        self._address = host_address
        self._client = TaskHubGrpcClient(
            host_address=host_address,
            metadata=list(metadata) or None,
            secure_channel=secure_channel,
            interceptors=[*interceptors, _Deadline(request_seconds)],
            logger=_log,
        )

    def look(self, instance_id: str) -> Instance | None:
        """Return the instance, None when there is none.

        Raises:
            Unavailable: the hub does not answer.
        """
        with self._translated():
            state = self._client.get_orchestration_state(instance_id)
        return None if state is None else _instance(state)

    def start(self, name: str, instance_id: str, given: object, over: Instance | None) -> bool:
        """Start an instance, in the place of ``over`` if that is still how it was; return whether it was started.

        Raises:
            Unavailable: the hub does not answer. It may have been started.
        """
        policy = None
        if over is not None:
            policy = OrchestrationIdReusePolicy(replaceableStatus=[_STATUSES[over.phase].value])
        with self._translated():
            try:
                self._client.schedule_new_orchestration(
                    name, input=given, instance_id=instance_id, reuse_id_policy=policy
                )
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.ALREADY_EXISTS:
                    return False
                raise
        return True

    def wait(self, instance_id: str, seconds: float) -> None:
        """Wait until the instance has ended, ``seconds`` at most.

        Raises:
            Unavailable: the hub does not answer.
        """
        with self._translated():
            try:
                self._client.wait_for_orchestration_completion(instance_id, fetch_payloads=False, timeout=seconds)
            except TimeoutError:
                return

    def terminate(self, instance_id: str, reason: str) -> None:
        """Ask the instance, and what it started, to end.

        Raises:
            Unavailable: the hub does not answer.
        """
        with self._translated():
            self._client.terminate_orchestration(instance_id, output=reason)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            code = error.code()
            fact = f"{code.name}: {error.details()}"
            if code in _REFUSALS:
                raise ConfigurationError(
                    f"The task hub at {self._address} refuses the request ({fact}). Check its address and metadata."
                ) from error
            raise Unavailable(
                f"The task hub at {self._address} does not answer ({fact}). Check that it runs and can be reached; the "
                "message comes again."
            ) from error


def _instance(state: OrchestrationState) -> Instance:
    phase = _PHASES.get(state.runtime_status, Phase.RUNNING)
    return Instance(
        phase=phase,
        owner=Owner.in_input(_read(state.serialized_input)),
        created_at=state.created_at.replace(tzinfo=UTC),
        output=_read(state.serialized_output),
        error=_error(state),
    )


def _read(text: str | None) -> object:
    """Return what a payload says. Whatever is not JSON was not written by an orchestrator of ours."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def _error(state: OrchestrationState) -> str:
    """Return what the orchestration failed with, and the kind of the error at the bottom of it."""
    details = state.failure_details
    if details is None:
        reason = _read(state.serialized_output)
        return "" if reason is None else str(reason)
    root = details
    while root.inner_failure is not None:
        root = root.inner_failure
    return f"{root.error_type.rpartition('.')[2]}: {details.message}"


class _CallDetails(NamedTuple):
    """A request's settings, as gRPC's interceptors pass them on."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Deadline(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Gives every request that has none a deadline: a hub that hangs must not hold a delivery."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Pass the request on, bounded."""
        if client_call_details.timeout is None:
            client_call_details = _CallDetails(
                client_call_details.method,
                self._seconds,
                client_call_details.metadata,
                client_call_details.credentials,
                getattr(client_call_details, "wait_for_ready", None),
                getattr(client_call_details, "compression", None),
            )
        return continuation(client_call_details, request)
