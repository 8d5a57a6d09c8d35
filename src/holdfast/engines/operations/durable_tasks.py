"""Operations as orchestrations on a task hub that speaks the protocol of Microsoft's Durable Task.

The orchestration belongs to the hub, not to the worker that started it: a worker that dies leaves it running, and the
message that comes again attaches to it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...core.clock import Clock, SystemClock
from ...core.errors import ConfigurationError, LostLeaseError, Unavailable
from ...core.extras import needed
from ...runtime.invocation import Losable
from ..context import EngineContext
from ..messages import EngineMessage
from .delivery import Delivery, Done, Start, Terminate, Wait
from .durabletask_worker import hosted_orchestrator
from .instances import Owner, input_of, instance_id
from .protocol import HubUnavailable, Operation
from .registered_functions import Registering, checked_timeout

if TYPE_CHECKING:
    from durabletask.worker import TaskHubGrpcWorker

    from .task_hub import TaskHub

_log = logging.getLogger("holdfast.engines.durabletask")
_worker_log = _log.getChild("worker")
_worker_log.addFilter(lambda record: "Locally cancelled by application" not in record.getMessage())  # that is a stop
DEFAULT_HOST_ADDRESS = "localhost:4001"


class DurableTasks(Registering):
    """Orchestrators and activities, the worker that hosts them, and the hub they run on.

    Args:
        host_address: the task hub, ``host:port``; durabletask's own default when None.
        metadata: sent with every request, such as an authorization header. Never shown.
        secure_channel: whether to use TLS.
        interceptors: gRPC interceptors of your own, such as one that renews a token.
        request_seconds: how long to wait for an answer of the hub.
        poll_seconds: how long one wait for an orchestration lasts at most before the message's lease is looked at.

    Raises:
        MissingDependencyError: durabletask is not installed.
    """

    def __init__(
        self,
        host_address: str | None = None,
        *,
        metadata: Sequence[tuple[str, str]] = (),
        secure_channel: bool = False,
        interceptors: Sequence[Any] = (),
        request_seconds: float = 10.0,
        poll_seconds: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        with needed("Orchestrations on a task hub need durabletask", "durable"):
            import durabletask.worker  # noqa: F401 - asked for now, so that its absence shows now
        if request_seconds <= 0 or poll_seconds <= 0:
            raise ConfigurationError("DurableTasks: request_seconds and poll_seconds must be more than 0.")
        super().__init__()
        self.host_address = host_address or DEFAULT_HOST_ADDRESS
        self.poll_seconds = poll_seconds
        self.clock: Clock = clock or SystemClock()
        self._metadata = tuple(metadata)
        self._secure_channel = secure_channel
        self._interceptors = tuple(interceptors)
        self._request_seconds = request_seconds
        self._lock = threading.Lock()
        self._hub: TaskHub | None = None
        self._worker: TaskHubGrpcWorker | None = None

    def __repr__(self) -> str:
        return f"DurableTasks({self.host_address!r})"

    def __enter__(self) -> DurableTasks:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def operation(
        self,
        engine: str,
        orchestrator: Callable[[Any, Any], Any],
        *,
        is_singleton: bool = False,
        timeout_seconds: float | None = None,
    ) -> Operation:
        """Register an orchestrator and return the operation that runs it for each message of an engine.

        The orchestrator gets the message as a JSON object. With ``is_singleton`` there is one instance for each of the
        messages' instance ids; otherwise one for each operation and correlation id.

        Raises:
            ConfigurationError: the orchestrator cannot be registered, or a value makes no sense.
        """
        checked_timeout(engine, timeout_seconds)
        name = self._add(self._orchestrators, orchestrator, "orchestrator")
        return _HubOperation(self, name, is_singleton=is_singleton, timeout_seconds=timeout_seconds)

    def start(self) -> None:
        """Start the worker that hosts orchestrators and activities. It waits in the background for a hub that is away.

        What it had under way when its process dies is given to another worker by the hub.
        """
        from durabletask.worker import TaskHubGrpcWorker

        with self._lock:
            if self._worker is not None:
                return
            worker = TaskHubGrpcWorker(
                host_address=self.host_address,
                metadata=list(self._metadata) or None,
                secure_channel=self._secure_channel,
                interceptors=list(self._interceptors) or None,
                logger=_worker_log,
            )
            for activity in self._activities.values():
                worker.add_activity(activity)
            for orchestrator in self._orchestrators.values():
                worker.add_orchestrator(hosted_orchestrator(orchestrator))
            worker.use_work_item_filters()  # another application's orchestrations are not ours to fail
            worker.start()  # type: ignore[no-untyped-call]  # durabletask leaves this one out
            self._worker = worker
            self._is_in_use = True

    def stop(self) -> None:
        """Stop the worker after the activities that run have ended. Harmless when it does not run."""
        with self._lock:
            worker, self._worker = self._worker, None
            self._is_in_use = False
        if worker is not None:
            worker.stop()  # type: ignore[no-untyped-call]  # durabletask leaves this one out

    def close(self) -> None:
        """Stop the worker and close the connection."""
        self.stop()
        with self._lock:
            hub, self._hub = self._hub, None
        if hub is not None:
            hub.close()

    @property
    def hub(self) -> TaskHub:
        """Return the hub, connected at first use."""
        from .task_hub import TaskHub

        with self._lock:
            if self._hub is None:
                self._hub = TaskHub(
                    self.host_address,
                    metadata=self._metadata,
                    secure_channel=self._secure_channel,
                    interceptors=self._interceptors,
                    request_seconds=self._request_seconds,
                )
            return self._hub


class _HubOperation:
    """An operation that is an orchestration on the hub."""

    def __init__(
        self, tasks: DurableTasks, orchestrator: str, *, is_singleton: bool, timeout_seconds: float | None
    ) -> None:
        self._tasks = tasks
        self._orchestrator = orchestrator
        self._is_singleton = is_singleton
        self._timeout_seconds = timeout_seconds

    def run(self, context: EngineContext, message: EngineMessage, lease: Losable) -> object:
        """Start the message's orchestration, or go on with it, and return its output when it has ended.

        Raises:
            AlreadyRunning: the instance is busy with something else.
            LostLeaseError: the message was lost; the orchestration goes on.
            OperationFailed: the orchestration failed during this delivery, or ran too long.
            Unavailable: the hub does not answer.
        """
        name = instance_id(message, is_singleton=self._is_singleton)
        given = input_of(message, context)
        delivery = Delivery(
            name,
            Owner.of(message),
            timeout_seconds=self._timeout_seconds,
            poll_seconds=self._tasks.poll_seconds,
            clock=self._tasks.clock,
        )
        while True:
            if lease.lost.is_set():
                raise LostLeaseError(f"Message {message.message_id} was lost; the orchestration '{name}' goes on.")
            try:
                done = self._advance(delivery, name, given)
            except Unavailable as error:
                self._tasks.clock.wait(lease.lost, _patience(delivery, error))
                continue
            if done is not None:
                return done.output

    def _advance(self, delivery: Delivery, name: str, given: dict[str, Any]) -> Done | None:
        """Take one step; return the end once it is reached."""
        hub = self._tasks.hub
        match delivery.next(hub.look(name)):
            case Done() as done:
                return done
            case Wait(seconds):
                hub.wait(name, seconds)
            case Terminate(reason):
                hub.terminate(name, reason)
            case Start(over):
                self._start(delivery, name, given, over)
        return None

    def _start(self, delivery: Delivery, name: str, given: dict[str, Any], over: Any) -> None:
        try:
            is_started = self._tasks.hub.start(self._orchestrator, name, given, over)
        except Unavailable as error:
            _log.warning("The answer to the start of '%s' was lost, so it is looked for: %s", name, error)
            delivery.unanswered(error)
            return
        if is_started:
            delivery.started()


def _patience(delivery: Delivery, error: Unavailable) -> float:
    """Return how long to wait for a hub that does not answer.

    Raises:
        HubUnavailable: it was long enough for this delivery.
    """
    try:
        return delivery.unreachable(error).seconds
    except Unavailable as given_up:
        raise HubUnavailable(str(given_up)) from given_up
