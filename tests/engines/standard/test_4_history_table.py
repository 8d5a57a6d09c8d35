"""Section 4, the table of history. Its rules are numbered 3.1 to 3.3; how tables keep rows: test_tables.py."""

from __future__ import annotations

import json

import pytest
from azure.data.tables import TableServiceClient

from tests.engines.places import ENGINE, Bench
from tests.engines.tables import Tables, add_entry
from tests.records.samples import days_ago

FIELDS = {
    "PartitionKey",
    "RowKey",
    "Engine",
    "InstanceId",
    "Operation",
    "Status",
    "DurationMs",
    "Input",
    "Output",
    "CreatedAtUtc",
    "CorrelationId",
}


def test_4_3_1_every_field_of_the_schema_is_filled(bench: Bench) -> None:
    bench.send()
    bench.deliver()
    [entry] = bench.history
    assert (entry.engine, entry.instance_id, entry.operation) == (ENGINE, "publisher", "rotate")
    assert (str(entry.status), entry.correlation_id) == ("Succeeded", "c-1")
    assert entry.duration_ms >= 0
    assert (json.loads(entry.input or "")["payload"], entry.output, entry.error) == ({"key": 7}, '{"rotated": 1}', None)
    assert entry.row_key.startswith(f"c-1-{entry.created_at:%Y%m%dT%H%M%S%f}Z")
    assert bench.hf.history.get(ENGINE, entry.row_key) == entry


@pytest.mark.parametrize("place", [pytest.param("azure", marks=pytest.mark.component("azurite"))], indirect=True)
def test_4_3_1_the_row_has_the_standards_names(bench: Bench) -> None:
    bench.send()
    bench.deliver()
    [entry] = bench.history
    with TableServiceClient.from_connection_string(str(bench.place.connection_string)) as service:
        row = service.get_table_client(bench.tables.tables.history_table_name).get_entity(ENGINE, entry.row_key)
    assert set(row) >= FIELDS
    assert (row["Status"], row["Operation"], row["CorrelationId"]) == ("Succeeded", "rotate", "c-1")


def test_4_3_1_an_operation_without_output_has_none(bench: Bench) -> None:
    bench.work = lambda context, message: None
    bench.send()
    bench.deliver()
    assert bench.history[0].output is None


def test_4_3_2_an_engine_may_have_several_operations(bench: Bench) -> None:
    for operation in ("rotate", "notify"):
        bench.send(f"m-{operation}", "c-1", operation=operation)
    bench.to_the_end()
    assert sorted(entry.operation for entry in bench.history) == ["notify", "rotate"]


def test_4_3_3_history_is_kept_for_90_days(bench: Bench) -> None:
    tables = Tables(bench.hf.dead_letters, bench.hf.history)
    add_entry(tables, correlation_id="old", created_at=days_ago(91))
    add_entry(tables, correlation_id="young", created_at=days_ago(89))
    assert bench.hf.prune().history == 1
    assert [entry.correlation_id for entry in bench.hf.history.page().items] == ["young"]
