"""Versions: a new one runs beside the old one until it is promoted; rebuilding empties and replays in one go."""

from __future__ import annotations

import pytest

from holdfast.core.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    Conflict,
    LeaseConflictError,
    NotFoundError,
    Unavailable,
)
from holdfast.core.retry import RetryPolicy
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Message
from holdfast.outbox.store import Role
from holdfast.records.tables import SqlLetterTable
from tests.outbox.shops import Shop, write_effects


def roles(shop: Shop) -> dict[int, Role]:
    return {place.id.version: place.role for place in shop.app.processors.checkpoints.of("totals")}


def quiet(messages: list[Message]) -> None:
    """Do nothing."""


def test_a_new_version_runs_beside_the_old_one_until_it_is_promoted(shop: Shop) -> None:
    told: list[tuple[int, bool]] = []

    def note(messages: list[Message], context: ProcessorContext) -> None:
        told.extend((context.version, context.is_active) for _ in messages)

    shop.append(1, 2)
    shop.app.processor("totals", version=1)(note)
    shop.run("totals", 1)
    shop.app.processor("totals", version=2)(note)
    shop.run("totals", 2)
    assert told == [(1, True)] * 2 + [(2, False)] * 2
    assert roles(shop) == {1: Role.ACTIVE, 2: Role.BESIDE}
    assert shop.app.processors.operator.promote("totals", actor="anne") == 2
    assert roles(shop) == {1: Role.RETIRED, 2: Role.ACTIVE}
    shop.append(3)
    told.clear()
    with pytest.raises(ConfigurationError, match="was retired when version 2 was promoted"):
        shop.app.processors.register()
    del shop.app.processors._processors[("totals", 1)]
    shop.run("totals", 2)
    assert told == [(2, True)]


def test_a_retired_version_delivers_no_more(shop: Shop) -> None:
    shop.app.processor("totals", version=1)(write_effects)
    shop.app.processor("totals", version=2)(quiet)
    shop.run("totals", 1)
    old = shop.app.processors.get("totals", 1)
    runner = shop.app.processors.runner(old, old.partition_ids[0])
    with runner.leased() as lease:
        shop.app.processors.operator.promote("totals", 2, actor="anne", force=True)
        shop.append(1)
        shop.number()
        with pytest.raises(Exception, match="not in charge"):
            runner.process_batch(lease)
    assert shop.effects() == []


def test_a_version_that_has_not_caught_up_is_not_promoted(shop: Shop) -> None:
    shop.append_each(1, 2, 3)
    shop.app.processor("totals", version=1)(quiet)
    shop.run("totals", 1)
    shop.app.processor("totals", version=2)(quiet)
    shop.app.processors.register()
    with pytest.raises(Conflict, match="has 3 messages before it"):
        shop.app.processors.operator.promote("totals", actor="anne")
    assert roles(shop) == {1: Role.ACTIVE, 2: Role.BESIDE}
    assert shop.app.processors.operator.promote("totals", actor="anne", force=True) == 2


def test_what_cannot_be_promoted_is_told(shop: Shop) -> None:
    shop.app.processor("totals")(quiet)
    shop.app.processors.register()
    operator = shop.app.processors.operator
    with pytest.raises(Conflict, match="No version of processor 'totals' runs beside"):
        operator.promote("totals", actor="anne")
    with pytest.raises(Conflict, match="is active"):
        operator.promote("totals", 1, actor="anne")
    with pytest.raises(NotFoundError, match="has no version 7"):
        operator.promote("totals", 7, actor="anne")
    with pytest.raises(NotFoundError, match="There is no processor 'other'"):
        operator.promote("other", actor="anne")


def test_another_partition_count_for_a_version_is_refused(shop: Shop) -> None:
    shop.app.processor("totals", partitions=2)(quiet)
    shop.app.processors.register()
    again = shop.another()
    again.app.processor("totals", partitions=3)(quiet)
    with pytest.raises(ConfigurationError, match="stored with 2 partitions, and 3 are declared"):
        again.app.processors.register()
    again.provider.dispose_all()


