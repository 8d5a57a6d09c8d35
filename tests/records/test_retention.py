"""Retention: 90 days for history and settled letters, for ever for Pending ones."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import Engine

from holdfast.core.errors import ConfigurationError
from holdfast.records.dead_letters import LetterStatus
from holdfast.records.retention import Pruned, prune
from holdfast.records.tables import SqlHistoryTable, SqlLetterTable
from tests.records.samples import add_entry, add_letter, count, days_ago


def test_old_history_is_forgotten(engine: Engine) -> None:
    add_entry(engine, created_at=days_ago(91))
    young = add_entry(engine, created_at=days_ago(89))
    assert prune(engine) == Pruned(history=1, dead_letters=0)
    assert [entry.id for entry in SqlHistoryTable(engine).page().items] == [young]


def test_what_a_letters_status_means_for_its_retention(engine: Engine) -> None:
    old, young = days_ago(91), days_ago(89)
    pending = add_letter(engine, item="pending", last_failure_at=days_ago(9000))
    add_letter(engine, item="long resolved", status=LetterStatus.RESOLVED, last_failure_at=old, resolved_at=old)
    resolved = add_letter(
        engine, item="just resolved", status=LetterStatus.RESOLVED, last_failure_at=old, resolved_at=young
    )
    add_letter(engine, item="long expired", status=LetterStatus.EXPIRED, last_failure_at=old, resolved_at=old)
    add_letter(engine, item="of another program", status=LetterStatus.EXPIRED, last_failure_at=old)
    expired = add_letter(
        engine, item="just expired", status=LetterStatus.EXPIRED, last_failure_at=old, resolved_at=young
    )
    assert prune(engine) == Pruned(history=0, dead_letters=3)
    assert {item.item_id for item in SqlLetterTable(engine).page().items} == {
        pending.item_id,
        resolved.item_id,
        expired.item_id,
    }


def test_the_days_can_be_chosen(engine: Engine) -> None:
    add_entry(engine, created_at=days_ago(8))
    add_letter(engine, status=LetterStatus.EXPIRED, last_failure_at=days_ago(8))
    assert prune(engine, history_days=9, dead_letter_days=9) == Pruned(0, 0)
    assert prune(engine, history_days=7, dead_letter_days=9) == Pruned(1, 0)
    assert prune(engine, history_days=7, dead_letter_days=7) == Pruned(0, 1)


def test_days_beyond_the_calendar_keep_everything(engine: Engine) -> None:
    add_entry(engine, created_at=days_ago(100))
    add_letter(engine, last_failure_at=days_ago(100))
    assert prune(engine, history_days=1e12, dead_letter_days=900_000) == Pruned(0, 0)
    assert SqlLetterTable(engine).expire(1e12, actor="eve") == 0


def test_batches_cover_everything_and_no_more(engine: Engine) -> None:
    for number in range(7):
        add_entry(engine, created_at=days_ago(100))
        add_letter(engine, item=f"m-{number}", status=LetterStatus.EXPIRED, last_failure_at=days_ago(100))
    add_entry(engine)
    assert prune(engine, batch_size=3) == Pruned(7, 7)
    assert count(engine, "holdfast_history") == 1


def test_a_young_entry_among_old_ones_does_not_stop_it(engine: Engine) -> None:
    young = add_entry(engine)
    for _ in range(4):
        add_entry(engine, created_at=days_ago(100))
    assert prune(engine, batch_size=2).history == 4
    assert [entry.id for entry in SqlHistoryTable(engine).page().items] == [young]


@pytest.mark.parametrize("wrong", [{"history_days": -1}, {"dead_letter_days": -0.5}, {"batch_size": 0}])
def test_wrong_numbers_are_refused(engine: Engine, wrong: dict[str, int]) -> None:
    add_entry(engine, created_at=days_ago(100))
    with pytest.raises(ConfigurationError, match="0 or more"):
        prune(engine, **wrong)
    assert count(engine, "holdfast_history") == 1
