"""Five processes migrate at once while a fleet works: nothing fails, nothing is lost, and the way back is open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.database.migrations import difference, migrate, step_back
from holdfast.schema import MIGRATIONS
from tests.components.processes import PythonWorker, wait_until
from tests.fleets.fleet import Fleet, accepted, refused
from tests.fleets.releases import newest, release_before

DATABASES = ("empty_postgres_url", "empty_mariadb_url", "empty_sqlite_url")
PROCESSES = 5
MORE = 20
ROUNDS = 20


@pytest.fixture(params=DATABASES)
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    fleet = Fleet(request.getfixturevalue(request.param))
    yield fleet
    fleet.close()


def migrated_at_once(fleet: Fleet, gate: Path, number: int | None = None) -> list[str]:
    """Let five processes migrate at the same moment; return what was applied, by whichever of them."""
    wanted = {} if number is None else {"FLEET_NEXT": str(number)}
    with ExitStack() as ending:
        processes = [
            ending.enter_context(fleet.process("migrate", {**wanted, "FLEET_GATE": str(gate)}))
            for _ in range(PROCESSES)
        ]
        for process in processes:
            process.wait_for_line("ready")
        gate.touch()
        told = [process.wait_for_line("applied", 120) for process in processes]
        assert [process.wait(60) for process in processes] == [0] * PROCESSES
    return [line for line in told if line != "applied []"]


def require_more(feeders: Sequence[PythonWorker]) -> None:
    before = len(accepted(feeders))
    wait_until(lambda: len(accepted(feeders)) >= before + MORE, "more to be accepted", 120)


def rounds(fleet: Fleet, numbers: range, folder: Path) -> None:
    """Migrate beside workers and writers that go on, once for each number; then start them anew."""
    migrate(fleet.engine, MIGRATIONS)
    fleet.make_tables()
    with fleet.workers(1):
        with fleet.feeders(1) as feeders:
            for number in numbers:
                [told] = migrated_at_once(fleet, folder / f"gate-{number}", number)
                assert f"next release {number}" in told
                require_more(feeders)
        require_kept(fleet, feeders, "what was accepted while the tables changed")
    with fleet.workers(1) as [worker]:
        assert "those of a newer Holdfast" in worker.output
        with fleet.feeders(1, first=max(fleet.orders()) + 1) as feeders:
            require_more(feeders)
        require_kept(fleet, feeders, "what was accepted after a start on the tables of a later release")


def require_kept(fleet: Fleet, feeders: Sequence[PythonWorker], what: str) -> None:
    """See that nothing was refused, and that all that was accepted is there and was done once."""
    assert refused(feeders) == []
    assert accepted(feeders) <= fleet.orders()
    fleet.require_each_once(what)


def test_15_must_show_five_processes_migrate_at_once_while_workers_work(fleet: Fleet, tmp_path: Path) -> None:
    rounds(fleet, range(9001, 9002), tmp_path)


@pytest.mark.prove
def test_15_must_show_five_processes_migrate_at_once_twenty_times(fleet: Fleet, tmp_path: Path) -> None:
    rounds(fleet, range(9001, 9001 + ROUNDS), tmp_path)


@pytest.mark.prove
@pytest.mark.component("previous_release")
@pytest.mark.parametrize("since", [pytest.param(newest(), id="newest"), pytest.param(14, id="keys-by-bytes")])
def test_15_must_show_the_previous_release_works_meanwhile_and_starts_again(
    since: int, fleet: Fleet, tmp_path: Path
) -> None:
    """Real code from before a migration; its workers refuse what they do not know, as long as nobody steps back."""
    code = release_before(since)
    (tmp_path / "gate-old").touch()
    with fleet.process("migrate", {"FLEET_GATE": str(tmp_path / "gate-old")}, code=code) as process:
        assert process.wait(60) == 0, process.output
    missing = difference(fleet.engine, MIGRATIONS, MIGRATIONS).missing
    fleet.make_tables()
    with fleet.workers(2, code=code):
        with fleet.feeders(2, code=code) as feeders:
            assert migrated_at_once(fleet, tmp_path / "gate-new") == [f"applied {missing}"]
            require_more(feeders)
        require_kept(fleet, feeders, "what the release before accepted while the tables changed")
    assert step_back(fleet.engine, int(missing[0][:4]) - 1) == missing
    with fleet.workers(1, code=code):
        with fleet.feeders(1, code=code, first=max(fleet.orders()) + 1) as feeders:
            require_more(feeders)
        require_kept(fleet, feeders, "what the release before accepted after the way back")
    assert migrate(fleet.engine, MIGRATIONS) == missing
    with fleet.workers(1):
        fleet.require_each_once("everything, by this release")