def test_another_order_for_a_version_is_refused(shop: Shop) -> None:
    shop.app.processor("totals")(quiet)
    shop.app.processors.register()
    again = shop.another()
    again.app.processor("totals", order="position")(quiet)
    with pytest.raises(ConfigurationError, match="stored with order='transaction'"):
        again.app.processors.register()
    again.provider.dispose_all()


def test_two_declarations_of_a_version_are_refused(shop: Shop) -> None:
    shop.app.processor("totals")(quiet)
    with pytest.raises(ConfigurationError, match="two processors 'totals' of version 1"):
        shop.app.processor("totals")(quiet)


def test_a_rebuild_empties_the_tables_and_replays_everything_once(shop: Shop) -> None:
    shop.append_each(1, 2, 3)
    shop.app.processor("totals", batch_size=2)(write_effects)
    shop.run()
    shop.execute("INSERT INTO effects VALUES ('wrong', 99)")
    operator = shop.app.processors.operator
    assert operator.start_rebuild("totals", ["effects"], actor="anne")
    assert shop.effects() == []
    assert not operator.rebuild_progress("totals").is_over
    shop.run()
    progress = operator.rebuild_progress("totals")
    assert (progress.done, progress.total, progress.is_over) == (3, 3, True)
    operator.end_rebuild("totals")
    assert sorted(shop.effects()) == [1, 2, 3]
    assert not operator.is_rebuilding("totals", 1)


def test_a_rebuild_that_was_cut_short_goes_on_without_emptying_again(shop: Shop) -> None:
    shop.append_each(1, 2, 3)
    shop.app.processor("totals", batch_size=1)(write_effects)
    shop.run()
    operator = shop.app.processors.operator
    operator.start_rebuild("totals", ["effects"], actor="anne")
    processor = shop.app.processors.get("totals")
    runner = shop.app.processors.runner(processor, processor.partition_ids[0])
    with runner.leased() as lease:
        runner.process_batch(lease)
    assert len(shop.effects()) == 1
    assert not operator.start_rebuild("totals", ["effects"], actor="anne")
    assert len(shop.effects()) == 1
    assert operator.rebuild_progress("totals").done == 1
    shop.run()
    assert sorted(shop.effects()) == [1, 2, 3]


def test_what_cannot_be_emptied_changes_nothing(shop: Shop) -> None:
    shop.append(1)
    shop.app.processor("totals")(write_effects)
    shop.run()
    operator = shop.app.processors.operator
    with pytest.raises(ConfigurationError, match="nowhere"):
        operator.start_rebuild("totals", ["effects", "nowhere"], actor="anne")
    with pytest.raises(ConfigurationError, match="table of Holdfast itself"):
        operator.start_rebuild("totals", ["holdfast_outbox"], actor="anne")
    assert shop.effects() == [1]
    assert shop.place().checkpoint is not None


def test_forgetting_needs_nobody_to_run_it(shop: Shop) -> None:
    shop.app.processor("totals")(quiet)
    shop.app.processors.register()
    processor = shop.app.processors.get("totals")
    operator = shop.app.processors.operator
    refused = pytest.raises(Conflict, match="is run by")
    with shop.app.processors.runner(processor, processor.partition_ids[0]).leased(), refused:
        operator.forget("totals", actor="anne")
    assert operator.forget("totals", actor="anne") == 1
    assert shop.app.processors.checkpoints.of("totals") == []


def test_a_stopped_processor_is_not_run(shop: Shop) -> None:
    shop.app.processor("totals")(quiet)
    shop.app.processors.register()
    shop.app.processors.operator.stop("totals", actor="anne", reason="maintenance")
    with pytest.raises(LeaseConflictError, match="maintenance"):
        shop.run()


def test_a_version_ahead_of_the_active_one_is_not_promoted(shop: Shop) -> None:
    """What lies between the two, nobody would have handled as the active version."""
    shop.append_each(1, 2)
    shop.app.processor("totals", version=1)(quiet)
    shop.app.processors.register()
    shop.app.processor("totals", version=2)(quiet)
    shop.run("totals", 2)
    with pytest.raises(Conflict, match="gone further than the active version"):
        shop.app.processors.operator.promote("totals", actor="anne")
    shop.run("totals", 1)
    assert shop.app.processors.operator.promote("totals", actor="anne") == 2


