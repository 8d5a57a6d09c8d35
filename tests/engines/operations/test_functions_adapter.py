"""One orchestrator on two backends: durabletask's worker over gRPC, and azure-functions-durable's replay."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from azure.durable_functions.models.actions.ActionType import ActionType
from azure.durable_functions.orchestrator import Orchestrator

from holdfast.durable import (
    DurableTasks,
    OperationFailed,
    RetryPolicy,
    TaskFailedError,
    functions_activity,
    functions_orchestrator,
    when_all,
    when_any,
)
from tests.engines.operations.functions_host import FunctionsInstance, Hub, handle_of, outcome_of
from tests.engines.operations.hubs import deliver, message, running_hub

Orchestrator_ = Callable[[Any, Any], Any]


class Activities:
    """What the orchestrators below call. ``flaky`` fails twice for each orchestration."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Any]] = {}
        self._lock = threading.Lock()

    def _called(self, name: str, payload: Any) -> int:
        with self._lock:
            self.calls.setdefault(name, []).append(payload)
            return len(self.calls[name])

    def double(self, ctx: Any, number: int) -> int:
        self._called("double", number)
        return number * 2

    def describe(self, ctx: Any, payload: Any) -> dict[str, Any]:
        return {"kind": type(payload).__name__, "payload": payload}

    def fail(self, ctx: Any, payload: Any) -> None:
        self._called("fail", payload)
        raise ValueError(f"no key for {payload}")

    def flaky(self, ctx: Any, payload: Any) -> str:
        times = self._called("flaky", payload)
        if times < 3:
            raise ValueError(f"failed {times}")
        return f"worked at {times}"

    @property
    def all(self) -> list[Callable[..., Any]]:
        return [self.double, self.describe, self.fail, self.flaky]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an orchestration ended: its output, or that it failed and with which words."""

    output: Any = None
    error: str | None = None


class Backend:
    """Somewhere to run an orchestrator."""

    def __init__(self) -> None:
        self.activities = Activities()

    def run(self, orchestrator: Orchestrator_, payload: Any = None, *others: Orchestrator_) -> Outcome:
        raise NotImplementedError


class HubBackend(Backend):
    """durabletask's worker, and its in-memory hub over gRPC."""

    def run(self, orchestrator: Orchestrator_, payload: Any = None, *others: Orchestrator_) -> Outcome:
        with running_hub() as hub:
            tasks = DurableTasks(hub.address, poll_seconds=0.2)
            for activity in self.activities.all:
                tasks.activity(activity)
            for other in others:
                tasks.orchestrator(other)
            operation = tasks.operation("tls", orchestrator)
            with tasks:
                try:
                    return Outcome(deliver(operation, message("c-1", payload=payload)))
                except OperationFailed as error:
                    return Outcome(error=str(error))


class FunctionsBackend(Backend):
    """azure-functions-durable's replay over the histories that its host would send."""

    instance: FunctionsInstance

    def run(self, orchestrator: Orchestrator_, payload: Any = None, *others: Orchestrator_) -> Outcome:
        self.instance = outcome_of(
            orchestrator,
            json.loads(message("c-1", payload=payload).rendered()),
            activities={function.__name__: functions_activity(function) for function in self.activities.all},
            others={function.__name__: function for function in others},
        )
        if self.instance.status == "Failed":
            return Outcome(error=self.instance.output)
        return Outcome(self.instance.output)


@pytest.fixture(params=[HubBackend, FunctionsBackend], ids=["durabletask", "functions"])
def backend(request: pytest.FixtureRequest) -> Backend:
    made: Backend = request.param()
    return made


def retries(**settings: Any) -> RetryPolicy:
    return RetryPolicy(first_retry_interval=timedelta(milliseconds=10), **settings)


