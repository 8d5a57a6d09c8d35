"""A worker is paused in the moment it records its success, and another buries the message meanwhile [ENGINE-1].

In one database that cannot be: success and deletion are one transaction. So the records are apart from the queue here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.engines.flow import Outcome
from holdfast.engines.table_records import TableRecords
from holdfast.records.dead_letters import LetterStatus
from holdfast.records.history import HistoryStatus
from tests.engines.places import Bench


@pytest.fixture
def apart(bench: Bench) -> Bench:
    bench.is_apart = True
    bench.send()
    bench.lose_workers(1)
    bench.place.let_time_pass()
    return bench


def paused(around: Callable[..., Any], meanwhile: Callable[[], None]) -> Callable[..., Any]:
    """Return a method in front of which something happens, the first time it is called."""
    pauses = [meanwhile]

    def method(*arguments: Any) -> Any:
        while pauses:
            pauses.pop()()
        return around(*arguments)

    return method


def test_a_success_recorded_after_the_burial_withdraws_the_dead_letter(
    apart: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bury() -> None:
        apart.place.let_time_pass()
        assert apart.deliver() is Outcome.DEAD_LETTERED
        assert [letter.status for letter in apart.letters] == [LetterStatus.PENDING]

    monkeypatch.setattr(TableRecords, "record", paused(TableRecords.record, bury))
    told = Outcome.SUCCEEDED if apart.place.is_azure else Outcome.LOST  # the jobs' worker says that it came too late
    assert apart.deliver() is told
    only_the_success_counts(apart)


def test_a_burial_beside_which_a_success_is_recorded_withdraws_its_dead_letter(
    apart: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused_worker = apart.flow()
    late = apart.next(paused_worker.queue)
    apart.place.let_time_pass()

    def succeed() -> None:
        monkeypatch.setattr(TableRecords, "withdraw", lambda records, message: None)  # it died before it could look
        paused_worker.handle(late)
        monkeypatch.undo()

    monkeypatch.setattr("holdfast.engines.invisible.KeptInvisible.extend", lambda kept: None)
    monkeypatch.setattr(TableRecords, "bury", paused(TableRecords.bury, succeed))
    queue = apart.queue
    assert apart.flow(queue).handle(apart.next(queue)) is Outcome.DEAD_LETTERED
    only_the_success_counts(apart)


def only_the_success_counts(bench: Bench) -> None:
    assert [entry.status for entry in bench.history] == [HistoryStatus.SUCCEEDED]
    [letter] = bench.letters
    assert (letter.status, letter.resolved_by) == (LetterStatus.RESOLVED, "holdfast")
    assert bench.is_empty