def test_a_promoted_version_knows_before_its_next_batch(shop: Shop) -> None:
    told: list[bool] = []

    def note(messages: list[Message], context: ProcessorContext) -> None:
        told.append(context.is_active)

    shop.app.processor("totals", version=1)(quiet)
    shop.app.processors.register()
    shop.app.processor("totals", version=2)(note)
    shop.run("totals", 2)
    new = shop.app.processors.get("totals", 2)
    runner = shop.app.processors.runner(new, new.partition_ids[0])
    with runner.leased() as lease:
        runner.process_batch(lease)
        shop.app.processors.operator.promote("totals", 2, actor="anne")
        shop.append(1)
        shop.number()
        with pytest.raises(CheckpointMismatchError):
            runner.process_batch(lease)
        runner.process_batch(lease)
    assert told == [True]


def test_versions_may_be_declared_in_any_order(shop: Shop) -> None:
    shop.app.processor("totals", version=2)(quiet)
    shop.app.processor("totals", version=1)(quiet)
    shop.app.processors.register()
    assert roles(shop) == {1: Role.ACTIVE, 2: Role.BESIDE}


def test_a_partition_that_was_not_registered_is_added(shop: Shop) -> None:
    shop.app.processor("totals", partitions=2)(quiet)
    shop.app.processors.register()
    shop.execute("DELETE FROM holdfast_processor_checkpoints WHERE partition_number = 1")
    shop.app.processors.register()
    assert [place.id.partition for place in shop.app.processors.checkpoints.of("totals")] == [0, 1]


def test_a_rebuild_withdraws_the_letters_of_what_it_replays(shop: Shop) -> None:
    shop.append(1)
    broken = [True]

    @shop.app.processor("totals", on_error="dead_letter", retry_policy=RetryPolicy(max_retries=0))
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        if broken:
            raise ValueError("not yet")
        write_effects(messages, context)

    shop.run()
    [letter] = SqlLetterTable(shop.app.database).page().items
    shop.app.redrive.retry(letter, "anne")
    broken.clear()
    shop.app.processors.operator.start_rebuild("totals", ["effects"], actor="anne")
    shop.run()
    assert shop.effects() == [1]
    broken.append(True)
    shop.app.processors.operator.reset("totals", None, actor="anne")
    shop.run()
    shop.app.processors.operator.start_rebuild("totals", ["effects"], actor="anne", restart=True)
    statuses = sorted(str(found.status) for found in SqlLetterTable(shop.app.database).page().items)
    assert "Pending" not in statuses


def test_a_version_that_is_not_there_is_not_rebuilt(shop: Shop) -> None:
    shop.append(1)
    shop.app.processor("totals")(write_effects)
    shop.run()
    with pytest.raises(NotFoundError, match="no version 9"):
        shop.app.processors.operator.start_rebuild("totals", ["effects"], actor="anne", version=9)
    assert shop.effects() == [1]


@pytest.mark.component("postgres18")
def test_the_end_by_position_waits_for_writers(postgres_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = postgres_shop
    shop.append_each(1, 2)
    shop.app.processor("totals", order="position", start_from="end")(write_effects)
    monkeypatch.setattr("holdfast.outbox.reader._PATIENCE_SECONDS", 0.1)
    with shop.app.database.connect() as connection, connection.begin():
        shop.app.outbox.append(connection, "Paid", {"amount": 3})
        with pytest.raises(Unavailable, match="The end of the outbox is not known"):
            shop.app.processors.register()
    assert shop.run() == 0


@pytest.mark.component("mariadb")
def test_the_end_on_mariadb_counts_what_is_not_numbered_yet(mariadb_shop: Shop) -> None:
    mariadb_shop.append_each(1, 2)
    mariadb_shop.app.processor("totals", start_from="end")(write_effects)
    assert mariadb_shop.run() == 0
    mariadb_shop.append(3)
    assert mariadb_shop.run() == 1
