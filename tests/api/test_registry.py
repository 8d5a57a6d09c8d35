"""The registry over HTTP: whoever has the lock changes it, and nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from sqlalchemy import text

from holdfast import EngineProvider, Holdfast
from holdfast.core.errors import RegistryLocked
from holdfast.engines.registry import EngineTablesConfig, RegistryView
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.records import audit
from tests.api.clients import Office

PATH = "/api/registry"
NAME = "registry/default.json"
JSON = {"Content-Type": "application/json"}
TABLES = {
    "storageAccountName": "",
    "dlqTableName": "engineDlq",
    "historyTableName": "engineHistory",
    "retentionDays": 30,
}


@pytest.fixture
def locked(office: Office) -> Office:
    """An office whose registry is locked by a job that is at work, over each database."""
    office.hf.registry.init(state={"components": {"api": "s3cret"}})
    office.hf.registry.acquire("job-7")
    return office


@pytest.fixture
def steady(small_office: Office) -> Iterator[Office]:
    """An office whose registry is locked and never changes, checked afterwards."""
    small_office.hf.registry.init(state={"region": "west"})
    small_office.hf.registry.acquire("job-7")
    before = view(small_office).document
    yield small_office
    assert view(small_office).document == before
    assert small_office.audited() == []


def view(office: Office) -> RegistryView:
    found = office.hf.registry.read()
    assert found is not None
    return found


class TestLooking:
    def test_the_registry_is_told_in_the_standards_words(self, locked: Office) -> None:
        lock = view(locked).document["instanceLock"]
        assert locked.auditor.get(PATH).data == {
            "name": NAME,
            "registryVersion": 2,
            "lockState": "held",
            "instanceLock": lock,
            "engineTablesConfig": EngineTablesConfig().as_json(),
            "fields": {"components": {"api": "s3cret"}},
        }

    def test_the_applications_fields_are_for_the_role_payload_only(self, locked: Office) -> None:
        for client, sees in ((locked.reader, False), (locked.operator, False), (locked.admin, True)):
            assert ("fields" in client.get(PATH).data) is sees
        changed = locked.operator("PATCH", PATH, json={"jobId": "job-7", "changes": {"a": 1}})
        assert "s3cret" not in str(changed.body)

    def test_a_free_and_an_expired_lock_are_told_apart(self, small_office: Office) -> None:
        small_office.hf.registry.init()
        free = small_office.reader.get(PATH).data
        assert free["lockState"] == "free"
        assert (free["instanceLock"]["lockJobId"], free["instanceLock"]["lockUntilUtc"]) == ("", None)
        found = small_office.hf.state.documents.read(NAME)
        assert found is not None
        old = b'{"registryVersion":5,"instanceLock":{"lockJobId":"job-7","lockUntilUtc":"2020-01-01T00:00:00Z"}}'
        small_office.hf.state.documents.replace(NAME, old, found.etag)
        assert small_office.reader.get(PATH).data["lockState"] == "expired"

    @pytest.mark.parametrize(
        ("method", "path", "body"),
        [
            ("GET", PATH, None),
            ("POST", f"{PATH}/lock", {"jobId": "job-7"}),
            ("POST", f"{PATH}/unlock", {"jobId": "job-7"}),
            ("POST", f"{PATH}/unlock", {"jobId": "job-7", "force": True}),
            ("PATCH", PATH, {"jobId": "job-7", "changes": {"a": 1}}),
        ],
    )
    def test_without_a_registry_it_is_404(self, small_office: Office, method: str, path: str, body: Any) -> None:
        assert small_office.admin(method, path, json=body).refusal == (404, "RESOURCE_NOT_FOUND", NAME)
        assert small_office.hf.registry.read() is None
        assert small_office.audited() == []

    def test_a_corrupt_registry_is_500_and_stays_as_it_is(self, small_office: Office) -> None:
        small_office.hf.state.documents.create(NAME, b"{half a docu")
        assert small_office.admin.get(PATH).refusal == (500, "INTERNAL_ERROR", None)
        for path in (PATH, f"{PATH}/lock"):
            assert small_office.admin("POST", path, json={"jobId": "a"} if path != PATH else None).status == 500
        found = small_office.hf.state.documents.read(NAME)
        assert found is not None
        assert found.content == b"{half a docu"


class TestMaking:
    def test_a_registry_is_made_once(self, office: Office) -> None:
        made = office.admin("POST", PATH, json={"engineTablesConfig": TABLES, "fields": {"region": "west"}})
        assert (made.data["registryVersion"], made.data["engineTablesConfig"]) == (1, TABLES)
        assert view(office).state == {"region": "west"}
        assert office.admin("POST", PATH, json={"fields": {"region": "east"}}).refusal == (409, "CONFLICT", NAME)
        assert view(office).state == {"region": "west"}
        [row] = audit.page(office.hf.database).items
        assert (row.actor, row.action, row.target) == ("the-admin", "registry init", NAME)
        assert row.details == {**TABLES, "fields": ["region"]}

    @pytest.mark.parametrize("body", [None, {}, {"engineTablesConfig": {}}, {"engineTablesConfig": None}])
    def test_what_is_left_out_is_the_standards(self, small_office: Office, body: Any) -> None:
        assert small_office.admin("POST", PATH, json=body).status == 200
        assert view(small_office).tables == EngineTablesConfig()

    def test_of_several_at_once_one_makes_it(self, office: Office) -> None:
        asked = [office.admin.start("POST", PATH, json={"fields": {"by": number}}) for number in range(6)]
        answers = [future.result(60) for future in asked]
        assert sorted(answer.status for answer in answers) == [200, 409, 409, 409, 409, 409]
        [winner] = [number for number, answer in enumerate(answers) if answer.status == 200]
        assert view(office).state == {"by": winner}
        assert len(office.audited()) == 1

    @pytest.mark.parametrize(
        ("body", "target"),
        [
            ([], "body"),
            ({"tables": {}}, "tables"),
            ({"fields": []}, "fields"),
            ({"fields": {"registryVersion": 7}}, "fields"),
            ({"fields": {"": 7}}, "fields"),
            ({"engineTablesConfig": {"storageAccountName": "No"}}, "engineTablesConfig.storageAccountName"),
            ({"engineTablesConfig": {"dlqTableName": "a-b"}}, "engineTablesConfig.dlqTableName"),
            ({"engineTablesConfig": {"dlqTableName": "tables"}}, "engineTablesConfig"),
            ({"engineTablesConfig": {"dlqTableName": "engineHistory"}}, "engineTablesConfig"),
            ({"engineTablesConfig": {"dlqTableName": "shopDlq"}}, "engineTablesConfig"),
            ({"engineTablesConfig": {"retention": 7}}, "engineTablesConfig.retention"),
        ],
    )
    def test_what_cannot_be_is_400_and_nothing_is_made(self, small_office: Office, body: Any, target: str) -> None:
        assert small_office.admin("POST", PATH, json=body).refusal == (400, "VALIDATION_ERROR", target)
        assert small_office.hf.registry.read() is None
        assert small_office.audited() == []

    @pytest.mark.parametrize("days", [-1, 36_501, "90", True, None])
    def test_wrong_days_are_400(self, small_office: Office, days: Any) -> None:
        answer = small_office.admin("POST", PATH, json={"engineTablesConfig": {"retentionDays": days}})
        assert answer.refusal[:2] == (400, "VALIDATION_ERROR")
        assert (answer.refusal[2] or "").startswith("engineTablesConfig.retentionDays")


class TestLocking:
    def test_the_lock_is_taken_and_kept(self, office: Office) -> None:
        office.hf.registry.init()
        taken = office.operator("POST", f"{PATH}/lock", json={"jobId": "upgrade", "durationSeconds": 7200}).data
        assert (taken["lockState"], taken["instanceLock"]["lockJobId"]) == ("held", "upgrade")
        assert taken["instanceLock"]["lockDurationSeconds"] == 7200
        again = office.operator("POST", f"{PATH}/lock", json={"jobId": "upgrade"}).data
        assert again["instanceLock"]["lockFencingToken"] == taken["instanceLock"]["lockFencingToken"] == 2
        with pytest.raises(RegistryLocked, match="upgrade"):
            office.hf.registry.acquire("job-8")
        assert office.audited() == [("the-operate", "registry lock", NAME)] * 2

    def test_a_lock_of_another_job_is_409_and_told(self, locked: Office) -> None:
        before = view(locked).document
        answer = locked.operator("POST", f"{PATH}/lock", json={"jobId": "upgrade"})
        assert answer.refusal == (409, "CONFLICT", NAME)
        until = before["instanceLock"]["lockUntilUtc"]
        assert f"locked by 'job-7' until {until}" in answer.body["error"]["message"]
        assert view(locked).document == before
        assert locked.audited() == []

    def test_of_several_at_once_one_gets_it(self, office: Office) -> None:
        office.hf.registry.init()
        jobs = [f"job-{number}" for number in range(6)]
        asked = [office.operator.start("POST", f"{PATH}/lock", json={"jobId": job}) for job in jobs]
        statuses = [future.result(60).status for future in asked]
        assert sorted(statuses) == [200, 409, 409, 409, 409, 409]
        assert view(office).lock.job_id == jobs[statuses.index(200)]
        assert len(office.audited()) == 1

    @pytest.mark.parametrize(
        ("body", "target"),
        [
            ({}, "jobId"),
            ({"jobId": ""}, "jobId"),
            ({"jobId": " a"}, "jobId"),
            ({"jobId": "a\n"}, "jobId"),
            ({"jobId": "a\x00b"}, "jobId"),
            ({"jobId": 7}, "jobId"),
            ({"jobId": "j" * 201}, "jobId"),
            ({"jobId": "job-7", "durationSeconds": 0}, "durationSeconds"),
            ({"jobId": "job-7", "durationSeconds": -1}, "durationSeconds"),
            ({"jobId": "job-7", "durationSeconds": 2_678_401}, "durationSeconds"),
            ({"jobId": "job-7", "durationSeconds": "60"}, "durationSeconds"),
            ({"jobId": "job-7", "durationSeconds": True}, "durationSeconds"),
            ({"jobId": "job-7", "duration": 60}, "duration"),
        ],
    )
    def test_what_cannot_lock_is_400(self, steady: Office, body: Any, target: str) -> None:
        answer = steady.operator("POST", f"{PATH}/lock", json=body)
        assert answer.refusal == (400, "VALIDATION_ERROR", target)


class TestUnlocking:
    def test_a_job_gives_its_lock_back(self, locked: Office) -> None:
        freed = locked.operator("POST", f"{PATH}/unlock", json={"jobId": "job-7", "fencingToken": 2}).data
        assert freed["lockState"] == "free"
        assert locked.operator("POST", f"{PATH}/unlock", json={"jobId": "job-7"}).status == 200
        [row] = audit.page(locked.hf.database).items
        assert (row.actor, row.action, row.target) == ("the-operate", "registry unlock", NAME)
        assert row.details == {"job_id": "job-7", "fencing_token": 2, "force": False}

    def test_a_lock_that_is_taken_away_ends_what_its_job_may_do(self, locked: Office) -> None:
        freed = locked.admin("POST", f"{PATH}/unlock", json={"jobId": "job-7", "force": True}).data
        assert freed["lockState"] == "free"
        late = locked.operator("PATCH", PATH, json={"jobId": "job-7", "changes": {"late": True}})
        assert late.refusal == (409, "CONFLICT", NAME)
        assert view(locked).state == {"components": {"api": "s3cret"}}
        assert locked.audited() == [("the-admin", "registry unlock", NAME)]

    def test_to_take_it_away_needs_the_role_admin(self, steady: Office) -> None:
        answer = steady.operator("POST", f"{PATH}/unlock", json={"jobId": "job-7", "force": True})
        assert answer.refusal == (403, "FORBIDDEN", "force")

    @pytest.mark.parametrize(
        "named",
        [{"jobId": "job-8"}, {"jobId": "job-7", "fencingToken": 1}],
        ids=["another job", "an earlier run"],
    )
    @pytest.mark.parametrize("force", [False, True])
    def test_a_lock_that_is_another_than_named_is_409_and_told(
        self, steady: Office, named: dict[str, Any], force: bool
    ) -> None:
        answer = steady.admin("POST", f"{PATH}/unlock", json={**named, "force": force})
        assert answer.refusal == (409, "CONFLICT", NAME)
        until = view(steady).document["instanceLock"]["lockUntilUtc"]
        assert f"locked by 'job-7' until {until}" in answer.body["error"]["message"]

    @pytest.mark.parametrize(
        ("body", "target"),
        [
            ({}, "jobId"),
            ({"force": True}, "jobId"),
            ({"jobId": "job-7", "force": "yes"}, "force"),
            ({"jobId": "job-7", "fencingToken": -1}, "fencingToken"),
            ({"jobId": "job-7", "fencingToken": 2.5}, "fencingToken"),
            ({"jobId": "job-7", "yes": True}, "yes"),
        ],
    )
    def test_what_cannot_unlock_is_400(self, steady: Office, body: Any, target: str) -> None:
        assert steady.admin("POST", f"{PATH}/unlock", json=body).refusal == (400, "VALIDATION_ERROR", target)


class TestChanging:
    def test_the_holder_changes_everything_in_one_write(self, locked: Office) -> None:
        body = {
            "jobId": "job-7",
            "fencingToken": 2,
            "changes": {"region": "west", "components": {"web": "🦀"}},
            "engineTablesConfig": TABLES,
        }
        changed = locked.admin("PATCH", PATH, json=body).data
        assert changed["fields"] == view(locked).state == {"region": "west", "components": {"web": "🦀"}}
        assert changed["engineTablesConfig"] == TABLES
        removed = locked.admin("PATCH", PATH, json={"jobId": "job-7", "remove": ["region", "nothing"]}).data
        assert removed["fields"] == {"components": {"web": "🦀"}}
        assert removed["registryVersion"] > changed["registryVersion"] > 2
        assert view(locked).lock.job_id == "job-7"
        last, first = audit.page(locked.hf.database).items
        assert (first.actor, first.action, first.target) == ("the-admin", "registry change", NAME)
        assert first.details == {
            "job_id": "job-7",
            "changed": ["components", "region"],
            "removed": [],
            "engine_tables_config": TABLES,
        }
        assert last.details is not None
        assert last.details["removed"] == ["nothing", "region"]

    @pytest.mark.parametrize("named", [{"jobId": "job-8"}, {"jobId": "job-7", "fencingToken": 1}])
    def test_whoever_does_not_hold_the_lock_is_409_and_changes_nothing(
        self, locked: Office, named: dict[str, Any]
    ) -> None:
        before = view(locked).document
        answer = locked.admin("PATCH", PATH, json={**named, "changes": {"a": 1}, "engineTablesConfig": TABLES})
        assert answer.refusal == (409, "CONFLICT", NAME)
        assert f"until {before['instanceLock']['lockUntilUtc']}" in answer.body["error"]["message"]
        assert view(locked).document == before
        assert locked.audited() == []

    def test_without_the_lock_nothing_is_changed(self, small_office: Office) -> None:
        small_office.hf.registry.init()
        answer = small_office.operator("PATCH", PATH, json={"jobId": "job-7", "changes": {"a": 1}})
        assert answer.refusal == (409, "CONFLICT", NAME)
        assert view(small_office).state == {}

    @pytest.mark.parametrize(
        ("more", "target"),
        [
            ({}, "changes"),
            ({"changes": None}, "changes"),
            ({"changes": []}, "changes"),
            ({"changes": {"instanceLock": {}}}, "changes"),
            ({"changes": {"": 1}}, "changes"),
            ({"changes": {"a": "\ud800"}}, "changes"),
            ({"remove": "a"}, "remove"),
            ({"remove": [""]}, "remove.0"),
            ({"remove": ["recentWriteIds"]}, "remove"),
            ({"remove": ["a"] * 101}, "remove"),
            ({"engineTablesConfig": {**TABLES, "dlqTableName": "engineHistory"}}, "engineTablesConfig"),
            ({"engineTablesConfig": {**TABLES, "historyTableName": "shopHistory"}}, "engineTablesConfig"),
            ({"engineTablesConfig": {**TABLES, "storageAccountName": "shopstorage"}}, "engineTablesConfig"),
            ({"engineTablesConfig": {"retentionDays": 30}}, "engineTablesConfig.storageAccountName"),
            ({"changes": {"a": 1}, "fencingToken": "2"}, "fencingToken"),
            ({"changes": {"a": 1}, "registryVersion": 2}, "registryVersion"),
        ],
    )
    def test_what_is_no_change_is_400(self, steady: Office, more: dict[str, Any], target: str) -> None:
        content = json.dumps({"jobId": "job-7", **more})
        answer = steady.admin("PATCH", PATH, content=content, headers=JSON)
        assert answer.refusal == (400, "VALIDATION_ERROR", target)

    def test_what_is_too_large_or_no_json_is_refused(self, steady: Office) -> None:
        large = {"jobId": "job-7", "changes": {"a": "x" * 64 * 1024}}
        assert steady.operator("PATCH", PATH, json=large).refusal == (413, "PAYLOAD_TOO_LARGE", "body")
        assert steady.operator("PATCH", PATH, content=b"{", headers=JSON).refusal == (400, "VALIDATION_ERROR", "body")
        number = b'{"jobId": "job-7", "changes": {"a": 1e999}}'
        assert steady.operator("PATCH", PATH, content=number, headers=JSON).refusal[0] == 400

    def test_a_change_that_cannot_be_audited_is_not_made(self, small_office: Office) -> None:
        hf = small_office.hf
        hf.registry.init()
        hf.registry.acquire("job-7")
        before = view(small_office).document
        with hf.database.begin() as connection:
            connection.execute(text("DROP TABLE holdfast_audit"))
        for method, path, body in (
            ("PATCH", PATH, {"jobId": "job-7", "changes": {"a": 1}}),
            ("POST", f"{PATH}/lock", {"jobId": "job-7"}),
            ("POST", f"{PATH}/unlock", {"jobId": "job-7"}),
        ):
            assert small_office.operator(method, path, json=body).refusal == (500, "INTERNAL_ERROR", None)
        assert view(small_office).document == before


class _Imprecise(MemoryDocumentStore):
    """A store whose time is exact to seconds only."""

    skew_margin_seconds = 2.0


@pytest.fixture
def elsewhere(sqlite_url: str, portal: BlockingPortal) -> Iterator[Office]:
    """An office whose registry is not in its database."""
    provider = EngineProvider()
    Holdfast(sqlite_url, engine_provider=provider).migrate()
    yield Office(Holdfast(sqlite_url, state=_Imprecise(), engine_provider=provider), portal)
    provider.dispose_all()


class TestElsewhere:
    def test_every_change_is_made_and_audited(self, elsewhere: Office) -> None:
        for method, path, body in (
            ("POST", PATH, None),
            ("POST", f"{PATH}/lock", {"jobId": "job-7"}),
            ("PATCH", PATH, {"jobId": "job-7", "changes": {"a": 1}}),
            ("POST", f"{PATH}/unlock", {"jobId": "job-7"}),
        ):
            assert elsewhere.admin(method, path, json=body).status == 200
        assert view(elsewhere).state == {"a": 1}
        actions = [action for _, action, _ in elsewhere.audited()]
        assert actions == ["registry unlock", "registry change", "registry lock", "registry init"]

    def test_a_refusal_after_the_audit_row_is_written_down_too(self, elsewhere: Office) -> None:
        elsewhere.hf.registry.init()
        elsewhere.hf.registry.acquire("job-7")
        answer = elsewhere.operator("PATCH", PATH, json={"jobId": "job-8", "changes": {"a": 1}})
        assert answer.refusal == (409, "CONFLICT", NAME)
        assert view(elsewhere).state == {}
        actions = [action for _, action, _ in elsewhere.audited()]
        assert actions == ["registry change (not done)", "registry change"]

    def test_a_lock_that_cannot_be_had_has_no_audit_row(self, elsewhere: Office) -> None:
        elsewhere.hf.registry.init()
        elsewhere.hf.registry.acquire("job-7")
        answer = elsewhere.operator("POST", f"{PATH}/lock", json={"jobId": "job-8"})
        assert answer.refusal == (409, "CONFLICT", NAME)
        assert elsewhere.audited() == []

    def test_a_duration_that_is_too_short_for_the_store_is_400(self, elsewhere: Office) -> None:
        elsewhere.hf.registry.init()
        answer = elsewhere.operator("POST", f"{PATH}/lock", json={"jobId": "job-7", "durationSeconds": 3})
        assert answer.refusal == (400, "VALIDATION_ERROR", "durationSeconds")
        assert not view(elsewhere).is_locked


class TestInstances:
    def test_13_9_an_instance_has_a_registry_and_a_lock_of_its_own(self, office: Office) -> None:
        office.hf.registry.init()
        asked = {"instanceId": "tenant-1"}
        assert office.reader.get(PATH, **asked).status == 404
        made = office.admin("POST", PATH, params=asked, json={"fields": {"a": 1}}).data
        assert (made["name"], made["engineTablesConfig"]) == ("registry/default/tenant-1.json", None)
        assert office.operator("POST", f"{PATH}/lock", params=asked, json={"jobId": "job-7"}).status == 200
        assert office.reader.get(PATH).data["lockState"] == "free"
        changed = office.operator("PATCH", PATH, params=asked, json={"jobId": "job-7", "changes": {"b": 2}})
        assert changed.data["registryVersion"] == 3
        assert office.operator("POST", f"{PATH}/unlock", params=asked, json={"jobId": "job-7"}).status == 200
        found = office.admin.get(PATH, **asked).data
        assert (found["lockState"], found["fields"]) == ("free", {"a": 1, "b": 2})

    def test_13_9_where_tables_are_is_refused_in_the_registry_of_an_instance(self, small_office: Office) -> None:
        asked = {"instanceId": "tenant-1"}
        refused = small_office.admin("POST", PATH, params=asked, json={"engineTablesConfig": TABLES})
        assert (refused.status, refused.body["error"]["target"]) == (400, "engineTablesConfig")
        small_office.hf.registry.instance("tenant-1").acquire("job-7")
        change = {"jobId": "job-7", "engineTablesConfig": TABLES}
        refused = small_office.admin("PATCH", PATH, params=asked, json=change)
        assert (refused.status, refused.body["error"]["target"]) == (400, "engineTablesConfig")
