"""Operations on a task hub, over real gRPC: what happens at redeliveries, deaths, lost answers and timeouts."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import ConfigurationError, Conflict, LostLeaseError, MissingDependencyError, Unavailable
from holdfast.durable import DurableTasks, OperationFailed, OperationTimedOut, when_all
from holdfast.engines.operations.instances import input_of
from tests.components.ports import free_port
from tests.components.processes import PythonWorker, wait_until
from tests.components.proxy import FaultProxy
from tests.engines.operations.hubs import Deliveries, Gate, Hub, Lease, context_of, deliver, message, running_hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as found:
        yield found


@pytest.fixture
def deliveries() -> Iterator[Deliveries]:
    made = Deliveries()
    yield made
    made.close()


class Bench:
    """An engine whose operation is one activity that a test controls."""

    def __init__(
        self,
        address: str,
        *,
        is_singleton: bool = False,
        timeout_seconds: float | None = None,
        hosts_worker: bool = True,
    ) -> None:
        self.hosts_worker = hosts_worker
        self.tasks = DurableTasks(address, poll_seconds=0.2, request_seconds=5)
        self.work: Callable[[Any], Any] = lambda payload: payload
        self.executions: list[Any] = []
        self.tasks.activity(self.step)
        self.operation = self.tasks.operation(
            "tls", self.renew, is_singleton=is_singleton, timeout_seconds=timeout_seconds
        )

    def step(self, ctx: Any, payload: Any) -> Any:
        self.executions.append(payload)
        return self.work(payload)

    def renew(self, ctx: Any, given: Any) -> Any:
        done = yield ctx.call_activity("step", input=given["payload"])
        return {"done": done, "for": given["correlationId"]}

    def __enter__(self) -> Bench:
        if self.hosts_worker:
            self.tasks.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.tasks.close()


def behind_proxy(proxy: FaultProxy) -> Bench:
    return Bench(f"127.0.0.1:{proxy.port}", hosts_worker=False)


@pytest.fixture
def bench(hub: Hub) -> Iterator[Bench]:
    with Bench(hub.address) as made:
        yield made


@pytest.fixture
def singleton(hub: Hub) -> Iterator[Bench]:
    with Bench(hub.address, is_singleton=True) as made:
        yield made


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


def test_the_output_is_told_when_the_orchestration_has_ended(bench: Bench) -> None:
    assert deliver(bench.operation, message("c-1", payload=7)) == {"done": 7, "for": "c-1"}


def test_a_message_that_comes_again_gets_the_output_without_another_execution(bench: Bench) -> None:
    """Its worker died before the history was written."""
    for _ in range(2):
        assert deliver(bench.operation, message("c-1", payload=7)) == {"done": 7, "for": "c-1"}
    assert bench.executions == [7]


def test_a_message_that_comes_again_attaches_to_what_runs(bench: Bench, deliveries: Deliveries, gate: Gate) -> None:
    bench.work = gate.pass_through
    first, second = (deliveries.begin(bench.operation, message("c-1", payload=7)) for _ in range(2))
    wait_until(lambda: gate.begun, "the activity to begin")
    gate.open()
    assert first.result(30) == second.result(30) == {"done": 7, "for": "c-1"}
    assert bench.executions == [7]


def test_the_orchestration_outlives_the_worker_that_started_it(bench: Bench, hub: Hub, gate: Gate) -> None:
    """A real process starts it and is killed while it waits; the redelivery attaches and gets the output."""
    bench.work = gate.pass_through
    with PythonWorker("-m", "tests.engines.operations.waiting_worker", hub.address) as worker:
        worker.wait_for_line("waiting")
        wait_until(lambda: gate.begun, "the activity to begin")
        worker.kill()
    gate.open()
    assert deliver(bench.operation, message("c-1", payload=7)) == {"done": 7, "for": "c-1"}
    assert bench.executions == [7]


def test_other_correlation_ids_and_operations_have_orchestrations_of_their_own(bench: Bench) -> None:
    deliver(bench.operation, message("c-1", payload=1))
    deliver(bench.operation, message("c-2", payload=2))
    deliver(bench.operation, message("c-1", payload=3, operation="revoke"))
    assert bench.executions == [1, 2, 3]


def test_a_failure_is_told_with_the_orchestrations_words_and_the_next_delivery_starts_anew(bench: Bench) -> None:
    def fail(payload: Any) -> None:
        raise ValueError("no key")

    bench.work = fail
    with pytest.raises(OperationFailed, match=r"'tls-renew-c-1' failed: ValueError: .*no key"):
        deliver(bench.operation, message("c-1", payload=7))
    bench.work = lambda payload: "mended"
    assert deliver(bench.operation, message("c-1", payload=7)) == {"done": "mended", "for": "c-1"}
    assert bench.executions == [7, 7]


def test_a_message_that_is_lost_is_not_waited_for_and_the_orchestration_goes_on(
    bench: Bench, deliveries: Deliveries, gate: Gate
) -> None:
    bench.work = gate.pass_through
    lease = Lease()
    running = deliveries.begin(bench.operation, message("c-1", payload=7), lease)
    wait_until(lambda: gate.begun, "the activity to begin")
    lease.lose()
    with pytest.raises(LostLeaseError, match="'tls-renew-c-1' goes on"):
        running.result(30)
    gate.open()
    assert deliver(bench.operation, message("c-1", payload=7)) == {"done": 7, "for": "c-1"}
    assert bench.executions == [7]


def test_a_lost_message_starts_nothing(bench: Bench, hub: Hub) -> None:
    lease = Lease()
    lease.lose()
    with pytest.raises(LostLeaseError):
        deliver(bench.operation, message("c-1"), lease)
    assert hub.status("tls-renew-c-1") == "none"


# Singletons


def test_a_singleton_is_busy_with_one_thing_at_a_time(singleton: Bench, deliveries: Deliveries, gate: Gate) -> None:
    singleton.work = gate.pass_through
    first = deliveries.begin(singleton.operation, message("c-1", payload=1, instance_id="a"))
    wait_until(lambda: gate.begun, "the activity to begin")
    with pytest.raises(Conflict, match=r"'tls-a' is at work for correlation id 'c-1'"):
        deliver(singleton.operation, message("c-2", payload=2, instance_id="a"))
    other = deliveries.begin(singleton.operation, message("c-3", payload=3, instance_id="b"))
    again = deliveries.begin(singleton.operation, message("c-1", payload=1, instance_id="a"))
    gate.open()
    assert first.result(30) == again.result(30) == {"done": 1, "for": "c-1"}
    assert other.result(30) == {"done": 3, "for": "c-3"}
    assert sorted(singleton.executions) == [1, 3]


def test_a_singleton_is_free_again_when_it_has_ended(singleton: Bench) -> None:
    def fail(payload: Any) -> None:
        raise ValueError("no key")

    assert deliver(singleton.operation, message("c-1", payload=1)) == {"done": 1, "for": "c-1"}
    singleton.work = fail
    with pytest.raises(OperationFailed):
        deliver(singleton.operation, message("c-2", payload=2))
    singleton.work = lambda payload: payload
    assert deliver(singleton.operation, message("c-3", payload=3)) == {"done": 3, "for": "c-3"}


def test_a_singleton_that_continues_as_new_still_works_for_its_message(hub: Hub, deliveries: Deliveries) -> None:
    gate = Gate()
    tasks = DurableTasks(hub.address, poll_seconds=0.2)

    @tasks.activity
    def hold(ctx: Any, payload: Any) -> Any:
        return gate.pass_through(payload)

    def rounds(ctx: Any, given: Any) -> Any:
        if given.get("round") is None:
            ctx.continue_as_new({"round": 2})
            return None
        return (yield ctx.call_activity(hold, input=given["round"]))

    operation = tasks.operation("tls", rounds, is_singleton=True)
    with tasks:
        first = deliveries.begin(operation, message("c-1"))
        wait_until(lambda: gate.begun, "the second round")
        again = deliveries.begin(operation, message("c-1"))
        with pytest.raises(Conflict, match="'c-1'"):
            deliver(operation, message("c-2"))
        gate.open()
        assert first.result(30) == again.result(30) == 2
    assert gate.begun == [2]


# Time


def test_what_runs_too_long_is_terminated_and_the_delivery_says_so(hub: Hub, gate: Gate) -> None:
    with Bench(hub.address, timeout_seconds=0.3) as bench:
        bench.work = gate.pass_through
        with pytest.raises(
            OperationTimedOut, match=r"'tls-renew-c-1' ran longer than its 0\.3 s\. It was terminated\."
        ):
            deliver(bench.operation, message("c-1", payload=7))
        assert hub.status("tls-renew-c-1") == "terminated"
        gate.open()


def test_what_was_terminated_is_started_anew_by_the_next_delivery(bench: Bench, hub: Hub, gate: Gate) -> None:
    bench.work = gate.pass_through
    deliveries = Deliveries()
    running = deliveries.begin(bench.operation, message("c-1", payload=7))
    wait_until(lambda: gate.begun, "the activity to begin")
    bench.tasks.hub.terminate("tls-renew-c-1", "an operator")
    with pytest.raises(OperationFailed, match="was terminated: an operator"):
        running.result(30)
    deliveries.close()
    gate.open()
    wait_until(lambda: hub.backend.ends == 1, "the activity of the terminated one to end")
    assert deliver(bench.operation, message("c-1", payload=8)) == {"done": 8, "for": "c-1"}


def test_a_wait_lasts_until_the_end_instead_of_asking_again_and_again(
    bench: Bench, deliveries: Deliveries, gate: Gate
) -> None:
    bench.work = gate.pass_through
    running = deliveries.begin(bench.operation, message("c-1", payload=7))
    wait_until(lambda: gate.begun, "the activity to begin")
    hub = bench.tasks.hub
    opener = threading.Timer(0.0, gate.open)
    opener.start()
    hub.wait("tls-renew-c-1", 60)
    found = hub.look("tls-renew-c-1")
    opener.join()
    assert found is not None
    assert found.phase == "completed"
    assert running.result(30) == {"done": 7, "for": "c-1"}


# Faults


def test_a_start_whose_answer_is_lost_is_not_repeated(hub: Hub) -> None:
    with FaultProxy(hub.port) as proxy, behind_proxy(proxy) as behind, Bench(hub.address) as worker:
        sprung = proxy.drop_next_answer(b'"payload"')
        assert deliver(behind.operation, message("c-1", payload=7)) == {"done": 7, "for": "c-1"}
        assert sprung.is_set()
        assert worker.executions == [7]


def test_a_start_over_a_failed_one_whose_answer_is_lost_is_not_repeated(hub: Hub) -> None:
    def fail(payload: Any) -> None:
        raise ValueError("no key")

    with FaultProxy(hub.port) as proxy, behind_proxy(proxy) as behind, Bench(hub.address) as worker:
        worker.work = fail
        with pytest.raises(OperationFailed):
            deliver(worker.operation, message("c-1", payload=7))
        sprung = proxy.drop_next_answer(b'"payload"')
        with pytest.raises(OperationFailed, match="no key"):
            deliver(behind.operation, message("c-1", payload=7))
        assert sprung.is_set()
        assert worker.executions == [7, 7], "the second failure is this delivery's own"


def test_a_start_over_a_failed_one_gives_way_to_a_delivery_that_was_faster(bench: Bench) -> None:
    def fail(payload: Any) -> None:
        raise ValueError("no key")

    bench.work = fail
    asked = message("c-1", payload=7)
    with pytest.raises(OperationFailed):
        deliver(bench.operation, asked)
    seen = bench.tasks.hub.look("tls-renew-c-1")
    bench.work = lambda payload: payload
    deliver(bench.operation, asked)
    assert not bench.tasks.hub.start("renew", "tls-renew-c-1", input_of(asked, context_of(asked)), seen)
    assert deliver(bench.operation, asked) == {"done": 7, "for": "c-1"}
    assert bench.executions == [7, 7]


def test_a_start_that_never_reached_the_hub_is_repeated(hub: Hub) -> None:
    with FaultProxy(hub.port) as proxy, behind_proxy(proxy) as behind, Bench(hub.address) as worker:
        sprung = proxy.drop_next_request(b'"payload"')
        assert deliver(behind.operation, message("c-1", payload=7)) == {"done": 7, "for": "c-1"}
        assert sprung.is_set()
        assert worker.executions == [7]


def test_a_connection_that_breaks_while_it_waits_fails_no_delivery(
    hub: Hub, deliveries: Deliveries, gate: Gate
) -> None:
    with FaultProxy(hub.port) as proxy, behind_proxy(proxy) as behind, Bench(hub.address) as worker:
        worker.work = gate.pass_through
        running = deliveries.begin(behind.operation, message("c-1", payload=7))
        wait_until(lambda: gate.begun, "the activity to begin")
        proxy.cut()
        proxy.pass_through()
        gate.open()
        assert running.result(30) == {"done": 7, "for": "c-1"}
        assert worker.executions == [7]


def test_a_hub_that_is_away_is_told_in_one_sentence() -> None:
    address = f"127.0.0.1:{free_port()}"
    tasks = DurableTasks(address, metadata=[("authorization", "Bearer s3cret")])
    operation = tasks.operation("tls", _nothing)
    with pytest.raises(Unavailable, match=rf"The task hub at {address} does not answer .*Check that it runs") as raised:
        deliver(operation, message())
    assert "s3cret" not in f"{raised.value} {tasks!r}"
    tasks.close()


def test_a_hub_that_hangs_holds_no_delivery(hub: Hub) -> None:
    with FaultProxy(hub.port) as proxy:
        tasks = DurableTasks(f"127.0.0.1:{proxy.port}", request_seconds=0.2)
        operation = tasks.operation("tls", _nothing)
        proxy.blackhole()
        with pytest.raises(Unavailable, match="DEADLINE_EXCEEDED"):
            deliver(operation, message())
        tasks.close()


def test_a_hub_that_refuses_is_a_matter_of_configuration(hub: Hub) -> None:
    tasks = DurableTasks(hub.address)
    operation = tasks.operation("tls", _nothing)
    setattr(hub.backend, "GetInstance", _refuse)  # noqa: B010 - a method, looked up when the server starts
    hub.backend.stop()
    hub.backend.start()
    with pytest.raises(ConfigurationError, match=r"refuses the request \(UNAUTHENTICATED"):
        deliver(operation, message())
    tasks.close()


def _refuse(request: Any, context: Any) -> None:
    import grpc

    context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")


def _nothing(ctx: Any, given: Any) -> None:
    return None


# Registering


def test_names_are_checked_when_they_are_registered(hub: Hub) -> None:
    tasks = DurableTasks(hub.address)

    def step(ctx: Any, given: Any) -> None: ...

    tasks.activity(step)
    tasks.activity(step)
    another = _renamed("step")
    with pytest.raises(ConfigurationError, match="another activity is named 'step'"):
        tasks.activity(another)
    with pytest.raises(ConfigurationError, match="has no name"):
        tasks.operation("tls", lambda ctx, given: None)
    with pytest.raises(ConfigurationError, match="is async def"):
        tasks.activity(_async)
    with pytest.raises(ConfigurationError, match="timeout_seconds=0 must be more than 0"):
        tasks.operation("tls", _nothing, timeout_seconds=0)
    with tasks, pytest.raises(ConfigurationError, match="comes too late"):
        tasks.operation("tls", _nothing)


def _renamed(name: str) -> Callable[..., Any]:
    def function(ctx: Any, given: Any) -> None: ...

    function.__name__ = name
    return function


async def _async(ctx: Any, given: Any) -> None: ...


def test_one_orchestrator_serves_two_engines_and_has_sub_orchestrators(hub: Hub) -> None:
    tasks = DurableTasks(hub.address)

    @tasks.orchestrator
    def double(ctx: Any, number: int) -> int:
        return number * 2

    def both(ctx: Any, given: Any) -> Any:
        calls = [ctx.call_sub_orchestrator(double, input=number) for number in given["payload"]]
        return (yield when_all(ctx, calls))

    tls = tasks.operation("tls", both)
    spn = tasks.operation("spn", both)
    with tasks:
        assert deliver(tls, message("c-1", payload=[1, 2])) == [2, 4]
        assert deliver(spn, message("c-1", engine="spn", payload=[3])) == [6]
        assert deliver(tls, message("c-2", payload=[])) == []


def test_a_worker_leaves_other_applications_orchestrations_alone(hub: Hub, deliveries: Deliveries) -> None:
    with Bench(hub.address) as ours:
        theirs = DurableTasks(hub.address, poll_seconds=0.2)
        handled = threading.Event()

        def elsewhere(ctx: Any, given: Any) -> str:
            handled.set()
            return "theirs"

        operation = theirs.operation("spn", elsewhere)
        waiting = deliveries.begin(operation, message("c-1", engine="spn"))
        wait_until(lambda: theirs.hub.look("spn-renew-c-1"), "the orchestration to be there")
        assert deliver(ours.operation, message("c-1", payload=7)) == {"done": 7, "for": "c-1"}
        assert not handled.is_set()
        with theirs:
            assert waiting.result(30) == "theirs"


def test_a_worker_can_be_started_again(bench: Bench) -> None:
    assert deliver(bench.operation, message("c-1", payload=1)) == {"done": 1, "for": "c-1"}
    bench.tasks.stop()
    bench.tasks.stop()
    bench.tasks.start()
    bench.tasks.start()
    assert deliver(bench.operation, message("c-2", payload=2)) == {"done": 2, "for": "c-2"}


MISSING = """
import sys
sys.modules["durabletask"] = None
import holdfast, holdfast.durable
for use in (holdfast.durable.DurableTasks, lambda: holdfast.durable.RetryPolicy):
    try:
        use()
    except holdfast.MissingDependencyError as error:
        print(error)
loaded = {name.split(".")[0] for name, module in sys.modules.items() if module}
assert not loaded & {"grpc", "azure", "durabletask"}, loaded
"""


def test_without_durabletask_the_sentence_says_what_to_install() -> None:
    told = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True).stdout
    assert told.count("pip install 'holdfast[durable]'") == 2
    assert issubclass(MissingDependencyError, ConfigurationError)
