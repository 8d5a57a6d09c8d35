"""``holdfast registry``, as a person uses it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from holdfast import EngineProvider, Holdfast
from holdfast.core.errors import RegistryLocked
from holdfast.engines.registry import EngineTablesConfig, RegistryView
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.records import audit
from tests.cli.desk import Desk

NAME = "registry/default.json"


@pytest.fixture
def sqlite_desk(bare_desk: Desk) -> Desk:
    """A desk for what does not depend on the database."""
    bare_desk.hf.migrate()
    return bare_desk


@pytest.fixture
def locked(desk: Desk) -> Desk:
    """A desk whose registry is locked by a job that is at work."""
    desk.hf.registry.init(state={"components": {"api": "1.2"}})
    desk.hf.registry.acquire("job-7")
    return desk


def view(desk: Desk) -> RegistryView:
    found = desk.hf.registry.read()
    assert found is not None
    return found


def test_a_registry_is_made_once(desk: Desk) -> None:
    arguments = ("registry", "init", "--retention-days", "30")
    assert desk(*arguments).out == f"Made the registry '{NAME}'.\n"
    assert view(desk).tables == EngineTablesConfig(retention_days=30)
    before = view(desk).document
    desk.refused(3, "already", "nothing was changed", arguments=("registry", "init"))
    assert view(desk).document == before
    assert desk.audited() == [("eve", "registry init", NAME)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("init", "--storage-account", "No Such"), "storage account"),
        (("init", "--dlq-table", "a-b"), "no name for an Azure table"),
        (("init", "--dlq-table", "shopDlq"), "cannot name other tables"),
        (("init", "--storage-account", "shopstorage"), "cannot name other tables"),
        (("init", "--retention-days", "-1"), "retention-days"),
        (("init", "--retention-days", "6"), "records are kept for at least 7 days"),
        (("lock",), "--job-id"),
        (("lock", "--job-id", " "), "job id"),
        (("lock", "--job-id", "a", "--duration", "soon"), "30m"),
        (("lock", "--job-id", "a", "--duration", "0"), "cannot last"),
        (("lock", "--job-id", "a", "--duration", "99d"), "cannot last"),
    ],
)
def test_what_cannot_be_is_told_and_nothing_is_changed(
    sqlite_desk: Desk, arguments: tuple[str, ...], told: str
) -> None:
    before = sqlite_desk.hf.registry.read()
    sqlite_desk.refused(2, told, arguments=("registry", *arguments))
    after = sqlite_desk.hf.registry.read()
    assert (before and before.document) == (after and after.document)
    assert sqlite_desk.audited() == []


@pytest.mark.parametrize("command", [("show",), ("unlock",)])
def test_without_a_registry_there_is_advice(sqlite_desk: Desk, command: tuple[str, ...]) -> None:
    sqlite_desk.refused(2, NAME, "holdfast registry init", arguments=("registry", *command))


def test_a_registry_is_shown(locked: Desk) -> None:
    shown = locked("registry", "show").out
    for part in (NAME, "'job-7' until ", "engineDlq", "engineHistory", "90", '{"api": "1.2"}'):
        assert part in shown
    answer = locked("registry", "show", "--json").json
    assert answer["registry"] == view(locked).document
    assert answer["registry_version"] == 2
    assert answer["lock"] == {
        "state": "held",
        "job_id": "job-7",
        "until": view(locked).document["instanceLock"]["lockUntilUtc"],
        "duration_seconds": 3600,
        "fencing_token": 2,
    }


def test_the_first_lock_makes_the_registry(desk: Desk) -> None:
    assert desk("registry", "lock", "--job-id", "upgrade", "--duration", "20s").out.startswith("Locked by 'upgrade'")
    assert (view(desk).lock.job_id, view(desk).lock.duration_seconds) == ("upgrade", 20)
    assert desk.audited() == [("eve", "registry lock", NAME)]


def test_a_free_and_an_expired_lock_are_told_apart(sqlite_desk: Desk) -> None:
    sqlite_desk.hf.registry.init()
    assert sqlite_desk("registry", "show", "--json").json["lock"]["state"] == "free"
    assert "free" in sqlite_desk("registry", "show").out
    expire(sqlite_desk)
    assert sqlite_desk("registry", "show", "--json").json["lock"]["state"] == "expired"
    assert "ran out at 2020-01-01 00:00:00 UTC ('job-7')" in sqlite_desk("registry", "show").out


def expire(desk: Desk) -> None:
    """Leave the lock of a job that died long ago."""
    found = desk.hf.state.documents.read(NAME)
    assert found is not None
    old = b'{"registryVersion":5,"instanceLock":{"lockJobId":"job-7","lockUntilUtc":"2020-01-01T00:00:00Z"}}'
    desk.hf.state.documents.replace(NAME, old, found.etag)


def test_the_lock_is_taken_by_hand(desk: Desk) -> None:
    desk.hf.registry.init()
    assert desk("registry", "lock", "--job-id", "upgrade", "--duration", "2h").out.startswith(
        "Locked by 'upgrade' until"
    )
    assert view(desk).lock.duration_seconds == 7200
    answer = desk("registry", "lock", "--job-id", "upgrade", "--duration", "90", "--json").json
    assert (answer["lock"]["job_id"], answer["lock"]["duration_seconds"]) == ("upgrade", 90)
    with pytest.raises(RegistryLocked, match="upgrade"):
        desk.hf.registry.acquire("job-8")
    assert desk.audited() == [("eve", "registry lock", NAME)] * 2


def test_a_lock_that_is_held_is_not_taken(locked: Desk) -> None:
    before = view(locked).document
    locked.refused(3, "locked by 'job-7' until", arguments=("registry", "lock", "--job-id", "upgrade"))
    assert view(locked).document == before
    assert locked.audited() == []


def test_a_lock_of_somebody_else_is_freed_only_when_its_job_is_typed(locked: Desk) -> None:
    before = view(locked).document
    locked.refused(3, "Nothing was changed", arguments=("registry", "unlock"))
    locked.refused(3, "is not the id of the job", arguments=("registry", "unlock"), typed="job-8")
    assert view(locked).document == before
    answer = locked("registry", "unlock", typed="job-7")
    assert answer.out.strip() == "Unlocked: 'job-7' no longer has the lock."
    assert "may be at work" in answer.err
    assert not view(locked).is_locked
    with pytest.raises(RegistryLocked):
        locked.hf.registry.change("job-7", {"late": True})
    assert view(locked).state == {"components": {"api": "1.2"}}
    [row] = audit.page(locked.hf.database).items
    assert (row.actor, row.action, row.target) == ("eve", "registry unlock", NAME)
    assert row.details is not None
    assert (row.details["job_id"], row.details["fencing_token"]) == ("job-7", 2)


def test_a_lock_is_freed_without_asking_when_told_so(locked: Desk) -> None:
    answer = locked("registry", "unlock", "--yes", "--json").json
    assert answer["lock"]["state"] == "free"
    assert len(locked.audited()) == 1


def test_a_lock_of_ones_own_is_freed_without_asking(locked: Desk) -> None:
    locked.refused(3, "locked by 'job-7'", arguments=("registry", "unlock", "--job-id", "job-8"))
    assert locked.audited() == [], "the audit tells of a change that was refused"
    assert locked("registry", "unlock", "--job-id", "job-7").code == 0
    assert not view(locked).is_locked


def test_a_lock_that_ran_out_is_freed_without_asking(sqlite_desk: Desk) -> None:
    sqlite_desk.hf.registry.init()
    expire(sqlite_desk)
    assert sqlite_desk("registry", "unlock").code == 0
    assert view(sqlite_desk).lock.job_id == ""


def test_unlocking_what_is_not_locked_does_nothing(sqlite_desk: Desk) -> None:
    sqlite_desk.hf.registry.init()
    before = view(sqlite_desk).document
    assert sqlite_desk("registry", "unlock").out == "The registry is not locked.\n"
    assert view(sqlite_desk).document == before
    assert sqlite_desk.audited() == []


def test_a_lock_that_changed_hands_while_the_question_stood_is_left_alone(
    locked: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered_late(*args: object, **kwargs: object) -> None:
        locked.hf.registry.release("job-7")
        locked.hf.registry.acquire("job-8")

    monkeypatch.setattr("holdfast.cli.registry.confirm", answered_late)
    locked.refused(3, "locked by 'job-8' until", arguments=("registry", "unlock"))
    assert view(locked).lock.job_id == "job-8"
    assert locked.audited() == []


def test_the_commands_work_on_mariadb(
    mariadb_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    provider = EngineProvider()
    desk = Desk(mariadb_url, provider, monkeypatch, capsys)
    desk.hf.migrate()
    for arguments in (("init",), ("lock", "--job-id", "job-7"), ("unlock", "--yes"), ("show",)):
        answer = desk("registry", *arguments)
        assert answer.code == 0, answer.err
    assert [action for _, action, _ in desk.audited()] == ["registry unlock", "registry lock", "registry init"]
    provider.dispose_all()


@pytest.fixture
def elsewhere(bare_desk: Desk, empty_sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A desk whose application keeps its state outside its database."""
    provider = EngineProvider()
    bare_desk.hf = Holdfast(empty_sqlite_url, state=MemoryDocumentStore(), engine_provider=provider)
    monkeypatch.setattr(sys.modules["desk_application"], "hf", bare_desk.hf)
    yield bare_desk
    provider.dispose_all()


