"""Section 1.8, the singleton and the registry's lock. 50 starts at once and holders that sleep: test_singletons.py."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.core.errors import RegistryLocked
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.registry import LockView
from holdfast.engines.runner import Outcome
from tests.components.processes import wait_until
from tests.engines.places import Bench, Place


def lock_of(bench: Bench) -> LockView:
    view = bench.hf.registry.read()
    assert view is not None
    return view.lock


def test_1_8_layer_1_a_second_start_of_an_instance_is_a_409(place: Place) -> None:
    bench = Bench(place, singleton=True, locks_registry=False)
    bench.send("m-1", "c-1", instanceId="i-1")
    bench.send("m-2", "c-2", instanceId="i-1")
    second: list[Outcome] = []

    def meanwhile(context: EngineContext, message: EngineMessage) -> None:
        bench.work = lambda *given: None
        queue = bench.queue
        [other] = queue.receive(1, 30)
        second.append(bench.flow(queue).handle(other))

    bench.work = meanwhile
    assert bench.deliver() is Outcome.SUCCEEDED
    assert second == [Outcome.CONFLICT]
    assert bench.deliver() is Outcome.SUCCEEDED, "free again when it ends"


def test_1_8_layer_2_a_locked_registry_is_a_409(singleton: Bench) -> None:
    singleton.hf.registry.acquire("another", duration_seconds=50)
    singleton.send()
    assert singleton.deliver() is Outcome.CONFLICT
    assert (singleton.executions, singleton.history, singleton.letters) == ([], [], [])
    assert lock_of(singleton).job_id == "another"
    singleton.place.let_time_pass()
    assert singleton.deliver() is Outcome.SUCCEEDED


def test_1_8_layer_2_the_lock_names_its_job_and_its_end(singleton: Bench) -> None:
    seen: list[LockView] = []
    before = singleton.place.clock.now()

    def work(context: EngineContext, message: EngineMessage) -> None:
        seen.append(lock_of(singleton))

    singleton.work = work
    singleton.send()
    assert singleton.deliver() is Outcome.SUCCEEDED
    [lock] = seen
    assert lock.job_id.startswith("hmac-")
    assert lock.duration_seconds == 60
    assert lock.until is not None
    assert lock.until >= before + timedelta(seconds=60)


def test_1_8_step_1_the_count_is_looked_at_before_the_lock(singleton: Bench) -> None:
    singleton.hf.registry.acquire("another", duration_seconds=3600)
    singleton.send()
    singleton.lose_workers(2)
    assert singleton.deliver() is Outcome.DEAD_LETTERED
    assert lock_of(singleton).job_id == "another", "its lock is left alone"


def test_1_8_step_4_taking_the_lock_is_a_cas_on_the_registrys_version(singleton: Bench) -> None:
    singleton.hf.registry.acquire("setup", duration_seconds=50)
    singleton.hf.registry.release("setup")
    view = singleton.hf.registry.read()
    assert view is not None
    versions: list[int] = []

    def work(context: EngineContext, message: EngineMessage) -> None:
        found = singleton.hf.registry.read()
        assert found is not None
        versions.append(found.version)

    singleton.work = work
    singleton.send()
    singleton.deliver()
    assert versions == [view.version + 1]


def test_1_8_step_5_only_the_holder_changes_the_registry(singleton: Bench) -> None:
    refused: list[str] = []

    def work(context: EngineContext, message: EngineMessage) -> None:
        context.registry.change({"keyVersion": 8})
        with pytest.raises(RegistryLocked) as error:
            singleton.hf.registry.change("another", {"keyVersion": 9})
        refused.append(error.value.holder_job_id)

    singleton.work = work
    singleton.send()
    assert singleton.deliver() is Outcome.SUCCEEDED
    view = singleton.hf.registry.read()
    assert view is not None
    assert view.state["keyVersion"] == 8
    assert refused[0].startswith("hmac-")
    with pytest.raises(RegistryLocked):
        singleton.hf.registry.change(refused[0], {"keyVersion": 10})


@pytest.mark.parametrize("fails", [False, True], ids=["success", "failure"])
def test_1_8_step_6_the_lock_is_released_in_any_case(singleton: Bench, fails: bool) -> None:
    singleton.fails = lambda context: fails
    singleton.send()
    assert singleton.deliver() is (Outcome.RETRIED if fails else Outcome.SUCCEEDED)
    lock = lock_of(singleton)
    assert (lock.job_id, lock.until) == ("", None)


def test_1_8_the_history_is_written_while_the_lock_is_held(singleton: Bench) -> None:
    holders: list[str] = []
    singleton.send()
    queue = singleton.queue

    def reached(boundary: str) -> None:
        if boundary == "executed":
            holders.append(lock_of(singleton).job_id)

    assert singleton.flow(queue, reached).handle(singleton.next(queue)) is Outcome.SUCCEEDED
    assert holders[0].startswith("hmac-")


def test_1_8_the_lock_is_extended_while_the_operation_runs(singleton: Bench) -> None:
    def work(context: EngineContext, message: EngineMessage) -> None:
        until = lock_of(singleton).until
        assert until is not None
        for _ in range(6):
            singleton.place.clock.advance(10.5)
            wait_for_extension(singleton, until)
            until = lock_of(singleton).until
            assert until is not None

    singleton.work = work
    singleton.send()
    assert singleton.deliver() is Outcome.SUCCEEDED, "it took longer than its lock lasts"


def wait_for_extension(bench: Bench, until: object) -> None:
    """Let the heartbeats of lock and lease, both due by now or soon, have their turn."""

    def is_extended() -> bool:
        bench.place.clock.advance(0.5)
        return lock_of(bench).until != until

    wait_until(is_extended, "the lock to be extended")


def test_1_8_automatic_expiration_frees_the_lock_of_a_dead_holder(singleton: Bench) -> None:
    singleton.send("m-1", "c-1")
    assert singleton.die_at("alone")
    singleton.send("m-2", "c-2")
    queue = singleton.queue
    [other] = queue.receive(1, 30)
    assert singleton.flow(queue).handle(other) is Outcome.CONFLICT
    singleton.place.let_time_pass()
    singleton.to_the_end()
    assert (singleton.ends("c-1"), singleton.ends("c-2")) == (["Succeeded"], ["Succeeded"])
