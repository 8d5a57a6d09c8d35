"""A processor looks which cluster it is in after each new session, not only when it takes over."""

from __future__ import annotations

import pytest

from holdfast.core.errors import ForeignCheckpointError
from holdfast.outbox.cluster_identity import Cluster
from tests.outbox.shops import Shop

pytestmark = pytest.mark.component("postgres18")


def deliver_across_a_new_session(shop: Shop) -> list[int]:
    """Deliver one message; then every session is a new one, and what was there is another cluster's."""
    seen: list[int] = []
    shop.app.processor("totals", batch_size=1)(lambda messages: seen.extend(each.data["amount"] for each in messages))
    shop.append_each(1, 2)
    shop.app.processors.register()
    processor = shop.app.processors.get("totals")
    runner = shop.app.processors.runner(processor, processor.partition_ids[0])
    with runner.leased() as lease:
        runner.process_batch(lease)
        shop.execute("UPDATE holdfast_processor_checkpoints SET system_identifier = '42'")
        shop.app.processors.engine.dispose()
        runner.process_batch(lease)
        runner.process_batch(lease)
    return seen


def test_a_new_session_that_leads_to_another_cluster_is_noticed(postgres_shop: Shop) -> None:
    with pytest.raises(ForeignCheckpointError, match="cluster 42"):
        deliver_across_a_new_session(postgres_shop)


def test_without_the_guard_it_goes_on(postgres_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "sessions", 0)
    assert deliver_across_a_new_session(postgres_shop) == [1, 2]
