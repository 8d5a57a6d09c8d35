"""Line 14: a message that cannot be read stops its processor, names itself, and takes no other message with it."""

from __future__ import annotations

import pytest

from holdfast.core.errors import OutboxError
from tests.outbox.shops import Shop, write_effects

DAMAGES = {
    "postgresql": (
        "UPDATE holdfast_outbox SET appended_at = 'infinity' WHERE message_id = :id",
        "its column 'appended_at'",
    ),
    "mysql": ("UPDATE holdfast_outbox SET data = 'no json' WHERE message_id = :id", "its data, headers or time"),
    "sqlite": ("UPDATE holdfast_outbox SET data = CAST(x'47fc' AS TEXT) WHERE message_id = :id", "its column 'data'"),
}
MENDED = {
    "postgresql": "UPDATE holdfast_outbox SET appended_at = now() WHERE message_id = :id",
    "mysql": "UPDATE holdfast_outbox SET data = '{\"amount\": 2}' WHERE message_id = :id",
    "sqlite": "UPDATE holdfast_outbox SET data = '{\"amount\": 2}' WHERE message_id = :id",
}


@pytest.mark.parametrize("types", [None, ["Paid"]], ids=["every message", "some types"])
def test_14_14_messages_before_an_unreadable_one_are_delivered_and_it_is_named(
    shop: Shop, types: list[str] | None
) -> None:
    dialect = shop.app.database.dialect.name
    ids = shop.append(1, 2, 3)
    shop.number()
    damage, said = DAMAGES[dialect]
    shop.execute(damage, id=ids[1])
    shop.app.processor("totals", types=types)(write_effects)
    for _ in range(2):
        with pytest.raises(OutboxError, match=rf"^The message at position \d+ of the outbox cannot be read, .*{said}"):
            shop.run()
        assert shop.effects() == [1], "the one before it is delivered, once, and nothing is skipped"
    assert "cannot be read, and nothing behind it is delivered" in str(shop.place().reason)
    shop.execute(MENDED[dialect], id=ids[1])
    assert shop.run() == 2
    assert shop.effects() == [1, 2, 3]
