"""Texts come back exactly as they were given, and what is kept of them every table takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.records import exact

texts = st.text(st.one_of(st.sampled_from("\x00\ud800\udfffa🦀"), st.characters()), max_size=50)
marked = st.builds(lambda text: "holdfast:base64:" + text, texts)


@given(st.one_of(texts, marked))
def test_a_text_comes_back(text: str) -> None:
    assert exact.is_plain(exact.kept(text))
    assert exact.given(exact.kept(text)) == text


@given(st.one_of(texts, marked), st.one_of(texts, marked))
def test_two_texts_are_never_kept_alike(one: str, other: str) -> None:
    assert (exact.kept(one) == exact.kept(other)) == (one == other)


@given(texts)
def test_what_people_read_every_table_takes(text: str) -> None:
    assert exact.is_plain(exact.legible(text))
    assert len(exact.legible(text)) == len(text)


def test_ordinary_texts_are_kept_as_they_are() -> None:
    assert exact.kept('{"key": "ü 🦀"}') == '{"key": "ü 🦀"}'
    assert exact.given("holdfast:base64:not ours!") == "holdfast:base64:not ours!"
