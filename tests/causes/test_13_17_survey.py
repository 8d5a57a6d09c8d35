"""Whatever is wrong with the database, the log of each workload says what it is, and nothing that is false."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from holdfast.database import server_roles
from tests.causes.fleets import Fleet, full, read_only
from tests.causes.roles import Role, role_on
from tests.components.prepared import sqlite_url as sqlite_url
from tests.components.processes import wait_until

FALSE = re.compile(
    r"failed unexpectedly|Check that it runs|Check that the path|broke and is tried again|Traceback|error of its own"
)
WHO = {
    "trigger": "Trigger 'orders' ",
    "job": "Claiming jobs ",
    "processor": "Processor totals ",
    "engine": "Timer of engine 'mail",
}


@pytest.fixture(params=["postgres_server", "mariadb_server", "sqlite_url"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Fleet, Role | None]]:
    if request.param == "sqlite_url":
        url = request.getfixturevalue("sqlite_url")
        yield Fleet(url, url), None
        return
    for role in role_on(request.getfixturevalue(request.param)):
        fleet = Fleet(role.url(role.owner), role.url(role.app))
        role.grant_everything_but("", "")
        role.do("GRANT SELECT ON orders TO {role}")
        if not role.is_postgres:
            role.do("GRANT PROCESS ON *.* TO {role}")
        yield fleet, role


def all_tell(caplog: pytest.LogCaptureFixture, cause: str) -> None:
    """Wait until each workload has told the cause."""

    def silent() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        return [
            who for who, title in WHO.items() if not any(title in line and re.search(cause, line) for line in lines)
        ]

    wait_until(lambda: not silent(), "each workload to tell the cause")


WORDS = {
    "postgresql": (
        "takes no writes: cannot execute .* in a read-only transaction.*; name the primary, or wait until it is one",
        "has no room left: could not extend file: No space left on device. Nothing was changed; make room",
        "does not let this user do that: permission denied for .*; grant it what is missing",
    ),
    "mysql": (
        r"takes no writes: \(1290, .*--read-only.*; name the primary, or wait until it is one",
        r"has no room left: \(1114, .*is full.*; make room",
        r"does not let this user do that: \(1142, .* command denied to user.*; grant it what is missing",
    ),
    "sqlite": (
        "takes no writes: attempt to write a readonly database.*; let this user write the file and its folder",
        "has no room left: database or disk is full.*; make room",
    ),
}


def test_13_17_a_database_that_is_read_only_is_told_by_each_workload(
    place: tuple[Fleet, Role | None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, role = place
    monkeypatch.setattr(server_roles, "_SERVERS", ())  # the process was let in while the database took writes
    fleet.warm_up()
    fleet.add()
    with read_only(fleet, None if role is None else role.name):
        caplog.clear()
        with fleet.at_work():
            all_tell(caplog, WORDS[fleet.dialect][0])
    assert FALSE.search(caplog.text) is None


def test_13_17_a_full_disk_is_told_by_each_workload(
    place: tuple[Fleet, Role | None], caplog: pytest.LogCaptureFixture
) -> None:
    fleet, _ = place
    fleet.warm_up()
    fleet.add()
    with full(fleet):
        caplog.clear()
        with fleet.at_work():
            all_tell(caplog, WORDS[fleet.dialect][1])
    assert FALSE.search(caplog.text) is None


@pytest.mark.parametrize("place", ["postgres_server", "mariadb_server"], indirect=True)
def test_13_17_rights_that_are_taken_away_meanwhile_are_told_by_each_workload(
    place: tuple[Fleet, Role], caplog: pytest.LogCaptureFixture
) -> None:
    fleet, role = place
    fleet.warm_up()
    fleet.done.clear()
    fleet.add()

    def take_away() -> None:
        for table in ("holdfast_state", "holdfast_jobs", "holdfast_processor_checkpoints"):
            role.do(f"REVOKE UPDATE ON {table} FROM {{role}}")

    with fleet.at_work(on_started=take_away):
        all_tell(caplog, WORDS[fleet.dialect][2])
    assert FALSE.search(caplog.text) is None
    assert fleet.done == set()