def test_steps_follow_each_other(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        once = yield ctx.call_activity("double", input=given["payload"])
        twice = yield ctx.call_activity(backend.activities.double, input=once)
        return {"twice": twice, "for": given["correlationId"]}

    assert backend.run(op, 3) == Outcome({"twice": 12, "for": "c-1"})


@pytest.mark.parametrize("payload", [{"a": [1, None]}, [1, 2], "text", "7", 7, 1.5, True, None])
def test_inputs_and_results_are_what_was_passed(backend: Backend, payload: Any) -> None:
    def op(ctx: Any, given: Any) -> Any:
        return (yield ctx.call_activity("describe", input=given.get("payload")))

    assert backend.run(op, payload) == Outcome({"kind": type(payload).__name__, "payload": payload})


def test_an_orchestrator_without_a_step_is_done_at_once(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        return [given["payload"]]

    assert backend.run(op, 1) == Outcome([1])


def test_a_failed_step_fails_the_orchestration_with_its_words(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        yield ctx.call_activity("fail", input="a.example")

    failed = backend.run(op)
    assert "no key for a.example" in (failed.error or "")
    assert "ValueError" in (failed.error or "")


def test_a_failed_step_can_be_caught(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        try:
            yield ctx.call_activity("fail", input="a.example")
        except TaskFailedError as error:
            mended = yield ctx.call_activity("double", input=4)
            return {"mended": mended, "told": "no key for a.example" in str(error)}

    assert backend.run(op) == Outcome({"mended": 8, "told": True})


def test_an_error_of_the_orchestrator_itself_fails_it(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        yield ctx.call_activity("double", input=1)
        raise RuntimeError("no such host")

    assert "no such host" in (backend.run(op).error or "")


def test_a_step_is_retried(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        return (yield ctx.call_activity("flaky", input=1, retry_policy=retries(max_number_of_attempts=5)))

    assert backend.run(op) == Outcome("worked at 3")


def test_a_step_is_given_up_after_its_last_attempt(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        try:
            yield ctx.call_activity("fail", input=1, retry_policy=retries(max_number_of_attempts=3))
        except TaskFailedError:
            return "given up"

    assert backend.run(op) == Outcome("given up")
    assert backend.activities.calls["fail"] == [1, 1, 1]


def test_steps_run_beside_each_other_and_their_results_keep_their_order(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        calls = [ctx.call_activity("double", input=number) for number in given["payload"]]
        return (yield when_all(ctx, calls))

    assert backend.run(op, [3, 1, 2]) == Outcome([6, 2, 4])


def test_no_steps_beside_each_other_have_no_results(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        nothing = yield when_all(ctx, [])
        return [nothing, (yield ctx.call_activity("double", input=1))]

    assert backend.run(op) == Outcome([[], 2])


def test_a_failure_among_several_is_told_after_the_others_have_ended(backend: Backend) -> None:
    """Functions' own task_all would go on at the first failure, and leave the others behind."""

    def op(ctx: Any, given: Any) -> Any:
        calls = [ctx.call_activity(name, input=2) for name in ("fail", "double", "double")]
        try:
            yield when_all(ctx, calls)
        except TaskFailedError as error:
            return [call.is_complete for call in calls] + [calls[0].is_failed, "no key for 2" in str(error)]

    assert backend.run(op) == Outcome([True, True, True, True, True])


def test_several_retried_steps_run_beside_each_other(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        policy = retries(max_number_of_attempts=4)
        calls = [ctx.call_activity("flaky", input=1, retry_policy=policy), ctx.call_activity("double", input=2)]
        return (yield when_all(ctx, calls))

    assert backend.run(op) == Outcome(["worked at 3", 4])


def test_the_first_of_several_is_the_task_that_was_passed(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        call = ctx.call_activity("double", input=2)
        timer = ctx.create_timer(timedelta(hours=1))
        first = yield when_any(ctx, [call, timer])
        if first is call:
            timer.cancel()
        return [first is call, first.get_result(), first.result, timer.is_cancelled, timer.is_complete]

    assert backend.run(op) == Outcome([True, 4, 4, True, True])


def test_the_first_of_several_may_have_failed(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        call = ctx.call_activity("fail", input=2)
        first = yield when_any(ctx, [call, ctx.wait_for_external_event("never")])
        try:
            first.get_result()
        except TaskFailedError:
            return [first is call, first.is_failed, type(first.get_exception()).__name__]

    assert backend.run(op) == Outcome([True, True, "TaskFailedError"])


@pytest.mark.parametrize("as_moment", [False, True], ids=["after a while", "at a time"])
def test_a_timer_ends_when_its_time_has_come(backend: Backend, as_moment: bool) -> None:
    def op(ctx: Any, given: Any) -> Any:
        before = ctx.current_utc_datetime
        pause = timedelta(milliseconds=20)
        nothing = yield ctx.create_timer(before + pause if as_moment else pause)
        return [nothing, ctx.current_utc_datetime - before >= pause, before.tzinfo is None]

    assert backend.run(op) == Outcome([None, True, True])


def test_an_orchestrator_calls_another(backend: Backend) -> None:
    def inner(ctx: Any, number: int) -> Any:
        return (yield ctx.call_activity("double", input=number)) + 1

    def op(ctx: Any, given: Any) -> Any:
        one = yield ctx.call_sub_orchestrator(inner, input=1)
        two = yield ctx.call_sub_orchestrator("inner", input=2, instance_id="inner-2")
        return [one, two, ctx.parent_instance_id]

    assert backend.run(op, None, inner) == Outcome([3, 5, None])


def test_a_failing_orchestrator_fails_its_caller(backend: Backend) -> None:
    def inner(ctx: Any, number: int) -> Any:
        return (yield ctx.call_activity("fail", input=number))

    def op(ctx: Any, given: Any) -> Any:
        try:
            yield ctx.call_sub_orchestrator(inner, input=1, retry_policy=retries(max_number_of_attempts=2))
        except TaskFailedError as error:
            return "no key for 1" in str(error)

    assert backend.run(op, None, inner) == Outcome(True)
    assert backend.activities.calls["fail"] == [1, 1]


def test_an_orchestration_continues_as_new_for_the_same_message(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        done = given.get("done", 0)
        yield ctx.call_activity("double", input=done)
        if done < 3:
            ctx.continue_as_new({"done": done + 1})
            return None
        return [done, given["correlationId"]]

    assert backend.run(op) == Outcome([3, "c-1"])
    assert backend.activities.calls["double"] == [0, 1, 2, 3]


def test_what_is_the_same_at_every_replay(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        ids = [ctx.new_uuid(), ctx.new_uuid()]
        seen.append((ctx.instance_id, *ids, ctx.current_utc_datetime))
        ctx.set_custom_status({"at": "first"})
        yield ctx.call_activity("double", input=1)
        return ids[0] != ids[1]

    seen: list[Any] = []
    assert backend.run(op) == Outcome(True)
    assert len(seen) > 1
    assert len(set(seen)) == 1


def test_logs_are_silent_during_replays(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    def op(ctx: Any, given: Any) -> Any:
        log = ctx.create_replay_safe_logger(logging.getLogger("tests.orchestrator"))
        log.warning("begun")
        yield ctx.call_activity("double", input=1)
        log.warning("ended")

    backend.run(op)
    assert [record.message for record in caplog.records if record.name == "tests.orchestrator"] == ["begun", "ended"]


@dataclass
class Certificate:
    """What an activity's result may be read as."""

    kind: str
    payload: Any


def test_a_result_is_read_as_the_type_that_is_asked_for(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        certificate = yield ctx.call_activity("describe", input=7, return_type=Certificate)
        return [type(certificate).__name__, certificate.payload]

    assert backend.run(op) == Outcome(["Certificate", 7])


# Functions alone


def test_an_external_event_ends_its_task_with_its_data() -> None:
    def op(ctx: Any, given: Any) -> Any:
        approval = yield ctx.wait_for_external_event("approval")
        return approval["by"]

    instance = Hub({"op": handle_of(op)}, {}).start("op", "i-1", "{}")
    instance.episode()
    assert instance.status == "Running"
    instance.raise_event("approval", {"by": "anne"})
    assert instance.run().output == "anne"


def test_the_host_is_told_the_whole_retry_policy() -> None:
    def op(ctx: Any, given: Any) -> Any:
        policy = RetryPolicy(
            first_retry_interval=timedelta(seconds=2),
            max_number_of_attempts=4,
            backoff_coefficient=1.5,
            max_retry_interval=timedelta(seconds=3),
        )
        return (yield ctx.call_activity("flaky", input=1, retry_policy=policy))

    functions = FunctionsBackend()
    assert functions.run(op) == Outcome("worked at 3")
    [action] = functions.instance.actions
    assert action["actionType"] == ActionType.CALL_ACTIVITY_WITH_RETRY
    assert action["retryOptions"] == {
        "firstRetryIntervalInMilliseconds": 2000,
        "maxNumberOfAttempts": 4,
        "backoffCoefficient": 1.5,
        "maxRetryIntervalInMilliseconds": 3000,
    }


def _refused(use: Callable[[Any], Any]) -> str:
    def op(ctx: Any, given: Any) -> Any:
        yield use(ctx)

    return FunctionsBackend().run(op).error or ""


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (lambda ctx: ctx.call_activity("double", input=1, tags={"a": "b"}), "has no tags"),
        (lambda ctx: ctx.call_sub_orchestrator("op", version="2"), "has no version"),
        (lambda ctx: ctx.continue_as_new({}, save_events=True), "has no save_events"),
        (lambda ctx: ctx.call_entity("counter", "add"), "uses 'call_entity'"),
        (lambda ctx: 7, "yielded a int, not a task"),
        (
            lambda ctx: ctx.call_activity(
                "double",
                retry_policy=retries(max_number_of_attempts=2, retry_timeout=timedelta(seconds=1)),
            ),
            "has no retry_timeout",
        ),
    ],
)
def test_what_functions_cannot_do_is_refused_with_a_sentence(use: Callable[[Any], Any], sentence: str) -> None:
    assert sentence in _refused(use)


def test_waiting_for_the_first_of_nothing_is_refused(backend: Backend) -> None:
    def op(ctx: Any, given: Any) -> Any:
        yield when_any(ctx, [])

    assert "would never end" in (backend.run(op).error or "")


def test_activities_are_told_that_functions_does_not_know_their_orchestration() -> None:
    def who(ctx: Any, payload: Any) -> Any:
        return ctx.orchestration_id

    with pytest.raises(AttributeError, match="'orchestration_id', which Azure Functions does not tell"):
        functions_activity(who)(None)


def test_functions_sees_the_names_of_the_functions_inside() -> None:
    def renew(ctx: Any, given: Any) -> Any:
        """Renew."""

    assert (functions_orchestrator(renew).__name__, functions_activity(renew).__doc__) == ("renew", "Renew.")
    assert callable(Orchestrator.create(functions_orchestrator(renew)))
