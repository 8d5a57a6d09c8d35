"""A registry for each instance: a document, a version and a lock of its own; what is the application's stays above."""

from __future__ import annotations

import pytest

from holdfast.core.errors import ConfigurationError, RegistryLocked, UnreadableStateError
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.registry import EngineTablesConfig, Registry
from holdfast.engines.registry_shape import parse, path_segment
from holdfast.engines.runner import Outcome
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.engines.conftest import EVERY_PLACE
from tests.engines.places import ENGINE, Bench, Place


def count_up(context: EngineContext, message: EngineMessage) -> None:
    done = context.registry.registry.get("rotations", 0)
    context.registry.change({"rotations": done + 1})


@EVERY_PLACE
def test_13_9_singletons_change_the_registry_of_the_instance_they_name(singleton: Bench) -> None:
    bench = singleton
    bench.work = count_up
    for number, instance in enumerate(["tenant-1", "tenant-2", "tenant-1"]):
        bench.send(f"m-{number}", f"c-{number}", instanceId=instance)
    bench.send("m-own", "c-own")
    assert set(bench.to_the_end()) == {Outcome.SUCCEEDED}
    found = {name: bench.hf.registry.instance(name).read() for name in ("tenant-1", "tenant-2", None)}
    assert {name: view and view.state for name, view in found.items()} == {
        "tenant-1": {"rotations": 2},
        "tenant-2": {"rotations": 1},
        None: {"rotations": 1},
    }
    tenant = found["tenant-1"]
    assert tenant is not None
    assert tenant.name == f"registry/{bench.place.app_name}/tenant-1.json"
    assert "engineTablesConfig" not in tenant.document
    assert not tenant.lock.job_id, "every lock was given back"


@EVERY_PLACE
def test_13_9_a_lock_of_one_instance_stops_nobody_else(singleton: Bench) -> None:
    bench = singleton
    tenant = bench.hf.registry.instance("tenant-1")
    tenant.acquire("maintenance", duration_seconds=3600)
    bench.send("m-2", "c-2", instanceId="tenant-2")
    bench.send("m-3", "c-3")
    assert bench.to_the_end() == [Outcome.SUCCEEDED] * 2
    bench.send("m-1", "c-1", instanceId="tenant-1")
    assert bench.deliver() is Outcome.CONFLICT
    tenant.release("maintenance")
    assert bench.to_the_end() == [Outcome.SUCCEEDED]


@EVERY_PLACE
def test_13_9_a_killed_singleton_leaves_the_lock_of_its_instance_to_its_message(singleton: Bench) -> None:
    bench = singleton
    bench.send(instanceId="tenant-1")
    assert bench.die_at("executed")
    assert bench.to_the_end()[-1] is Outcome.SUCCEEDED
    view = bench.hf.registry.instance("tenant-1").read()
    assert view is not None
    assert not view.is_locked
    assert bench.hf.registry.read() is None or bench.place.is_azure, "the application's registry was left alone"


@EVERY_PLACE
def test_13_9_an_application_may_keep_to_its_one_registry(place: Place) -> None:
    bench = Bench(place, singleton=True, locks_registry="application")
    bench.work = count_up
    bench.send(instanceId="tenant-1")
    assert bench.deliver() is Outcome.SUCCEEDED
    view = bench.hf.registry.read()
    assert view is not None
    assert view.state == {"rotations": 1}
    assert bench.hf.registry.instance("tenant-1").read() is None


def test_13_9_locks_registry_is_one_of_three(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="must be True, False or 'application'"):
        place.application().engine(ENGINE, locks_registry="tenant")(lambda context, message: None)  # type: ignore[arg-type]  # what is wrong is the point


def test_13_9_where_tables_are_is_told_by_the_applications_registry_only() -> None:
    tenant = Registry(MemoryDocumentStore(), app_name="shop").instance("tenant-1")
    with pytest.raises(ConfigurationError, match="engineTablesConfig is the application's"):
        tenant.init(EngineTablesConfig())
    with tenant.locked("job-7") as held:
        for refused in (
            lambda: held.tables,
            lambda: held.configure_tables(EngineTablesConfig()),
            lambda: tenant.configure_tables("job-7", EngineTablesConfig()),
            lambda: tenant.change("job-7", {}, tables=EngineTablesConfig()),
        ):
            with pytest.raises(ConfigurationError, match="engineTablesConfig is the application's"):
                refused()
        with pytest.raises(RegistryLocked, match="'job-7'"):
            tenant.acquire("job-8")


def test_13_9_no_two_instances_share_a_document() -> None:
    names = ["tenant-1", "Tenant-1", "tenant 1", "tenant/1", "../tenant-1", "ténant-1", "t" * 200, "t" * 199, "."]
    segments = [path_segment(name) for name in names]
    assert segments[0] == "tenant-1"
    assert len({segment.lower() for segment in segments}) == len(names)
    assert not any("/" in segment or ".." in segment or len(segment) > 100 for segment in segments)
    for wrong in ("", "t" * 201, None, 7):
        with pytest.raises(ConfigurationError, match="cannot have a registry"):
            path_segment(wrong)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_13_9_a_registry_with_a_number_that_json_does_not_have_is_unreadable(number: str) -> None:
    with pytest.raises(UnreadableStateError, match="it is not JSON"):
        parse(f'{{"registryVersion": 1, "ratio": {number}}}'.encode(), "registry/shop.json")


@pytest.mark.parametrize(
    "value",
    [float("nan"), [float("inf")], {"deep": [{"ratio": -float("inf")}]}, {"deep": {1: "a", "1": "b"}}, [{True: 1}]],
)
def test_13_9_what_json_does_not_have_is_not_written(value: object) -> None:
    registry = Registry(MemoryDocumentStore(), app_name="shop")
    with pytest.raises(ConfigurationError, match=r"is not JSON.*Nothing was written"):
        registry.init(state={"value": value})
    assert registry.read() is None
    with registry.locked("job-7") as held:
        with pytest.raises(ConfigurationError, match=r"is not JSON.*Nothing was written"):
            held.change({"value": value})
        assert "value" not in held.registry
