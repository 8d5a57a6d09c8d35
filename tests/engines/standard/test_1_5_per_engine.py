"""Section 1.5, the pattern of each engine: a queue of its own, the unified tables, its name as the partition."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from azure.data.tables import TableServiceClient

from holdfast.core.errors import ConfigurationError
from holdfast.engines.runner import Outcome
from tests.engines.driving import Driven
from tests.engines.places import ENGINE, Bench, Place


def test_1_5_an_engines_queue_is_named_after_it_unless_told(place: Place) -> None:
    hf = place.application()
    definition = hf.engine("tls")(lambda context, message: None)
    assert definition.settings.queue == "tls-queue"


def test_1_5_two_engines_cannot_share_a_queue(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="both want queue"):
        bench.hf.engine("tls", queue=bench.place.queue_name)(bench.handle)


def test_1_5_the_tables_are_unified_and_each_engine_has_its_own_part(bench: Bench) -> None:
    bench.hf.engine("tls", queue=f"{bench.place.queue_name}-tls", max_retry_attempts=2)(bench.handle)
    bench.hf.engines.make_queues()
    bench.fails = lambda context: True
    bench.send()
    bench.hf.engines.send("tls", {}, correlation_id="c-1")
    bench.to_the_end()
    driven = Driven(bench.hf, "tls")
    while driven.handle(bench.next(driven.queue)) is not Outcome.DEAD_LETTERED:
        pass
    assert sorted(letter.engine for letter in bench.letters) == ["hmac", "tls"]
    history = bench.records.history
    assert len(history.of_correlation("hmac", "c-1")) == 2
    assert len(history.of_correlation("tls", "c-1")) == 1
    assert {letter.original_queue for letter in bench.letters} == {bench.queue.name, driven.queue.name}


@pytest.mark.parametrize("place", [pytest.param("azure", marks=pytest.mark.component("azurite"))], indirect=True)
def test_1_5_the_partition_is_the_engines_name(bench: Bench) -> None:
    bench.fails = lambda context: True
    bench.send()
    bench.to_the_end()
    with TableServiceClient.from_connection_string(str(bench.place.connection_string)) as service:
        for name in (bench.tables.tables.dlq_table_name, bench.tables.tables.history_table_name):
            rows: list[Mapping[str, object]] = [*service.get_table_client(name).list_entities()]
            assert {(row["PartitionKey"], row["Engine"]) for row in rows} == {(ENGINE, ENGINE)}


def test_1_5_a_message_for_another_engine_is_a_dead_letter_at_once(bench: Bench) -> None:
    bench.send(engine="tls")
    assert bench.deliver() is Outcome.DEAD_LETTERED
    [letter] = bench.letters
    assert (letter.engine, letter.original_queue) == ("hmac", bench.queue.name)
    assert "for engine 'tls'" in letter.error_message
    assert bench.executions == []


def test_1_5_an_engine_that_changes_nothing_in_the_registry_needs_no_lock(bench: Bench) -> None:
    bench.hf.registry.acquire("another", duration_seconds=50)
    bench.send()
    assert bench.deliver() is Outcome.SUCCEEDED
