"""A stand-in for the host of Azure Durable Functions, which cannot be had: its task hub and its HTTP interface.

The orchestrators that it replays run in the real azure-functions-durable: each episode hands the history over as the
host does, and takes the actions that come back. Activities run here. One completion is delivered per episode.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from azure.durable_functions.models.actions.ActionType import ActionType
from azure.durable_functions.models.history import HistoryEventType as Event
from azure.durable_functions.models.ReplaySchema import ReplaySchema
from azure.durable_functions.orchestrator import Orchestrator

from holdfast.durable import functions_orchestrator

Orchestrate = Callable[[str], str]
_OUT_OF_PROC = "\n\n$OutOfProcData$:"
_SCHEDULED = {
    ActionType.CALL_ACTIVITY: Event.TASK_SCHEDULED,
    ActionType.CALL_ACTIVITY_WITH_RETRY: Event.TASK_SCHEDULED,
    ActionType.CALL_SUB_ORCHESTRATOR: Event.SUB_ORCHESTRATION_INSTANCE_CREATED,
    ActionType.CALL_SUB_ORCHESTRATOR_WITH_RETRY: Event.SUB_ORCHESTRATION_INSTANCE_CREATED,
}


def handle_of(orchestrator: Callable[[Any, Any], Any]) -> Orchestrate:
    """Return what the worker calls for an orchestrator that was written for durabletask."""
    handle: Orchestrate = Orchestrator.create(functions_orchestrator(orchestrator))
    return handle


@dataclass
class Hub:
    """The functions of an app, and the instances of its orchestrators."""

    orchestrators: Mapping[str, Orchestrate]
    activities: Mapping[str, Callable[[Any], Any]]
    instances: dict[str, FunctionsInstance] = field(default_factory=dict)

    def start(self, name: str, instance_id: str | None, given: str | None) -> FunctionsInstance:
        started = FunctionsInstance(self, name, instance_id or uuid.uuid4().hex, given)
        self.instances[started.id] = started
        return started


class FunctionsInstance:
    """One orchestration."""

    def __init__(self, hub: Hub, name: str, instance_id: str, given: str | None, parent: str | None = None) -> None:
        self.hub = hub
        self.name = name
        self.id = instance_id
        self.given = given
        self.parent = parent
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.created_at = datetime.now(UTC)
        self.status = "Pending"
        self.output: Any = None
        self.custom_status: Any = None
        self.actions: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        self._begin()

    def _begin(self) -> None:
        self.history: list[dict[str, Any]] = []
        self._seen = 0
        self._next_id = 0
        self._attempts: dict[int, tuple[dict[str, Any], int]] = {}
        self._timers: dict[int, tuple[dict[str, Any], int]] = {}
        started = self._event(Event.EXECUTION_STARTED, Name=self.name, Input=self.given, Version="")
        self._due = deque([started])

    @property
    def is_ended(self) -> bool:
        return self.status in ("Completed", "Failed", "Terminated")

    def run(self) -> FunctionsInstance:
        """Replay until it has ended, waiting for events and for termination."""
        while not self.is_ended:
            with self.changed:
                assert self.changed.wait_for(lambda: self._due or self.is_ended, 60), f"'{self.id}' waits for ever"
            if not self.is_ended:
                self.episode()
        return self

    def raise_event(self, name: str, data: Any = None) -> None:
        self._deliver(self._event(Event.EVENT_RAISED, Name=name, Input=json.dumps(data)))

    def terminate(self, reason: str) -> None:
        with self.changed:
            if not self.is_ended:
                self.status, self.output = "Terminated", reason
            self.changed.notify_all()

    # Episodes

    def episode(self) -> None:
        """Deliver the next event and do what the orchestrator then asks for."""
        event = self._due.popleft()
        self.now = max(self.now + timedelta(seconds=1), _moment(event.get("FireAt")) or self.now)
        self.history.append(self._event(Event.ORCHESTRATOR_STARTED))
        self.history.append(event)
        self._retry(event)
        state = self._replayed()
        if state is None or self.is_ended:
            return
        self.custom_status = state.get("customStatus", self.custom_status)
        self.actions = list(_leaves(state["actions"][0]))
        fresh, self._seen = self.actions[self._seen :], len(self.actions)
        if fresh and fresh[-1]["actionType"] == ActionType.CONTINUE_AS_NEW:
            self.given = fresh[-1]["input"]
            self._begin()
            return
        if state["isDone"]:
            self._end("Completed", state.get("output"))
            return
        self.status = "Running"
        for action in fresh:
            self._do(action)
        self.history.append(self._event(Event.ORCHESTRATOR_COMPLETED))

    def _replayed(self) -> dict[str, Any] | None:
        body = {
            "history": self.history,
            "input": self.given,
            "instanceId": self.id,
            "isReplaying": len(self.history) > 2,
            "parentInstanceId": self.parent,
            "upperSchemaVersion": ReplaySchema.V3.value,
        }
        try:
            state: dict[str, Any] = json.loads(self.hub.orchestrators[self.name](json.dumps(body)))
        except Exception as error:
            text, mark, _ = str(error).partition(_OUT_OF_PROC)
            if not mark:
                raise  # not an orchestrator's error
            self._end("Failed", f"Orchestrator function '{self.name}' failed: {text}")
            return None
        return state

    def _end(self, status: str, output: Any) -> None:
        with self.changed:
            if not self.is_ended:
                self.status, self.output = status, output
            self.changed.notify_all()

    # What an orchestrator asks for

    def _do(self, action: dict[str, Any]) -> None:
        kind = ActionType(action["actionType"])
        if kind is ActionType.WAIT_FOR_EXTERNAL_EVENT:
            return
        number = self._number()
        if kind is ActionType.CREATE_TIMER:
            self._timer(number, action["fireAt"])
        else:
            self._call(number, action, attempt=1)

    def _call(self, number: int, action: dict[str, Any], attempt: int) -> None:
        kind = ActionType(action["actionType"])
        self.history.append(self._event(_SCHEDULED[kind], number, Name=action["functionName"]))
        if "retryOptions" in action:
            self._attempts[number] = (action, attempt)
        if _SCHEDULED[kind] is Event.TASK_SCHEDULED:
            self._deliver(self._activity(number, action))
        else:
            self._deliver(self._sub_orchestration(number, action))

    def _activity(self, number: int, action: dict[str, Any]) -> dict[str, Any]:
        try:
            result = self.hub.activities[action["functionName"]](json.loads(action["input"]))
        except Exception as error:
            reason = f"Activity function '{action['functionName']}' failed: {type(error).__name__}: {error}"
            return self._event(Event.TASK_FAILED, TaskScheduledId=number, Reason=reason, Details="")
        return self._event(Event.TASK_COMPLETED, TaskScheduledId=number, Result=json.dumps(result))

    def _sub_orchestration(self, number: int, action: dict[str, Any]) -> dict[str, Any]:
        name = action["functionName"]
        child_id = action.get("instanceId") or f"{self.id}:{number:04}"
        child = FunctionsInstance(self.hub, name, child_id, action["input"], parent=self.id).run()
        if child.status == "Failed":
            return self._event(
                Event.SUB_ORCHESTRATION_INSTANCE_FAILED, TaskScheduledId=number, Reason=child.output, Details=""
            )
        result = json.dumps(child.output)
        return self._event(Event.SUB_ORCHESTRATION_INSTANCE_COMPLETED, TaskScheduledId=number, Result=result)

    def _timer(self, number: int, fire_at: str) -> None:
        self.history.append(self._event(Event.TIMER_CREATED, number, FireAt=fire_at))
        self._deliver(self._event(Event.TIMER_FIRED, TimerId=number, FireAt=fire_at))

    def _retry(self, event: dict[str, Any]) -> None:
        """Do the host's part of a retry: a timer after each failure, and the call again when it fires."""
        kind = event["EventType"]
        if kind in (Event.TASK_FAILED, Event.SUB_ORCHESTRATION_INSTANCE_FAILED):
            retried = self._attempts.pop(event["TaskScheduledId"], None)
            if retried is not None:
                number = self._number()
                self._timers[number] = retried
                self._timer(number, _text(self.now + _retry_delay(*retried)))
        elif kind == Event.TIMER_FIRED and event["TimerId"] in self._timers:
            action, attempt = self._timers.pop(event["TimerId"])
            if attempt < action["retryOptions"]["maxNumberOfAttempts"]:
                self._call(self._number(), action, attempt + 1)

    # History

    def _number(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _deliver(self, event: dict[str, Any]) -> None:
        with self.changed:
            self._due.append(event)
            self.changed.notify_all()

    def _event(self, kind: int, number: int = -1, **fields: Any) -> dict[str, Any]:
        return {"EventType": int(kind), "EventId": number, "IsPlayed": False, "Timestamp": _text(self.now), **fields}


def _leaves(actions: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for action in actions:
        if "compoundActions" in action:
            yield from _leaves(action["compoundActions"])
        else:
            yield action


def _retry_delay(action: dict[str, Any], attempt: int) -> timedelta:
    options = action["retryOptions"]
    delay = options["firstRetryIntervalInMilliseconds"] * options.get("backoffCoefficient", 1) ** (attempt - 1)
    return timedelta(milliseconds=min(delay, options.get("maxRetryIntervalInMilliseconds", delay)))


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def outcome_of(
    orchestrator: Callable[[Any, Any], Any],
    given: Any,
    *,
    activities: Mapping[str, Callable[[Any], Any]],
    others: Mapping[str, Callable[[Any, Any], Any]],
) -> FunctionsInstance:
    """Run an orchestrator that was written for durabletask to its end, inside azure-functions-durable."""
    handles = {name: handle_of(function) for name, function in {"main": orchestrator, **others}.items()}
    return Hub(handles, activities).start("main", None, json.dumps(given)).run()


# The host's HTTP interface


class FunctionsServer(ThreadingHTTPServer):
    """What ``DurableOrchestrationClient`` talks to."""

    daemon_threads = True

    def __init__(self, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.hub = hub
        self.starts: list[str] = []
        self.lost_answers = 0
        self.threads: list[threading.Thread] = []

    @property
    def binding(self) -> str:
        """What the host passes for a durable client binding."""
        base = f"http://127.0.0.1:{self.server_port}/"
        return json.dumps({"taskHubName": "tests", "creationUrls": {}, "managementUrls": {}, "rpcBaseUrl": base})

    def begin(self, name: str, instance_id: str, given: str) -> None:
        self.starts.append(instance_id)
        started = self.hub.start(name, instance_id, given)
        thread = threading.Thread(target=started.run, daemon=True)
        self.threads.append(thread)
        thread.start()


@contextmanager
def functions_server(hub: Hub) -> Iterator[FunctionsServer]:
    with FunctionsServer(hub) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            for instance in hub.instances.values():
                instance.terminate("the test has ended")
            for running in server.threads:
                running.join(30)
            server.shutdown()
            thread.join()


class _Requests(BaseHTTPRequestHandler):
    server: FunctionsServer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        instance_id = urlsplit(self.path).path.removeprefix("/instances/")
        found = self.server.hub.instances.get(instance_id)
        if found is None:
            self._answer(404, f"No instance with ID '{instance_id}' found.")
            return
        shown = {
            "name": found.name,
            "instanceId": found.id,
            "createdTime": found.created_at.isoformat(),
            "lastUpdatedTime": found.created_at.isoformat(),
            "runtimeStatus": found.status,
            "output": found.output,
            "customStatus": found.custom_status,
            "input": found.given if "showInput" in self.path else None,
        }
        self._answer(200 if found.is_ended else 202, shown)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        match parts.path.strip("/").split("/"):
            case ["orchestrators", name, instance_id]:
                self._start(name, instance_id, json.loads(body))
            case ["instances", instance_id, "terminate"]:
                self.server.hub.instances[instance_id].terminate(parse_qs(parts.query)["reason"][0])
                self._answer(202, {})
            case _:
                self._answer(404, {})

    def _start(self, name: str, instance_id: str, given: str) -> None:
        found = self.server.hub.instances.get(instance_id)
        if name not in self.server.hub.orchestrators:
            self._answer(400, {"ExceptionMessage": f"The function '{name}' doesn't exist"})
        elif found is not None and not found.is_ended:
            self._answer(409, {"Message": f"An instance with ID '{instance_id}' already exists"})
        else:
            self.server.begin(name, instance_id, given)
            if self.server.lost_answers:
                self.server.lost_answers -= 1
                self.close_connection = True
                return
            self._answer(202, {"id": instance_id})

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
