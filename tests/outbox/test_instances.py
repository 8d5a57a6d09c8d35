"""Several instances of one processor: one works, the others wait and are seen to; a dead one is taken over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from holdfast.core.clock import SystemClock
from holdfast.core.errors import CheckpointMismatchError, LeaseConflictError, LostLeaseError, Unavailable
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Message
from holdfast.outbox.runner import PartitionRunner
from holdfast.runtime.leased_part import LeasedPart
from holdfast.runtime.supervisor import Supervisor
from tests.components.processes import wait_until
from tests.outbox.shops import Shop, write_effects


def runner_of(shop: Shop, processor_id: str = "totals") -> PartitionRunner:
    processor = shop.app.processors.get(processor_id)
    shop.app.processors.register()
    return shop.app.processors.runner(processor, processor.partition_ids[0])


@contextmanager
def working(shop: Shop) -> Iterator[None]:
    """Run an application's processors beside the block."""
    stop = threading.Event()
    shop.app.processors.register()
    parts = [LeasedPart(work, stop, clock=SystemClock()) for work in shop.app.processors.works(stop=stop)]
    thread = threading.Thread(target=Supervisor(parts, stop).run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def twin(shop: Shop) -> Iterator[Shop]:
    other = shop.another()
    yield other
    other.provider.dispose_all()


def test_a_second_instance_waits_and_is_seen_to(shop: Shop, twin: Shop) -> None:
    for each in (shop, twin):
        each.app.processor("totals")(write_effects)
    with runner_of(shop).leased() as lease:
        with pytest.raises(LeaseConflictError), runner_of(twin).leased():
            pass
        [view] = shop.app.processors.operator.views("totals")
        assert view.holder == lease.owner_id
        assert len(view.waiting) == 1
        assert view.waiting[0] != lease.owner_id
    waiting = runner_of(twin)
    with waiting.leased() as taken:
        assert taken.fencing_token > lease.fencing_token


def test_the_second_instance_goes_on_when_the_first_stops(shop: Shop, twin: Shop) -> None:
    for each in (shop, twin):
        each.app.processor("totals", poll_seconds=0.01)(write_effects)
    with working(twin):
        with working(shop):
            shop.append(1)
            wait_until(lambda: shop.effects() == [1], "the first message")
        shop.append(2)
        wait_until(lambda: sorted(shop.effects()) == [1, 2], "the second message, by the other instance")


def test_an_idle_owner_keeps_its_lease_by_heartbeat(shop: Shop, twin: Shop) -> None:
    for each in (shop, twin):
        each.app.processor("totals", lease_seconds=2.0)(write_effects)
    with runner_of(shop).leased() as lease:
        beats = lease.now()
        first = shop.app.processors.leases.read("totals.v1.p0")
        assert first is not None
        wait_until(lambda: (lease.now() - beats).total_seconds() > 4.2, "more than two leases of idleness")
        with pytest.raises(LeaseConflictError), runner_of(twin).leased():
            pass
        assert not lease.lost.is_set()


def test_a_stale_holder_commits_nothing_and_its_effects_are_rolled_back(shop: Shop, twin: Shop) -> None:
    """[OUTBOX-2] The holder's token is replaced, as by an instance that took over meanwhile."""
    shop.append(1)
    taken_over = []

    @shop.app.processor("totals", transactional=True)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        write_effects(messages, context)

    stale = runner_of(shop)
    with stale.leased() as lease:
        shop.number()
        twin.app.processors.checkpoints.take_over(stale.id, lease.fencing_token + 1, 1)
        taken_over.append(lease.fencing_token)
        with pytest.raises((CheckpointMismatchError, LostLeaseError)):
            stale.process_batch(lease)
        with pytest.raises(LostLeaseError):
            stale.process_batch(lease)
    assert taken_over
    assert shop.effects() == []
    assert shop.place().checkpoint is None


def test_a_checkpoint_moved_meanwhile_skips_the_handler(shop: Shop) -> None:
    """[OUTBOX-2] The checkpoint is stored first: on a mismatch the handler is not called at all."""
    ids = shop.append(1, 2)
    called: list[str] = []

    @shop.app.processor("totals", batch_size=1)
    def totals(messages: list[Message]) -> None:
        called.extend(message.message_id for message in messages)

    runner = runner_of(shop)
    shop.number()
    with runner.leased() as lease:
        place = shop.place()
        first = runner._reader.read(place.checkpoint, 1).reached
        shop.app.processors.operator.reset("totals", first, actor="anne")
        with pytest.raises(CheckpointMismatchError, match=r"ignored|ahead"):
            runner.process_batch(lease)
        assert called == []
        runner.process_batch(lease)
    assert called == ids[1:]


def test_handlers_cannot_keep_an_idle_transaction_past_the_lease(postgres_shop: Shop) -> None:
    postgres_shop.append(1)
    limits: list[str] = []

    @postgres_shop.app.processor("totals", lease_seconds=7)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        asked = text("SHOW idle_in_transaction_session_timeout")
        limits.append(context.transaction.execute(asked).scalar_one())

    postgres_shop.run()
    assert limits == ["7s"]


def test_the_same_on_mariadb(mariadb_shop: Shop) -> None:
    mariadb_shop.append(1)
    limits: list[int] = []

    @mariadb_shop.app.processor("totals", lease_seconds=7)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        limits.append(context.transaction.execute(text("SELECT @@session.idle_transaction_timeout")).scalar_one())

    mariadb_shop.run()
    assert limits == [7]


def test_when_caught_up_waits_for_what_is_committed(shop: Shop) -> None:
    shop.app.processor("totals", poll_seconds=0.01)(write_effects)
    shop.append(1, 2, 3)
    with working(shop):
        shop.app.processors.when_caught_up("totals")
        assert sorted(shop.effects()) == [1, 2, 3]
        shop.append(4)
        shop.app.processors.when_caught_up("totals")
        assert sorted(shop.effects()) == [1, 2, 3, 4]


@pytest.mark.parametrize("url", ["postgres_shop", "mariadb_shop"])
def test_a_takeover_does_not_wait_for_ever_for_the_row(request: pytest.FixtureRequest, url: str) -> None:
    """A transaction of the former holder that is still open is waited for a quarter of the lease, then tried again."""
    shop: Shop = request.getfixturevalue(url)
    shop.app.processor("totals")(write_effects)
    shop.app.processors.register()
    place = shop.place()
    with shop.app.database.connect() as former, former.begin():
        former.execute(
            text("UPDATE holdfast_processor_checkpoints SET reason = 'frozen' WHERE processor_id = 'totals'")
        )
        with pytest.raises(Unavailable, match="busy"):
            shop.app.processors.checkpoints.take_over(place.id, 5, 1.0)
    assert shop.app.processors.checkpoints.take_over(place.id, 5, 1.0) is not None