def test_a_registry_outside_of_sql_is_operated_too(elsewhere: Desk) -> None:
    elsewhere("registry", "init")
    assert elsewhere("registry", "lock", "--job-id", "upgrade").code == 0
    answer = elsewhere("registry", "unlock", "--yes")
    assert answer.code == 0
    assert "Not audited" in answer.err
    assert not view(elsewhere).is_locked


def send() -> None:
    """Do nothing: that there is a job makes the application keep records."""


def test_a_registry_outside_of_sql_is_audited_where_there_are_records(elsewhere: Desk) -> None:
    elsewhere.hf.job(topic="email")(send)
    elsewhere.hf.migrate()
    for arguments in (("init",), ("lock", "--job-id", "upgrade"), ("unlock", "--yes")):
        assert elsewhere("registry", *arguments).code == 0
    assert [action for _, action, _ in elsewhere.audited()] == ["registry unlock", "registry lock", "registry init"]
    assert not view(elsewhere).is_locked


def test_the_command_alone_shows_its_help(sqlite_desk: Desk) -> None:
    shown = sqlite_desk("registry").out
    assert "unlock" in shown
    assert "3 refused" in " ".join(shown.split())


def test_13_9_an_instance_has_a_registry_and_a_lock_of_its_own(sqlite_desk: Desk) -> None:
    desk, asked = sqlite_desk, ("--instance-id", "tenant-1")
    assert desk("registry", "init", *asked).out == "Made the registry 'registry/default/tenant-1.json'.\n"
    desk.refused(2, "engineTablesConfig", arguments=("registry", "init", *asked, "--dlq-table", "shopDlq"))
    desk("registry", "lock", *asked, "--job-id", "job-7")
    shown = desk("registry", "show", *asked).out
    assert "'job-7' until" in shown
    assert "engineDlq" not in shown
    assert desk.hf.registry.read() is None
    desk("registry", "unlock", *asked, "--job-id", "job-7")
    found = desk.hf.registry.instance("tenant-1").read()
    assert found is not None
    assert not found.lock.job_id
    assert {target for _, _, target in desk.audited()} == {"registry/default/tenant-1.json"}


def test_13_9_the_way_to_make_an_instances_registry_names_the_instance(sqlite_desk: Desk) -> None:
    for given, written in (("tenant-1", "tenant-1"), ("../x", "../x"), ("tenant 1", "'tenant 1'")):
        sentence = f"Make it with 'holdfast registry init --instance-id {written}'."
        sqlite_desk.refused(2, sentence, arguments=("registry", "show", "--instance-id", given))
    sqlite_desk.refused(2, "Make it with 'holdfast registry init'.", arguments=("registry", "show"))


@pytest.mark.parametrize("given", ["", "x" * 201])
def test_13_9_an_instance_that_can_have_no_registry_is_refused_as_such(sqlite_desk: Desk, given: str) -> None:
    sqlite_desk.refused(2, "cannot have a registry", "1 to 200", arguments=("registry", "show", "--instance-id", given))
