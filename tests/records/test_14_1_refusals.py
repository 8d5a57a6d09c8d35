"""What some database could not keep or find is refused, or answered, at the call, and everywhere alike."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import Engine

from holdfast.core.errors import ConfigurationError
from holdfast.records import audit
from holdfast.records.database import changing
from holdfast.records.dead_letters import LetterStatus
from holdfast.records.history import HistoryFilter
from holdfast.records.tables import SqlHistoryTable, SqlLetterTable
from tests.records.samples import add_entry, add_letter, count

HALF = "a\ud800"
PROBLEMS = {
    "": "it is empty",
    "a\x00b": "it holds a NUL character",
    HALF: "it holds half of a surrogate pair",
    "k" * 201: "it has 201 characters, and 200 are the most",
}


def test_14_1_an_id_of_an_entry_is_refused_in_one_sentence(engine: Engine) -> None:
    for name in ("correlation_id", "instance_id", "item_id", "operation"):
        for key, problem in PROBLEMS.items():
            sentence = f"The {name.replace('_', ' ')} .* cannot be used .*: {problem}"
            with pytest.raises(ConfigurationError, match=sentence):
                add_entry(engine, **{name: key})
    assert count(engine, "holdfast_history") == 0


def test_14_1_what_no_row_can_hold_finds_none(engine: Engine) -> None:
    add_entry(engine)
    history, letters = SqlHistoryTable(engine), SqlLetterTable(engine)
    for key in list(PROBLEMS)[1:]:
        assert history.page(HistoryFilter(correlation_id=key)).items == []
        assert (history.get(key, key), history.succeeded(key, key, key), letters.get(key, key)) == (None, None, None)
        assert audit.page(engine, action=key).items == audit.page(engine, target=key).items == []


def test_14_2_a_row_key_with_a_number_no_row_can_have_finds_none(engine: Engine) -> None:
    assert SqlHistoryTable(engine).get("hmac", f"c-1-20260301T120000123456Z-{2**63}") is None


def test_14_1_no_change_fails_for_the_name_of_who_made_it(engine: Engine) -> None:
    new = add_letter(engine)
    with changing(engine) as connection:
        audit.record(connection, "eve\x00" * 100, HALF, "t\x00" * 400)
    SqlLetterTable(engine).resolve("hmac", new.row_key, "done", f"eve{HALF}\x00")
    [settled, recorded] = audit.page(engine).items
    assert (len(recorded.actor), len(recorded.target)) == (200, 500)
    assert settled.actor.startswith("eve")
    found = SqlLetterTable(engine).get("hmac", new.row_key)
    assert found is not None
    assert found.status is LetterStatus.RESOLVED
