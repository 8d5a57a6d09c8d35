"""Texts come back exactly as they were given, and what is kept of them every table takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.key_text import is_plain
from holdfast.records import storable_text

texts = st.text(st.one_of(st.sampled_from("\x00\ud800\udfffa🦀"), st.characters()), max_size=50)
marked = st.builds(lambda text: "holdfast:base64:" + text, texts)


@given(st.one_of(texts, marked))
def test_a_text_comes_back(text: str) -> None:
    assert is_plain(storable_text.kept(text))
    assert storable_text.given(storable_text.kept(text)) == text


@given(st.one_of(texts, marked), st.one_of(texts, marked))
def test_two_texts_are_never_kept_alike(one: str, other: str) -> None:
    assert (storable_text.kept(one) == storable_text.kept(other)) == (one == other)


@given(texts)
def test_what_people_read_every_table_takes(text: str) -> None:
    assert is_plain(storable_text.legible(text))
    assert len(storable_text.legible(text)) == len(text)


def test_ordinary_texts_are_kept_as_they_are() -> None:
    assert storable_text.kept('{"key": "ü 🦀"}') == '{"key": "ü 🦀"}'
    assert storable_text.given("holdfast:base64:not ours!") == "holdfast:base64:not ours!"
