"""Ids, keys and types of messages are equal only if their bytes are, in every database."""

from __future__ import annotations

from typing import Any

from tests.outbox.shops import Shop

ALIKE = ["m-1", "m-1 ", "M-1", "m\u00ad-1", "mé-1", "me\u0301-1"]


def test_14_1_a_message_id_is_there_only_by_its_own_bytes(shop: Shop) -> None:
    with shop.app.database.begin() as connection:
        for name in ALIKE:
            appended = shop.app.outbox.append(connection, "Paid", {}, message_id=name, key=name, correlation_id=name)
            assert appended.is_new
        for name in ALIKE:
            assert not shop.app.outbox.append(connection, "Paid", {}, message_id=name).is_new
    seen: list[tuple[Any, ...]] = []

    @shop.app.processor("all")
    def collect(messages: list[Any]) -> None:
        seen.extend((message.message_id, message.key, message.correlation_id) for message in messages)

    assert shop.run("all") == len(ALIKE)
    assert seen == [(name, name, name) for name in ALIKE]


def test_14_1_types_that_look_alike_are_chosen_apart(shop: Shop) -> None:
    for kind in ALIKE:
        shop.append(1, kind=kind)
    seen: list[str] = []

    @shop.app.processor("one", types=["m-1 "])
    def collect(messages: list[Any]) -> None:
        seen.extend(message.type for message in messages)

    shop.run("one")
    assert seen == ["m-1 "]


def test_14_1_a_processor_that_no_row_can_name_has_no_place(shop: Shop) -> None:
    assert [shop.app.processors.checkpoints.of(name) for name in ("a\x00", "\ud800")] == [[], []]
