"""Planted bug: with the proof removed, the same account finds broken promises in every workload and database."""

from __future__ import annotations

import pytest

from holdfast.runtime import transaction
from tests.runtime.conftest import COMPONENTS, NewDatabase
from tests.runtime.scenes import Ending
from tests.runtime.stage import Cell, open_stage
from tests.runtime.ways import EVERYWHERE, WAYS, Then
from tests.runtime.workloads import WORKLOADS

PROOF = "proved"
"""The function of ``holdfast.runtime.transaction`` that proves a transaction to be the one that was begun."""
PLACES = [
    pytest.param(workload, database, marks=COMPONENTS[database]) for workload in WORKLOADS for database in EVERYWHERE
]
UNREFUSED = ("commit-of-the-driver", "rollback-of-the-driver", "commit-through-the-drivers-cursor")


def _chosen(database: str) -> list[Cell]:
    """Return what nothing but the proof can notice, and the control."""
    ended = [WAYS[name] for name in UNREFUSED if WAYS[name].leads_to.get(database) is Then.ENDED]
    return [Cell(way, ending) for way in (WAYS["nothing"], *ended) for ending in Ending]


@pytest.mark.parametrize(("workload", "database"), PLACES)
def test_without_the_proof_the_account_finds_broken_promises(
    workload: str, database: str, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, PROOF, lambda *given: transaction.Verdict.WHOLE)
    with new_database(database) as url, open_stage(workload, url) as stage:
        broken = stage.violations(_chosen(database))
    assert {item.partition(".")[0] for item in broken} == set(UNREFUSED)
