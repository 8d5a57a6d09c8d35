"""A worker that is killed at any boundary of the flow, at any attempt, leaves one end [ENGINE-1].

That is a success in the history, or a Pending dead letter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.engines.runner import Outcome
from holdfast.records.dead_letters import LetterStatus
from tests.engines.boundaries import (
    ATTEMPTS,
    PATHS,
    BuriesLast,
    CountsFirst,
    DeletesFirst,
    DropsFirst,
    DropsWhatIsNotOurs,
    FindsNothing,
    KnowsNoHistory,
    Path,
    TrustsItsMessage,
    Walk,
    usual_flow,
    with_bug,
)
from tests.engines.driving import Driven
from tests.engines.places import Bench, Place

PLAIN = [path for path in PATHS if not path.meets_conflict]
ALONE = [path for path in PATHS if path.name != "failure and retry"]  # the last attempt comes after failures, too


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.name)
def test_killed_at_every_boundary(place: Place, path: Path) -> None:
    assert Walk(Bench(place, max_retry_attempts=ATTEMPTS), path).problems() == []


@pytest.mark.parametrize("place", [pytest.param("mariadb", marks=pytest.mark.component("mariadb"))], indirect=True)
@pytest.mark.parametrize("options", [{}, {"singleton": True, "lock_seconds": 60}], ids=["plain", "singleton"])
def test_killed_at_every_boundary_on_mariadb(place: Place, options: dict[str, Any]) -> None:
    [path] = [path for path in PATHS if path.name == "last attempt"]
    assert Walk(Bench(place, max_retry_attempts=ATTEMPTS, **options), path).problems() == []


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.name)
def test_a_singleton_killed_at_every_boundary(place: Place, path: Path) -> None:
    walk = Walk(Bench(place, max_retry_attempts=ATTEMPTS, singleton=True, lock_seconds=60), path)
    assert walk.problems() == []


@pytest.mark.parametrize("boundary", ["received", "found not done", "alone", "executed", "recorded"])
def test_an_execution_is_repeated_only_if_its_success_was_not_recorded(bench: Bench, boundary: str) -> None:
    bench.send()
    assert bench.die_at(boundary)
    bench.to_the_end()
    assert bench.statuses == ["Succeeded"]
    assert bench.letters == []
    is_undone = boundary == "recorded" and not bench.place.is_azure  # a transaction that was not committed
    assert len(bench.executions) == (2 if boundary == "executed" or is_undone else 1)


@pytest.mark.parametrize("boundary", ["received", "found not done", "failed", "failure recorded", "buried"])
def test_a_failing_message_whose_worker_is_killed_ends_in_one_dead_letter(bench: Bench, boundary: str) -> None:
    bench.fails = lambda context: True
    bench.send()
    while not bench.die_at(boundary):
        pass
    bench.to_the_end()
    assert set(bench.statuses) == {"Failed"}
    [letter] = bench.letters
    assert letter.status is LetterStatus.PENDING


AZURE = pytest.param("azure", marks=pytest.mark.component("azurite"))
PLANTED = [
    (CountsFirst, 2, "success", "ended ['Succeeded', 'dead']"),
    (BuriesLast, 2, "last attempt", "ended []"),
    (DeletesFirst, 2, "success", "ended []"),
    (KnowsNoHistory, ATTEMPTS, "success", "ended ['Succeeded', 'Succeeded']"),
]
PLANTED_IN_DATABASES = [
    (DropsFirst, 2, "success", "ended []"),
    (DropsFirst, 2, "last attempt", "ended []"),
]


def _problems(place: Place, bug: type[object], most: int, name: str) -> list[str]:
    [path] = [path for path in PATHS if path.name == name]
    return Walk(Bench(place, max_retry_attempts=most), path, with_bug(bug)).problems()


@pytest.mark.parametrize("place", [AZURE], indirect=True)
@pytest.mark.parametrize(("bug", "most", "name", "told"), PLANTED, ids=lambda each: getattr(each, "__name__", None))
def test_a_planted_bug_is_caught(place: Place, bug: type[object], most: int, name: str, told: str) -> None:
    assert any(told in problem for problem in _problems(place, bug, most, name))


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("bug", "most", "name", "told"), PLANTED_IN_DATABASES, ids=lambda each: getattr(each, "__name__", None)
)
def test_a_planted_bug_of_the_jobs_path_is_caught(
    place: Place, bug: type[object], most: int, name: str, told: str
) -> None:
    assert any(told in problem for problem in _problems(place, bug, most, name))


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_worker_that_finds_no_success_is_caught(place: Place) -> None:
    with pytest.raises(AssertionError):  # already without a kill
        _problems(place, FindsNothing, ATTEMPTS, "already done")


def _loses_its_message(bench: Bench, flow: Callable[..., Driven]) -> Outcome:
    bench.send()

    def lose(boundary: str) -> None:
        if boundary == "executed":
            assert driven.queue.delete(message)

    driven = flow(bench.hf, lose)
    message = bench.next(driven.queue)
    return driven.handle(message)


def test_an_execution_that_lost_its_message_records_nothing(bench: Bench) -> None:
    assert _loses_its_message(bench, usual_flow) is Outcome.LOST
    assert bench.history == []


@pytest.mark.parametrize(
    ("place", "bug"),
    [pytest.param("azure", TrustsItsMessage, marks=pytest.mark.component("azurite")), ("sqlite", DropsWhatIsNotOurs)],
    indirect=["place"],
)
def test_a_flow_that_trusts_its_message_is_caught(bench: Bench, bug: type[object]) -> None:
    _loses_its_message(bench, with_bug(bug))
    assert bench.statuses == ["Succeeded"], "the bug does not show"
