"""Checkpoints of another PostgreSQL cluster are refused, and can be taken over without losing a place."""

from __future__ import annotations

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.core.errors import ConfigurationError, ForeignCheckpointError
from holdfast.database.pools import EngineProvider
from holdfast.outbox.cluster_restore import adopt
from holdfast.outbox.message import Message
from tests.components.postgres import PostgresServer, find_postgres18, runnable
from tests.components.processes import wait_until
from tests.outbox.shops import Shop, open_shop

pytestmark = pytest.mark.component("postgres18")


@pytest.fixture
def shop(postgres_shop: Shop) -> Shop:
    return postgres_shop


class Reader:
    """A processor that remembers what it got, a batch of one at a time."""

    def __init__(self, shop: Shop, processor_id: str = "totals", **options: object) -> None:
        self.seen: list[int] = []
        self.id = processor_id
        self._shop = shop
        shop.app.processor(processor_id, batch_size=1, **options)(self.take)  # type: ignore[arg-type]  # as given

    def take(self, messages: list[Message]) -> None:
        self.seen += [message.data["amount"] for message in messages]

    def step(self, times: int) -> None:
        self._shop.app.processors.register()
        processor = self._shop.app.processors.get(self.id)
        runner = self._shop.app.processors.runner(processor, processor.partition_ids[0])
        with runner.leased() as lease:
            for _ in range(times):
                runner.process_batch(lease)

    def run(self) -> None:
        self._shop.run(self.id)


def move_to_another_cluster(shop: Shop, by: int) -> None:
    """Make everything look as after a dump of a cluster whose transaction ids were higher by ``by``."""
    shop.execute("UPDATE holdfast_outbox SET transaction_id = (transaction_id::text::bigint + :by)::text::xid8", by=by)
    shop.execute(
        "UPDATE holdfast_processor_checkpoints SET system_identifier = 'another', last_processed_transaction_id = "
        "(last_processed_transaction_id::text::bigint + :by)::text::xid8",
        by=by,
    )


def adopted(shop: Shop) -> tuple[int, int]:
    found = adopt(shop.app.database, shop.app.processors.checkpoints, actor="anne")
    return found.messages, found.places


def test_a_checkpoint_of_another_cluster_is_refused_with_the_way_out(shop: Shop) -> None:
    shop.append(1)
    reader = Reader(shop)
    reader.step(1)
    shop.execute("UPDATE holdfast_processor_checkpoints SET system_identifier = '42'")
    with pytest.raises(ForeignCheckpointError, match=r"cluster 42.*holdfast outbox adopt"):
        reader.run()
    assert reader.seen == [1]


def test_a_checkpoint_ahead_of_the_server_is_refused(shop: Shop) -> None:
    shop.append(1)
    reader = Reader(shop)
    reader.step(1)
    shop.execute("UPDATE holdfast_processor_checkpoints SET last_processed_transaction_id = '999999999'")
    with pytest.raises(ForeignCheckpointError, match="lies ahead of this server"):
        reader.run()


def test_messages_ahead_of_the_server_are_refused(shop: Shop) -> None:
    shop.append(1)
    shop.execute("UPDATE holdfast_outbox SET transaction_id = '999999999'")
    with pytest.raises(ForeignCheckpointError, match="messages of transactions this server has not reached"):
        Reader(shop).run()


@pytest.mark.parametrize("by", [1_000_000, -10])
def test_what_was_restored_is_taken_over_with_every_place(shop: Shop, by: int) -> None:
    shop.append_each(1, 2, 3, 4)
    ahead, behind, fresh = Reader(shop, "ahead"), Reader(shop, "behind"), Reader(shop, "fresh")
    ahead.step(3)
    behind.step(1)
    shop.app.processors.register()
    move_to_another_cluster(shop, by)
    shop.append_each(5)
    with pytest.raises(ForeignCheckpointError):
        ahead.run()
    messages, places = adopted(shop)
    assert messages >= 3
    assert places == 3
    shop.append_each(6)
    for reader in (ahead, behind, fresh):
        reader.run()
        assert reader.seen == [1, 2, 3, 4, 5, 6]
    assert adopted(shop) == (0, 0)


def test_what_was_taken_over_once_can_be_again(shop: Shop) -> None:
    shop.append_each(1, 2, 3)
    reader = Reader(shop)
    reader.step(2)
    for _ in range(2):
        move_to_another_cluster(shop, 1_000_000)
        adopted(shop)
    shop.append_each(4)
    reader.run()
    assert reader.seen == [1, 2, 3, 4]


def test_the_order_of_transactions_is_kept(shop: Shop) -> None:
    with shop.app.database.connect() as first, shop.app.database.connect() as second:
        one, other = first.begin(), second.begin()
        shop.app.outbox.append(first, "Paid", {"amount": 1})
        shop.app.outbox.append(second, "Paid", {"amount": 3})
        shop.app.outbox.append(first, "Paid", {"amount": 2})
        other.commit()
        one.commit()
    reader = Reader(shop)
    reader.step(2)
    move_to_another_cluster(shop, 1_000_000)
    adopted(shop)
    reader.run()
    assert reader.seen == [1, 2, 3]


def test_only_postgresql_needs_it(sqlite_shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="works as it is"):
        adopt(sqlite_shop.app.database, sqlite_shop.app.processors.checkpoints, actor="anne")


def test_a_recovered_server_goes_on_when_the_checkpoint_fits_and_refuses_when_not() -> None:
    """Recovery keeps the cluster's identifier and starts a new timeline."""
    binaries = find_postgres18()
    assert binaries is not None
    with PostgresServer(runnable(binaries)) as server, open_shop(server.url(server.create_database())) as shop:
        shop.append_each(1, 2)
        reader = Reader(shop)
        reader.step(1)
        before = shop.place()
        for engine in shop.provider._engines.values():
            engine.dispose()
        recover(server)
        reader.run()
        after = shop.place()
        assert (after.system_identifier, after.timeline) == (before.system_identifier, (before.timeline or 0) + 1)
        assert reader.seen == [1, 2]
        shop.execute("UPDATE holdfast_processor_checkpoints SET timeline = 1")
        shop.execute("UPDATE holdfast_outbox SET transaction_id = '3'")
        with pytest.raises(ForeignCheckpointError, match="a time that a recovery undid"):
            reader.run()


def recover(server: PostgresServer) -> None:
    """Restart a server as after a restore: it replays its log and goes on in a new timeline."""
    server.stop()
    (server.data / "recovery.signal").touch()
    server.settings["restore_command"] = "false"
    server.start()
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        still = "SELECT NOT pg_is_in_recovery()"
        wait_until(lambda: connection.execute(still).fetchone() == (True,), "the end of the recovery")


def test_another_application_on_the_same_database_finds_the_same_cluster(shop: Shop) -> None:
    shop.append(1)
    Reader(shop).run()
    other = Holdfast(shop.url, app_name="other", engine_provider=EngineProvider())
    seen: list[Message] = []
    other.processor("others")(lambda messages: seen.extend(messages))
    assert other.processors.run_until_caught_up("others") == 1
    other._provider.dispose_all()
    assert len(seen) == 1


def test_a_processor_that_began_here_before_the_adoption_gets_everything(shop: Shop) -> None:
    shop.append_each(1, 2, 3, 4)
    Reader(shop, "restored").step(2)
    move_to_another_cluster(shop, -10)
    fresh = Reader(shop, "fresh")
    fresh.step(1)
    adopted(shop)
    shop.append_each(5)
    fresh.run()
    assert fresh.seen == [1, 2, 3, 4, 5]
