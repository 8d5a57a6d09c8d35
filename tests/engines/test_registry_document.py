"""Every state the registry's functions can reach keeps the rules; with any one guard gone, the exploration notices.

Shows [REGISTRY-1], [REGISTRY-2], [REGISTRY-3] and [REGISTRY-4].
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # it comes without types

from holdfast.core.errors import ConfigurationError, Conflict, RegistryLocked, UnreadableStateError
from holdfast.core.types import FencingToken
from holdfast.engines import registry_document as doc
from holdfast.engines.registry_document import Holder
from holdfast.engines.registry_shape import (
    Document,
    EngineTablesConfig,
    LockView,
    json_schema,
    lock_of,
    parse,
    tables_of,
)
from holdfast.lease.document import render
from tests.engines import registry_exploration
from tests.engines.registry_exploration import Violation, explore

DEPTH = 6
LEAST_STATES = 10_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)
VALIDATOR = Draft202012Validator(json_schema(), format_checker=Draft202012Validator.FORMAT_CHECKER)


def test_every_reachable_state_keeps_the_rules() -> None:
    assert explore(DEPTH) >= LEAST_STATES


@pytest.mark.prove
def test_every_reachable_state_keeps_the_rules_further_out() -> None:
    assert explore(8) >= 150_000


def test_every_reachable_document_fits_the_schema() -> None:
    explore(4, lambda world: VALIDATOR.validate(world.document))


# Planted faults: each guard taken away in turn


def _ignoring_the_margin(self: LockView, now: datetime, skew_margin: timedelta = timedelta()) -> bool:
    return self.until is not None and now < self.until


def _never_valid(self: LockView, now: datetime, skew_margin: timedelta = timedelta()) -> bool:
    return False


def _never_over(self: LockView, now: datetime, skew_margin: timedelta = timedelta()) -> bool:
    return self.until is not None


def _valid_at_its_end(self: LockView, now: datetime, skew_margin: timedelta = timedelta()) -> bool:
    return self.until is not None and now - skew_margin <= self.until


@pytest.mark.parametrize("planted", [_ignoring_the_margin, _never_valid, _never_over, _valid_at_its_end])
def test_a_broken_look_at_the_time_is_found(monkeypatch: pytest.MonkeyPatch, planted: Callable[..., bool]) -> None:
    monkeypatch.setattr(LockView, "is_valid", planted)
    with pytest.raises(Violation):
        explore(DEPTH)


def _without_job_guard(lock: LockView, holder: Holder) -> None:
    if not lock.job_id or holder.fencing_token not in (None, lock.fencing_token):
        raise RegistryLocked("planted")


def _without_token_guard(lock: LockView, holder: Holder) -> None:
    if lock.job_id != holder.job_id:
        raise RegistryLocked("planted")


def _without_any_guard(lock: LockView, holder: Holder) -> None:
    return


@pytest.mark.parametrize("command", ["change", "configure_tables", "extend_lock", "release_lock"])
@pytest.mark.parametrize("planted", [_without_job_guard, _without_token_guard, _without_any_guard])
def test_a_missing_guard_of_the_holder_is_found(
    monkeypatch: pytest.MonkeyPatch, planted: Callable[..., None], command: str
) -> None:
    _with(monkeypatch, command, "_require_holder", planted)
    with pytest.raises(Violation):
        explore(DEPTH)


@pytest.mark.parametrize("command", ["change", "configure_tables", "extend_lock"])
def test_a_write_under_a_lock_that_ran_out_is_found(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    def planted(document: Document, holder: Holder, now: datetime) -> LockView:
        lock = lock_of(document)
        doc._require_holder(lock, holder)
        return lock

    _with(monkeypatch, command, "_require_valid", planted)
    with pytest.raises(Violation):
        explore(DEPTH)


def test_taking_a_valid_lock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doc, "require_free", lambda document, **kwargs: None)
    with pytest.raises(Violation, match="ben acquires"):
        explore(DEPTH)


def test_a_job_that_cannot_take_its_own_lock_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = doc.require_free
    monkeypatch.setattr(doc, "require_free", lambda document, **kwargs: guarded(document, **{**kwargs, "job_id": None}))
    with pytest.raises(Violation, match="refused"):
        explore(DEPTH)


class _AnyLock:
    """What an operator has seen, and takes for whatever lock is there."""

    def __init__(self, *ignored: str) -> None:
        self._ignored = ignored

    def __call__(self, document: Document, seen: LockView) -> Document:
        lock = lock_of(document)
        if lock.job_id and any(
            getattr(lock, name) != getattr(seen, name)
            for name in ("job_id", "fencing_token")
            if name not in self._ignored
        ):
            raise RegistryLocked("planted")
        return doc.release_lock(document, Holder(lock.job_id, lock.fencing_token))


@pytest.mark.parametrize("ignored", [("fencing_token",), ("job_id", "fencing_token")])
def test_unlocking_another_lock_than_was_seen_is_found(
    monkeypatch: pytest.MonkeyPatch, ignored: tuple[str, ...]
) -> None:
    monkeypatch.setattr(doc, "force_unlock", _AnyLock(*ignored))
    with pytest.raises(Violation, match="operator unlocks"):
        explore(DEPTH)


def test_a_store_without_conditions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_exploration, "is_still", lambda document, version: True)
    with pytest.raises(Violation):
        explore(DEPTH)


def _version_stays(changed: Document, before: Document) -> Document:
    return {**changed, "registryVersion": before["registryVersion"]}


def _field_dropped(changed: Document, before: Document) -> Document:
    return {name: value for name, value in changed.items() if name != "field"}


def _lock_field_dropped(changed: Document, before: Document) -> Document:
    lock = {name: value for name, value in changed["instanceLock"].items() if name != "fromElsewhere"}
    return {**changed, "instanceLock": lock}


def _config_field_dropped(changed: Document, before: Document) -> Document:
    return {**changed, "engineTablesConfig": EngineTablesConfig().as_json()}


def _job_stays(changed: Document, before: Document) -> Document:
    return {**changed, "instanceLock": {**before["instanceLock"]}}


def _token_stays(changed: Document, before: Document) -> Document:
    return {**changed, "instanceLock": {**changed["instanceLock"], "lockFencingToken": 1}}


def _end_stays(changed: Document, before: Document) -> Document:
    end = before["instanceLock"]["lockUntilUtc"] or changed["instanceLock"]["lockUntilUtc"]
    return {**changed, "instanceLock": {**changed["instanceLock"], "lockUntilUtc": end}}


def _lock_touched(changed: Document, before: Document) -> Document:
    return {**changed, "instanceLock": {**changed["instanceLock"], "lockJobId": "ben"}}


@pytest.mark.parametrize(
    ("command", "change"),
    [
        ("acquire_lock", _version_stays),
        ("extend_lock", _version_stays),
        ("change", _version_stays),
        ("configure_tables", _version_stays),
        ("release_lock", _version_stays),
        ("force_unlock", _version_stays),
        ("change", _field_dropped),
        ("acquire_lock", _lock_field_dropped),
        ("release_lock", _lock_field_dropped),
        ("configure_tables", _config_field_dropped),
        ("release_lock", _job_stays),
        ("force_unlock", _job_stays),
        ("acquire_lock", _token_stays),
        ("acquire_lock", _end_stays),
        ("extend_lock", _end_stays),
        ("change", _lock_touched),
    ],
)
def test_a_broken_change_is_found(
    monkeypatch: pytest.MonkeyPatch, command: str, change: Callable[[Document, Document], Document]
) -> None:
    original = getattr(doc, command)

    def planted(document: Document, *args: Any, **kwargs: Any) -> Document:
        return change(original(document, *args, **kwargs), document)

    monkeypatch.setattr(doc, command, planted)
    with pytest.raises(Violation):
        explore(DEPTH)


def _with(monkeypatch: pytest.MonkeyPatch, command: str, guard: str, planted: Callable[..., object]) -> None:
    """Take a guard away from one command only."""
    guarded, original = getattr(doc, guard), getattr(doc, command)

    def with_planted_bug(*args: Any, **kwargs: Any) -> Document:
        monkeypatch.setattr(doc, guard, planted)
        try:
            changed: Document = original(*args, **kwargs)
        finally:
            monkeypatch.setattr(doc, guard, guarded)
        return changed

    monkeypatch.setattr(doc, command, with_planted_bug)


# What a document looks like, and what is refused


def locked(job_id: str = "job-7", **options: Any) -> Document:
    return doc.acquire_lock(doc.initial(), job_id, now=NOW, **options)


def test_a_new_registry_is_the_standards() -> None:
    assert doc.initial(EngineTablesConfig(storage_account_name="shopstorage")) == {
        "registryVersion": 1,
        "instanceLock": {"lockJobId": "", "lockDurationSeconds": 3600, "lockUntilUtc": ""},
        "engineTablesConfig": {
            "storageAccountName": "shopstorage",
            "dlqTableName": "engineDlq",
            "historyTableName": "engineHistory",
            "retentionDays": 90,
        },
    }


def test_a_lock_says_whose_it_is_and_until_when() -> None:
    assert locked()["instanceLock"] == {
        "lockJobId": "job-7",
        "lockDurationSeconds": 3600,
        "lockUntilUtc": "2026-01-01T01:00:00.000000Z",
        "lockFencingToken": 2,
    }


def test_a_released_lock_is_as_if_it_had_never_been() -> None:
    released = doc.release_lock(locked(), Holder("job-7"))
    assert released == {**doc.initial(), "registryVersion": 3}
    assert doc.release_lock(released, Holder("job-7")) is released


def test_a_refusal_names_the_holder_and_until_when_and_is_a_conflict() -> None:
    with pytest.raises(RegistryLocked, match=r"'job-7' until 2026-01-01T01:00:00\.000000Z") as caught:
        doc.acquire_lock(locked(), "job-8", now=NOW)
    assert isinstance(caught.value, Conflict)
    assert caught.value.holder_job_id == "job-7"
    assert caught.value.locked_until == NOW + timedelta(hours=1)


def test_a_second_acquisition_never_shortens_the_lock() -> None:
    again = doc.acquire_lock(locked(), "job-7", now=NOW, duration_seconds=60)
    assert lock_of(again).until == NOW + timedelta(hours=1)
    assert lock_of(again).fencing_token == lock_of(locked()).fencing_token
    assert again["registryVersion"] == 3


def test_an_extension_keeps_the_duration_of_the_lock_unless_told_otherwise() -> None:
    document = locked(duration_seconds=90)
    later = NOW + timedelta(seconds=30)
    assert lock_of(doc.extend_lock(document, Holder("job-7"), now=later)).until == NOW + timedelta(seconds=120)
    longer = doc.extend_lock(document, Holder("job-7"), now=later, duration_seconds=200)
    assert lock_of(longer).until == NOW + timedelta(seconds=230)
    shorter = doc.extend_lock(document, Holder("job-7"), now=later, duration_seconds=1)
    assert lock_of(shorter).until == NOW + timedelta(seconds=90)


def test_a_lock_taken_by_a_program_without_tokens_is_respected() -> None:
    foreign = {**doc.initial(), "instanceLock": {"lockJobId": "job-7", "lockUntilUtc": "2026-01-01T00:10:00.0000000Z"}}
    with pytest.raises(RegistryLocked, match="job-7"):
        doc.acquire_lock(foreign, "job-8", now=NOW)
    assert doc.change(foreign, Holder("job-7"), {"a": 1}, now=NOW)["a"] == 1
    with pytest.raises(RegistryLocked, match="later run"):
        doc.change(foreign, Holder("job-7", FencingToken(2)), {"a": 1}, now=NOW)


def test_a_change_sets_and_removes_whole_fields() -> None:
    document = doc.change(locked(), Holder("job-7"), {"a": {"x": 1}, "b": None}, now=NOW)
    changed = doc.change(document, Holder("job-7"), {"a": {"y": 2}}, now=NOW, remove=["b", "unknown"])
    assert changed["a"] == {"y": 2}
    assert "b" not in changed


def test_what_was_given_can_be_changed_afterwards() -> None:
    given = {"a": [1]}
    document = doc.change(locked(), Holder("job-7"), given, now=NOW)
    given["a"].append(2)
    assert document["a"] == [1]


@pytest.mark.parametrize(
    "changes",
    [
        {"registryVersion": 9},
        {"instanceLock": {}},
        {"engineTablesConfig": {}},
        {"recentWriteIds": []},
        {"": 1},
        {7: 1},
        {"a": NOW},
        {"a": float("nan")},
        {"a": "\ud800"},
        {"a": {1, 2}},
    ],
)
def test_what_a_registry_cannot_take_is_refused(changes: dict[Any, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Nothing was written"):
        doc.change(locked(), Holder("job-7"), changes, now=NOW)
    with pytest.raises(ConfigurationError):
        doc.initial(state=changes)


def test_what_the_registry_keeps_itself_cannot_be_removed() -> None:
    with pytest.raises(ConfigurationError, match="instanceLock"):
        doc.change(locked(), Holder("job-7"), {}, now=NOW, remove=["instanceLock"])


@pytest.mark.parametrize("job_id", ["", " ", " a", "a ", "a\nb", "a\x00", "x" * 201, "\ud800", None, 7])
def test_a_job_id_that_cannot_hold_a_lock_is_refused(job_id: Any) -> None:
    with pytest.raises(ConfigurationError, match="job id"):
        doc.acquire_lock(doc.initial(), job_id, now=NOW)


@pytest.mark.parametrize("job_id", ["a", "update-tenant 7", "é/日本語#?", "x" * 200])
def test_a_job_id_may_be_any_text(job_id: str) -> None:
    assert lock_of(parse(render(locked(job_id)), "r")).job_id == job_id


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 32 * 24 * 3600, True, "60"])
def test_a_duration_that_makes_no_sense_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot last"):
        locked(duration_seconds=seconds)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"storage_account_name": "No Such"}, "storage account"),
        ({"storage_account_name": None}, "storage account"),
        ({"dlq_table_name": "engine-dlq"}, "no name for an Azure table"),
        ({"history_table_name": ""}, "no name for an Azure table"),
        ({"history_table_name": "engineDlq"}, "cannot both be"),
        ({"retention_days": -1}, "retentionDays"),
        ({"retention_days": True}, "retentionDays"),
        ({"retention_days": float("inf")}, "retentionDays"),
    ],
)
def test_tables_that_cannot_be_are_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        EngineTablesConfig(**wrong)


def test_tables_are_told_as_configured() -> None:
    tables = EngineTablesConfig(storage_account_name="shopstorage", retention_days=30)
    configured = doc.configure_tables(locked(), Holder("job-7"), tables, now=NOW)
    assert tables_of(configured) == tables
    assert tables_of({"registryVersion": 1}) == EngineTablesConfig()
    with pytest.raises(UnreadableStateError, match="retentionDays"):
        tables_of({"registryVersion": 1, "engineTablesConfig": {"retentionDays": "90"}})


@pytest.mark.parametrize(
    "content",
    [
        '{"registryVersion": 0}',
        '{"registryVersion": 3, "instanceLock": {"lockJobId": "", "lockDurationSeconds": 3600, "lockUntilUtc": ""}}',
        '{"registryVersion": 3, "instanceLock": {"lockJobId": "a", "lockUntilUtc": "2026-01-01T00:00:00Z"}, "x": [1]}',
    ],
)
def test_what_the_schema_takes_is_read(content: str) -> None:
    VALIDATOR.validate(json.loads(content))
    assert render(parse(content.encode(), "r")) == json.dumps(json.loads(content), separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "not JSON"),
        ("[]", "registryVersion"),
        ("{}", "registryVersion"),
        ('{"registryVersion": "3"}', "registryVersion"),
        ('{"registryVersion": true}', "registryVersion"),
        ('{"registryVersion": -1}', "registryVersion"),
        ('{"registryVersion": 1, "x": NaN}', "not JSON"),
        ('{"registryVersion": 1, "instanceLock": "a"}', "instanceLock"),
        ('{"registryVersion": 1, "instanceLock": {"lockJobId": 7}}', "instanceLock"),
        ('{"registryVersion": 1, "instanceLock": {"lockJobId": "a"}}', "instanceLock"),
        ('{"registryVersion": 1, "instanceLock": {"lockJobId": "a", "lockUntilUtc": ""}}', "instanceLock"),
        ('{"registryVersion": 1, "instanceLock": {"lockJobId": "a", "lockUntilUtc": "soon"}}', "instanceLock"),
        ('{"registryVersion": 1, "instanceLock": {"lockFencingToken": "1"}}', "instanceLock"),
        ('{"registryVersion": 1, "instanceLock": {"lockDurationSeconds": "x"}}', "instanceLock"),
    ],
)
def test_what_is_no_registry_is_told_in_one_sentence(content: str, told: str) -> None:
    with pytest.raises(UnreadableStateError, match=told) as caught:
        parse(content.encode(), "registry/shop.json")
    assert "registry/shop.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    if content and "NaN" not in content:
        assert not VALIDATOR.is_valid(json.loads(content)) or "soon" in content  # formats need an extra of jsonschema


def test_the_schema_names_the_fields_of_the_document() -> None:
    schema = json_schema()
    document = doc.stamped(locked(), "w")
    assert set(schema["properties"]) == set(document)
    assert set(schema["properties"]["instanceLock"]["properties"]) == set(document["instanceLock"])
    assert set(schema["properties"]["engineTablesConfig"]["properties"]) == set(document["engineTablesConfig"])
    described = [part for part in schema["properties"].values() if re.search(r"\w", part.get("description", ""))]
    assert len(described) == len(schema["properties"])


def test_a_write_is_known_again_as_long_as_it_is_remembered() -> None:
    base = doc.initial()
    mine, never_made = (doc.stamped(locked(), write_id) for write_id in ("mine", "never made"))
    document = mine
    for number in range(doc.REMEMBERED_WRITES - 1):
        document = doc.stamped(doc.change(document, Holder("job-7"), {"a": number}, now=NOW), f"other {number}")
        assert doc.has_landed(document, mine, base)
        assert doc.has_landed(document, never_made, base) is False
    document = doc.stamped(doc.change(document, Holder("job-7"), {"a": 0}, now=NOW), "one more")
    assert doc.has_landed(document, mine, base) is None
