"""Which orchestration a message's is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import ConfigurationError, Holdfast
from holdfast.engines.operations.instances import ID_LENGTH, Owner, continued_input, input_of, instance_id
from tests.engines.operations.hubs import context_of, message


def test_an_instance_is_named_after_operation_and_correlation_id_or_after_the_singletons_instance() -> None:
    asked = message("c-1", instance_id="tenant-7")
    assert instance_id(asked, is_singleton=False) == "tls-renew-c-1"
    assert instance_id(asked, is_singleton=True) == "tls-tenant-7"


@pytest.mark.parametrize("correlation_id", ["c" * 300, "a/b", "a b", "ä", "#?\\", "@c", "a\nb"])
def test_what_a_backend_refuses_is_told_apart_by_a_digest(correlation_id: str) -> None:
    named = instance_id(message(correlation_id), is_singleton=False)
    assert re.fullmatch(r"tls-renew-[A-Za-z0-9._:-]+", named)
    assert len(named) <= ID_LENGTH
    assert named == instance_id(message(correlation_id, payload={"other": 1}), is_singleton=False)
    assert named != instance_id(message(correlation_id + "x"), is_singleton=False)


def test_the_input_is_the_message_and_tells_its_owner() -> None:
    asked = message("c-1", payload={"host": "a"}, others={"tenant": 7})
    given = input_of(asked, context_of(asked))
    assert given["payload"] == {"host": "a"}
    assert given["tenant"] == 7
    assert Owner.in_input(given) == Owner.of(asked) == Owner("tls", "renew", "c-1")


def test_the_input_of_a_singleton_names_the_job_of_the_registrys_lock(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'test.db'}")
    hf.migrate()
    asked = message("c-1")
    with hf.registry.locked("job-7") as held:
        given = input_of(asked, replace(context_of(asked), registry=held))
        hf.registry.change(given["registryLock"]["jobId"], {"key": 7})  # as an activity in another process does
    view = hf.registry.read()
    assert view is not None
    assert view.state == {"key": 7}
    hf._provider.dispose_all()


@pytest.mark.parametrize("given", [None, 7, "text", [], {}, {"engine": "tls", "operation": "renew"}])
def test_an_input_that_is_no_message_has_no_owner(given: object) -> None:
    assert Owner.in_input(given) is None
    assert continued_input(given, 8) == 8


def test_what_continues_as_new_still_has_its_owner() -> None:
    given = input_of(message("c-1"), context_of(message("c-1")))
    assert Owner.in_input(continued_input(given, {"round": 2})) == Owner("tls", "renew", "c-1")
    assert continued_input(given, {"round": 2, "correlationId": "another"})["correlationId"] == "c-1"  # type: ignore[index]
    with pytest.raises(ConfigurationError, match=r"continues as new with a JSON object, not with int"):
        continued_input(given, 2)
