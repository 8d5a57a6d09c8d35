"""A worker is paused in the moment it records its success, and another buries the message meanwhile [ENGINE-1].

In one database that cannot be: success and deletion are one transaction. So the records are apart from the queue here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.engines.ports import Ended
from holdfast.engines.runner import Outcome
from holdfast.engines.store import TableRecords
from holdfast.records.dead_letters import LetterStatus
from holdfast.records.history import HistoryStatus
from tests.engines.places import Bench, MortalStore


@pytest.fixture
def apart(bench: Bench) -> Bench:
    bench.is_apart = True
    bench.send()
    bench.lose_workers(1)
    bench.place.let_time_pass()
    return bench


@pytest.fixture
def first(apart: Bench) -> MortalStore:
    """Return where the worker keeps its leases that is paused: meanwhile it extends none."""
    return MortalStore(apart.place.documents())


def paused(around: Callable[..., Any], meanwhile: Callable[[], None]) -> Callable[..., Any]:
    """Return a method in front of which something happens, the first time it is called."""
    pauses = [meanwhile]

    def method(*arguments: Any) -> Any:
        while pauses:
            pauses.pop()()
        return around(*arguments)

    return method


def test_a_success_recorded_after_the_burial_withdraws_the_dead_letter(
    apart: Bench, first: MortalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bury() -> None:
        first.is_dead = True
        apart.place.let_time_pass()
        assert apart.deliver() is Outcome.DEAD_LETTERED
        assert [letter.status for letter in apart.letters] == [LetterStatus.PENDING]

    monkeypatch.setattr(TableRecords, "record", paused(TableRecords.record, bury))
    told = Outcome.SUCCEEDED if apart.place.is_azure else Outcome.LOST  # the jobs' worker says that it came too late
    assert apart.deliver(hf=apart.process(first)) is told
    only_the_success_counts(apart)


def test_a_burial_beside_which_a_success_is_recorded_withdraws_its_dead_letter(
    apart: Bench, first: MortalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, bury = TableRecords.record, TableRecords.bury
    buried: list[Outcome] = []

    def beside_the_burial(records: TableRecords, ended: Ended) -> None:
        monkeypatch.setattr(TableRecords, "record", record)
        monkeypatch.setattr(TableRecords, "bury", paused(bury, lambda: record(records, ended)))
        first.is_dead = True
        apart.place.let_time_pass()
        buried.append(apart.deliver())
        monkeypatch.setattr(TableRecords, "withdraw", lambda records, message: None)  # it dies before it can look

    monkeypatch.setattr(TableRecords, "record", beside_the_burial)
    apart.deliver(hf=apart.process(first))
    assert buried == [Outcome.DEAD_LETTERED]
    only_the_success_counts(apart)


def only_the_success_counts(bench: Bench) -> None:
    assert [entry.status for entry in bench.history] == [HistoryStatus.SUCCEEDED]
    [letter] = bench.letters
    assert (letter.status, letter.resolved_by) == (LetterStatus.RESOLVED, "holdfast")
    assert bench.is_empty
