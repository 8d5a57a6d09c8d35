"""An application's own instance is that of messages which name none; a singleton at work is found before sending."""

from __future__ import annotations

import pytest
from anyio.from_thread import start_blocking_portal

from holdfast import Holdfast
from holdfast.core.errors import AlreadyRunning, ConfigurationError, RegistryLocked
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.runner import Outcome
from tests.api.clients import Office
from tests.engines.conftest import EVERY_PLACE
from tests.engines.places import ENGINE, Bench, Place


@EVERY_PLACE
def test_13_9_messages_that_name_no_instance_are_about_the_applications_own(place: Place) -> None:
    place.instance_id = "tenant-1"
    bench = Bench(place, singleton=True, lock_seconds=60)
    bench.work = lambda context, message: context.registry.change({"seen": message.message_id})
    bench.send("m-raw", "c-raw")
    assert bench.deliver() is Outcome.SUCCEEDED
    bench.hf.engines.send(ENGINE, message_id="m-sent")
    assert bench.deliver() is Outcome.SUCCEEDED
    bench.send("m-other", "c-other", instanceId="tenant-2")
    assert bench.deliver() is Outcome.SUCCEEDED
    assert [message.instance_id for message in bench.executions] == ["tenant-1", "tenant-1", "tenant-2"]
    view = bench.hf.registry.instance("tenant-1").read()
    assert view is not None
    assert view.state == {"seen": "m-sent"}


@pytest.mark.parametrize("wrong", ["", "x" * 201, 7, "a\x00b"])
def test_13_9_an_instance_that_no_message_could_name_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="instance_id"):
        Holdfast("sqlite:///none.db", instance_id=wrong)  # type: ignore[arg-type]  # what is wrong is the point


@EVERY_PLACE
def test_13_9_a_singleton_at_work_is_found_before_a_message_is_sent(singleton: Bench) -> None:
    bench = singleton
    found: list[object] = []

    def look(context: EngineContext, message: EngineMessage) -> None:
        for instance in ("tenant-1", "tenant-2"):
            try:
                bench.hf.engines.require_idle(ENGINE, instance_id=instance)
            except (AlreadyRunning, RegistryLocked) as error:
                found.append(type(error))
            else:
                found.append(None)

    bench.work = look
    bench.send(instanceId="tenant-1")
    assert bench.deliver() is Outcome.SUCCEEDED
    assert found == [RegistryLocked, None]
    bench.hf.engines.require_idle(ENGINE, instance_id="tenant-1")


@EVERY_PLACE
def test_13_9_without_a_registry_the_lease_tells_that_it_runs(place: Place) -> None:
    bench = Bench(place, singleton=True, locks_registry=False)

    def look(context: EngineContext, message: EngineMessage) -> None:
        with pytest.raises(AlreadyRunning, match="'hmac-tenant-1' is running already"):
            bench.hf.engines.require_idle(ENGINE, instance_id="tenant-1")

    bench.work = look
    bench.send(instanceId="tenant-1")
    assert bench.deliver() is Outcome.SUCCEEDED


@EVERY_PLACE
def test_13_9_the_api_answers_409_while_the_singleton_runs_although_no_registry_is_locked(place: Place) -> None:
    bench = Bench(place, singleton=True, locks_registry=False)
    answers: list[tuple[int, str, str | None]] = []
    path = f"/api/engines/{ENGINE}/messages?ifRunning=reject"

    def ask(context: EngineContext, message: EngineMessage) -> None:
        refused = office.operator("POST", path, json={"payload": 1, "instanceId": "tenant-1"})
        answers.append(refused.refusal)
        assert "'hmac-tenant-1' is running already" in refused.body["error"]["message"]

    bench.work = ask
    bench.send(instanceId="tenant-1")
    with start_blocking_portal() as portal:
        office = Office(bench.hf, portal)
        assert bench.deliver() is Outcome.SUCCEEDED
        assert answers == [(409, "CONFLICT", "hmac-tenant-1")]
        assert office.audited() == []
        assert bench.receive() is None, "nothing was sent"
        assert office.operator("POST", path, json={"payload": 1, "instanceId": "tenant-1"}).status == 202
