"""Every field of a record has one property of its row: one that had none would be lost without a word."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import pytest

from holdfast.engines.tables import azure_rows
from holdfast.records.dead_letters import DeadLetter
from tests.records.samples import letter


def fields_of_properties(table: str) -> Counter[str]:
    return Counter(field for field, _ in getattr(azure_rows, table).values())


def test_16_every_field_of_a_letter_has_one_property() -> None:
    assert fields_of_properties("LETTER_FIELDS") == Counter({each.name for each in fields(DeadLetter)} - {"row_key"})


def test_16_every_field_of_an_entry_has_one_property() -> None:
    elsewhere = {"key", "worker"}  # the row's own key; only jobs tell a worker, and theirs are in the database
    stored = {each.name for each in fields(azure_rows.KeyedEntry)} - elsewhere
    assert fields_of_properties("_ENTRY_FIELDS") == Counter(stored)


def test_16_a_field_without_a_property_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(azure_rows.LETTER_FIELDS, "RetriedAs")
    assert "RetriedAs" not in azure_rows.letter_row(letter(retried_as="m-2"))
    with pytest.raises(AssertionError):
        test_16_every_field_of_a_letter_has_one_property()
