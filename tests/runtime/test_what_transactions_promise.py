"""What every ``context.transaction`` promises, whatever the handler does to it, in every workload and database.

Effects are there exactly once for what is recorded as done, nothing that was kept in part is called done, and what a
handler ended itself is left to an operator: it is not repeated by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.account import Outcome, violations
from tests.runtime.conftest import COMPONENTS, NewDatabase
from tests.runtime.stage import Cell, async_cells, cells, open_stage
from tests.runtime.ways import EVERYWHERE
from tests.runtime.workloads import WORKLOADS

Run = tuple[str, str]


def _cells_of_all(is_async: bool) -> list[object]:
    return [
        pytest.param((workload, database), cell, id=f"{workload}-{database}-{cell.item}", marks=COMPONENTS[database])
        for workload in WORKLOADS
        for database in EVERYWHERE
        for cell in (async_cells if is_async else cells)(database)
    ]


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, new_database: NewDatabase) -> Iterator[dict[str, Outcome]]:
    """What became of every cell of one workload on one database, run once for all of them."""
    workload, database = request.param
    with new_database(database) as url, open_stage(workload, url) as stage:
        yield stage.play(cells(database)) | stage.play(async_cells(database))


@pytest.mark.parametrize(("run", "cell"), _cells_of_all(is_async=False), indirect=["run"])
def test_a_transaction_keeps_its_promise(run: dict[str, Outcome], cell: Cell, request: pytest.FixtureRequest) -> None:
    assert _broken(run, cell, request) == []


@pytest.mark.parametrize(("run", "cell"), _cells_of_all(is_async=True), indirect=["run"])
def test_a_transaction_of_an_async_handler_keeps_its_promise(
    run: dict[str, Outcome], cell: Cell, request: pytest.FixtureRequest
) -> None:
    assert _broken(run, cell, request) == []


def _broken(run: dict[str, Outcome], cell: Cell, request: pytest.FixtureRequest) -> list[str]:
    _, database = request.node.callspec.params["run"]
    return violations(run[cell.item], cell.then(database), cell.ending)
