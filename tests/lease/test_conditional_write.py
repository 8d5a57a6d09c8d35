"""One way to change a document: lost races are decided again, lost answers are found out about, doubt is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from holdfast.core.errors import Ambiguous, Conflict, Unavailable
from holdfast.engines.registry import _REGISTRY
from holdfast.engines.registry_document import initial, stamped
from holdfast.lease.conditional_write import QUICK_TRIES, Command, ConditionalDocument, DocumentShape
from holdfast.lease.document import Document, empty
from holdfast.lease.store import _STATE
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.clocks import SteppedClock
from tests.lease import faulty
from tests.lease.faulty import FaultyDocumentStore

MakeFault = Callable[[faulty.Verb], faulty.Fault]
LOST = [faulty.ambiguous_after_landing, faulty.ambiguous_without_landing]


class Place:
    """A document of one shape that counts its changes, over a store that fails on cue; ``other`` sees no faults."""

    def __init__(self, shape: DocumentShape, first: Document, version: str) -> None:
        self.faulty = FaultyDocumentStore(MemoryDocumentStore())
        self.first, self._version = first, version
        self.mine = ConditionalDocument(self.faulty, "x.json", shape, SteppedClock(), quick_tries=QUICK_TRIES)
        self.other = ConditionalDocument(self.faulty.inner, "x.json", shape, SteppedClock())
        self.mine.read_or_create(first)

    def counting(self, writer: str = "mine") -> Command:
        def change(found: Document, now: datetime) -> Document:
            counted = {self._version: found[self._version] + 1, "checkpoint": {"n": self.count(found) + 1}}
            lease = {"owner_id": writer, "fencing_token": 1, "expires_at": "2026-01-01T00:00:00Z"}
            return stamped({**found, **counted, "lease": lease}, writer)

        return change

    def count(self, document: Document | None) -> int:
        return 0 if document is None else int(document.get("checkpoint", {}).get("n", 0))

    def interfere(self) -> None:
        self.other.read()
        self.other.apply(self.counting("other"))

    @property
    def counted(self) -> int:
        return self.count(self.other.read())


@pytest.fixture(params=["state", "registry"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "state":
        return Place(_STATE, empty("orders"), "revision")
    return Place(_REGISTRY, initial(), "registryVersion")


@pytest.mark.parametrize("fault", LOST)
def test_a_change_whose_answer_was_lost_is_neither_lost_nor_doubled(place: Place, fault: MakeFault) -> None:
    place.faulty.arm(fault("replace"))
    assert place.count(place.mine.apply(place.counting(), tries=2)) == 1
    assert place.counted == 1


def test_a_lost_race_is_decided_again_on_what_the_winner_wrote(place: Place) -> None:
    place.faulty.arm(faulty.before("replace", place.interfere))
    assert place.count(place.mine.apply(place.counting(), tries=2)) == 2


def test_races_that_are_lost_time_and_again_end_with_nothing_written(place: Place) -> None:
    place.faulty.arm(*(faulty.before("replace", place.interfere, nth=n) for n in (1, 2)))
    with pytest.raises(Conflict, match="2 times in a row"):
        place.mine.apply(place.counting(), tries=2)
    assert place.counted == 2


def test_a_write_that_may_still_arrive_is_doubtful(place: Place) -> None:
    place.faulty.arm(faulty.ambiguous_without_landing("replace"))
    with pytest.raises(Ambiguous, match=r"whether it landed.*holdfast (registry|trigger) show"):
        place.mine.apply(place.counting())


def test_a_write_that_lost_its_race_beside_its_answer_is_not_doubtful(place: Place) -> None:
    place.faulty.arm(faulty.ambiguous_without_landing("replace"), faulty.before("read", place.interfere))
    with pytest.raises(Conflict):
        place.mine.apply(place.counting())
    assert place.counted == 1


def test_a_refusal_while_a_write_is_doubtful_is_not_taken_for_the_answer(place: Place) -> None:
    decided: list[Document] = []

    def refusing(found: Document, now: datetime) -> Document:
        if decided:
            raise Conflict("refused")
        decided.append(found)
        return place.counting()(found, now)

    place.faulty.arm(faulty.ambiguous_without_landing("replace"))
    with pytest.raises(Ambiguous, match="whether it landed"):
        place.mine.apply(refusing, tries=2)


def test_what_a_lagging_replica_says_settles_nothing(place: Place) -> None:
    """It shows a version from before the write's own: the write landed all the same, and is not made again."""
    place.interfere()
    place.mine.read()
    place.faulty.arm(faulty.ambiguous_after_landing("replace"), faulty.stale_read())
    changed = place.mine.apply(place.counting(), tries=3)
    assert (place.count(changed), place.counted) == (2, 2)


def test_a_document_that_is_known_is_changed_by_one_write_and_no_read(place: Place) -> None:
    place.faulty.arm(faulty.unavailable("read"))
    for _ in range(3):
        place.mine.apply(place.counting())
    assert len(place.faulty.pending) == 1
    assert place.counted == 3


def test_a_command_that_has_nothing_to_do_writes_nothing(place: Place) -> None:
    place.faulty.arm(faulty.unavailable("replace"))
    assert place.mine.apply(lambda found, now: found) == place.first
    assert place.faulty.pending


def test_a_store_that_is_away_is_asked_a_few_times(place: Place) -> None:
    place.faulty.arm(*(faulty.unavailable("replace", nth=n) for n in range(1, QUICK_TRIES)))
    assert place.count(place.mine.apply(place.counting())) == 1
    place.faulty.arm(*(faulty.unavailable("replace", nth=n) for n in range(1, QUICK_TRIES + 1)))
    with pytest.raises(Unavailable):
        place.mine.apply(place.counting())
    assert place.counted == 1
