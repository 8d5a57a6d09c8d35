"""What every ``context.transaction`` promises, whatever the handler does to it, in every workload and database.

Effects are there exactly once for what is recorded as done, nothing that was kept in part is called done, and what a
handler ended itself is left to an operator: it is not repeated by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from holdfast.jobs import model
from tests.runtime.account import UNDONE, Outcome, violations
from tests.runtime.conftest import COMPONENTS, NewDatabase
from tests.runtime.stage import Cell, async_cells, cells, open_stage
from tests.runtime.ways import EVERYWHERE
from tests.runtime.workloads import WORKLOADS

Outcomes = Callable[[str, str], dict[str, Outcome]]


def _cells_of_all(cells_of: Callable[[str], list[Cell]]) -> list[object]:
    return [
        pytest.param(workload, database, cell, id=f"{workload}-{database}-{cell.item}", marks=COMPONENTS[database])
        for workload in WORKLOADS
        for database in EVERYWHERE
        for cell in cells_of(database)
    ]


@pytest.fixture(scope="session")
def outcomes(new_database: NewDatabase) -> Outcomes:
    """Return what became of every cell of a workload on a database, all of them run once, when first asked for."""

    @cache
    def play(workload: str, database: str) -> dict[str, Outcome]:
        with new_database(database) as url, open_stage(workload, url) as stage, pytest.MonkeyPatch.context() as patch:
            patch.setattr(model, "MOST_UNDONE", UNDONE)
            patch.setattr(model, "UNDONE_SECONDS", 0.001)
            return stage.play(cells(database)) | stage.play(async_cells(database))

    return play


@pytest.mark.parametrize(("workload", "database", "cell"), _cells_of_all(cells))
def test_a_transaction_keeps_its_promise(workload: str, database: str, cell: Cell, outcomes: Outcomes) -> None:
    outcome = outcomes(workload, database)[cell.item]
    assert violations(outcome, cell.then(database), cell.ending) == []


@pytest.mark.parametrize(("workload", "database", "cell"), _cells_of_all(async_cells))
def test_a_transaction_of_an_async_handler_keeps_its_promise(
    workload: str, database: str, cell: Cell, outcomes: Outcomes
) -> None:
    outcome = outcomes(workload, database)[cell.item]
    assert violations(outcome, cell.then(database), cell.ending) == []
