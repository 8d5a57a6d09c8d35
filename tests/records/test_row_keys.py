"""Row keys: legal in an Azure Table, reversible, and never shared by two rows."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ConfigurationError
from holdfast.records.row_keys import (
    LONGEST_KEY,
    HistoryKey,
    dead_letter_key,
    decoded,
    encoded,
    history_key,
    is_table_key,
    parsed_history_key,
    table_history_key,
    table_history_prefix,
    timestamp_of,
)

ILLEGAL = re.compile(r"[/\\#?\x00-\x1f\x7f-\x9f]")
identifiers = st.text(
    st.one_of(st.sampled_from("/\\#?%~-TZ0123\t\n\x00\x7f\x9f ü"), st.characters(exclude_categories=["Cs"])),
    min_size=1,
    max_size=200,
)
moments = st.datetimes(timezones=st.just(UTC))
row_ids = st.integers(1, 2**63 - 1)


@given(identifiers)
def test_an_id_is_legal_in_a_key_and_comes_back(identifier: str) -> None:
    assert not ILLEGAL.search(encoded(identifier))
    assert decoded(encoded(identifier)) == identifier


@given(identifiers, moments, row_ids)
def test_a_history_key_tells_what_it_was_made_of(identifier: str, moment: datetime, row_id: int) -> None:
    key = history_key(identifier, moment, row_id)
    assert not ILLEGAL.search(key)
    assert parsed_history_key(key) == HistoryKey(identifier, moment, row_id)


@given(identifiers, identifiers, moments)
def test_a_letters_key_fits_and_differs_when_the_item_does(one: str, other: str, moment: datetime) -> None:
    keys = [dead_letter_key(item, moment) for item in (one, other)]
    assert all(0 < len(key) <= LONGEST_KEY and not ILLEGAL.search(key) for key in keys)
    assert (keys[0] == keys[1]) == (one == other)


@given(identifiers, identifiers, moments, row_ids)
def test_a_history_key_fits_an_azure_table_and_differs_when_the_id_does(
    one: str, other: str, moment: datetime, row_id: int
) -> None:
    keys = [table_history_key(identifier, moment, row_id) for identifier in (one, other)]
    assert all(is_table_key(key) for key in keys)
    assert all(is_table_key(dead_letter_key(identifier, moment)) for identifier in (one, other))
    assert keys[0].startswith(table_history_prefix(one))
    assert (keys[0] == keys[1]) == (one == other)


@pytest.mark.parametrize("identifier", ["/" * 200, "🦀" * 200, "🦀" * 161 + "/" * 39, "a" * 200, "🦀" * 160 + "/" * 40])
def test_the_longest_ids_fit_an_azure_table(identifier: str) -> None:
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    assert is_table_key(table_history_key(identifier, moment, 2**63 - 1))
    assert is_table_key(dead_letter_key(identifier, moment))


def test_no_id_looks_like_the_key_of_a_long_one() -> None:
    """Whoever knows how a long id is shortened must not be able to make another that is taken for it."""
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    for number in range(300):
        long_id = f"{number:03d}" + "x" * 300
        shortened = dead_letter_key(long_id, moment).removesuffix(f"-{timestamp_of(moment)}")
        as_text = re.sub("~([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), shortened)
        for forged in (shortened, as_text, shortened.replace("~~", "~"), shortened.replace("~~", "")):
            assert dead_letter_key(forged, moment) != dead_letter_key(long_id, moment)


@pytest.mark.parametrize("key", ["", "a/b", "a\\b", "a#b", "a?b", "a\x00", "a\x9f", "\ud800", "x" * 513, "🦀" * 257])
def test_what_an_azure_table_does_not_take(key: str) -> None:
    assert not is_table_key(key)


def test_the_standards_form() -> None:
    moment = datetime(2026, 3, 1, 13, 2, 3, 4567, tzinfo=timezone(timedelta(hours=1)))
    assert timestamp_of(moment) == "20260301T120203004567Z"
    assert history_key("c/1", moment, 7) == "c~2F1-20260301T120203004567Z-7"
    assert dead_letter_key("job-7", moment) == "job-7-20260301T120203004567Z"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "c-1",
        "c-20260301T120203004567Z",
        "c-20260301T120203004567Z-0",
        "c-20260301T120203004567Z-07",
        "c-20260301T120203004567Z-x",
        "c-20261301T120203004567Z-7",
        "c~2f-20260301T120203004567Z-7",
        "c/1-20260301T120203004567Z-7",
        "c~-20260301T120203004567Z-7",
        "c-20260301T120203004567Z-99999999999999999999",
        "c-20260301T120203004567Z-\u0667",
    ],
)
def test_a_text_that_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a row key"):
        parsed_history_key(key)
