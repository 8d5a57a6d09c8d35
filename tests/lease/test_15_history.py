"""The rule that finds where to go on after a restore: never above what was taken back, and not far below it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import LostLeaseError, RestoredSourceError
from holdfast.core.types import FencingToken, JsonObject, OwnerId
from holdfast.database.history import History, left_at, mariadb_marks, mysql_marks
from holdfast.lease import document as doc
from holdfast.lease.history import Fit, KeptHistory, begun, continued, judged, kept_history, moved_on, turned_back


def here(
    position: int,
    timeline: int = 1,
    past: Mapping[str, int] | None = None,
    past_unknown: str | None = None,
    next_transaction: int | None = None,
) -> History:
    return History("7", "5", str(timeline), {str(timeline): position}, past or {}, past_unknown, next_transaction)


def checkpoint(row: int) -> JsonObject:
    return {"cursor": {"kind": "integer", "value": str(row)}, "last_successful_batch_id": f"batch_{row}"}


def after(batches: int) -> KeptHistory:
    """Return what is kept after some batches of one row each: row n was committed at position n."""
    kept = begun(here(0), {}, is_together=False)
    for row in range(1, batches + 1):
        kept = continued(kept, here(row), checkpoint(row))
    return kept


@given(st.integers(1, 900), st.data())
def test_it_goes_back_to_a_place_that_is_left_and_not_far_below(batches: int, data: st.DataObject) -> None:
    fork = data.draw(st.integers(0, batches - 1))
    kept, present = after(batches), here(batches + 50, 2, past={"1": fork})
    finding = judged("orders", kept, present, is_together=False)
    assert finding.fit is Fit.TAKEN_BACK
    assert finding.place is not None
    row = int(finding.place.checkpoint.get("cursor", {"value": 0})["value"])
    assert row <= fork
    assert batches - row <= 2 * (batches - fork) + 4
    back = turned_back(kept, present, finding.place)
    assert judged("orders", back, here(batches + 60, 2), is_together=False).fit is Fit.SAME


@pytest.mark.parametrize("batches", [1, 10, 1000, 10_000])
def test_what_is_kept_is_bounded_and_in_order(batches: int) -> None:
    kept = after(batches)
    assert len(kept.recent) <= 24
    assert all(one.batch < other.batch for one, other in pairwise(kept.recent))


def test_nothing_taken_back_moves_on_and_tells_what_comes_next_by_the_new_timeline() -> None:
    kept, present = after(3), here(9, 2, past={"1": 3})
    assert judged("orders", kept, present, is_together=False).fit is Fit.MOVED_ON
    assert judged("orders", moved_on(kept, present), here(9, 2), is_together=False).fit is Fit.SAME


@pytest.mark.parametrize(
    ("present", "sentence"),
    [
        (History("8", "5", "1", {"1": 9}), "of the system 8: its rows were restored elsewhere"),
        (History("7", "6", "1", {"1": 9}), "this is database 6 of the system 7"),
        (here(9, 2, past_unknown="run: GRANT this"), "is of timeline 1, and this is 2: run: GRANT this"),
    ],
)
def test_what_nobody_can_know_is_refused_with_the_choices(present: History, sentence: str) -> None:
    choices = ("holdfast trigger adopt orders", "reset-to-cursor", "reset-to-beginning")
    with pytest.raises(RestoredSourceError) as refused:
        judged("orders", after(3), present, is_together=False)
    assert all(part in str(refused.value) for part in (sentence, *choices))


def test_state_beside_the_rows_goes_on_but_transaction_ids_of_another_cluster_are_refused() -> None:
    kept, elsewhere = begun(here(3), checkpoint(3), is_together=True), History("8", "5", "1", {"1": 1})
    assert judged("orders", kept, here(1, 2), is_together=True).fit is Fit.WENT_TOGETHER
    assert judged("orders", kept, elsewhere, is_together=True).fit is Fit.WENT_TOGETHER
    with pytest.raises(RestoredSourceError, match="where ids mean others"):
        judged("orders", kept, elsewhere, is_together=True, transaction=700)
    with pytest.raises(RestoredSourceError, match="whose next one is 700"):
        judged("orders", None, here(3, next_transaction=700), is_together=True, transaction=700)


def test_a_checkpoint_that_an_older_release_has_moved_is_not_held_against_its_history() -> None:
    document = {"checkpoint": checkpoint(3), "history": after(3).to_json(checkpoint(3))}
    assert kept_history(document) == after(3)
    assert kept_history({**document, "checkpoint": checkpoint(4)}) is None
    assert kept_history({**document, "history": {**document["history"], "recent": "none"}}) is None


def test_large_places_are_not_kept() -> None:
    large = {**checkpoint(1), "lookback": ["x" * 5000]}
    assert [place.batch for place in continued(after(0), here(1), large).recent] == [0]


def test_what_the_databases_write_of_their_histories_is_read() -> None:
    assert left_at("1\t0/3000158\tno recovery target specified\n\n2\tA/FF\tbefore\n") == {
        "1": 0x3000158,
        "2": (0xA << 32) + 0xFF,
    }
    assert mariadb_marks("0-1-12,1-3-7") == {"0-1": 12, "1-3": 7}
    assert mariadb_marks("") == {}
    assert mysql_marks("a1:1-5:7-9,\nb2:1:tag:3-4") == {"a1": 9, "b2": 1, "b2:tag": 4}


def test_only_the_holder_goes_back_and_its_former_token_is_of_no_use_then() -> None:
    now, ttl = datetime(2026, 1, 1, tzinfo=UTC), timedelta(seconds=30)
    margin = timedelta(seconds=1)
    held = doc.acquire(
        None, poller_name="orders", source=None, owner_id=OwnerId("a"), ttl=ttl, skew_margin=margin, now=now
    )
    holder, other = doc.Holder(OwnerId("a"), FencingToken(1)), doc.Holder(OwnerId("b"), FencingToken(1))
    with pytest.raises(LostLeaseError):
        doc.gone_back(held, other, {}, {}, ttl=ttl, now=now)
    back = doc.gone_back(held, holder, {}, checkpoint(2), ttl=ttl, now=now)
    assert back["checkpoint"]["cursor"] == checkpoint(2)["cursor"]
    assert back["lease"]["fencing_token"] == 1 + doc.TOKENS_LEFT_OUT
    with pytest.raises(LostLeaseError):
        doc.commit(back, holder, {}, ttl=ttl, now=now)


def test_a_clone_begins_a_history_of_its_own() -> None:
    document = {**doc.empty("orders"), "checkpoint": checkpoint(3), "history": after(3).to_json(checkpoint(3))}
    assert kept_history(doc.clone(document, "copy")) is None
