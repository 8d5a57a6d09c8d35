"""[14.6] A sequence that begins to hand out positions out of turn is noticed while a processor reads by them."""

from __future__ import annotations

import pytest

from holdfast.core.errors import SourceConfigurationError
from holdfast.outbox.reader import OutboxReader, Selection
from tests.outbox.shops import Shop

pytestmark = pytest.mark.component("postgres18")


def test_14_6_a_cached_sequence_of_positions_is_noticed_by_the_next_read(postgres_shop: Shop) -> None:
    reader = OutboxReader(postgres_shop.app.database, Selection(), "position")
    postgres_shop.append(1)
    assert [message.data for message in reader.read(None, 10).messages] == [{"amount": 1}]
    [found] = postgres_shop.execute("SELECT pg_get_serial_sequence('holdfast_outbox', 'position') AS name")
    postgres_shop.execute(f"ALTER SEQUENCE {found['name']} CACHE 50")
    with pytest.raises(SourceConfigurationError, match="caches 50 ids per session"):
        reader.read(None, 10)
    postgres_shop.execute(f"ALTER SEQUENCE {found['name']} CACHE 1")
    assert len(reader.read(None, 10).messages) == 1
