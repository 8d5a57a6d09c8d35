"""Section 5, the API of history, over what engines really did. Its rules are numbered 4.1 to 4.3.

What does not depend on where the history is is shown over the databases in tests/api/test_standard.py.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.records.history import HistoryStatus
from tests.api.clients import Office, every_page
from tests.engines.places import ENGINE, Bench
from tests.engines.tables import Tables, add_entry
from tests.records.samples import NOON

IN_AZURE = pytest.mark.parametrize(
    "place", [pytest.param("azure", marks=pytest.mark.component("azurite"))], indirect=True
)


def told(moment: Any) -> str:
    return str(moment.isoformat()).replace("+00:00", "Z")


def test_5_4_1_executions_are_listed_and_got(bench: Bench, office: Office) -> None:
    bench.fails = lambda context: context.attempt == 1
    bench.send()
    bench.to_the_end()
    items = office.reader.get("/api/history", engine=ENGINE).items
    assert sorted(item["status"] for item in items) == ["Failed", "Succeeded"]
    failed, done = sorted(items, key=lambda item: str(item["status"]))
    details = office.auditor.get(f"/api/history/{ENGINE}/{failed['rowKey']}").data
    assert (details["error"], details["attempt"], details["itemId"]) == ("ValueError: no key at attempt 1", 1, "m-1")
    assert office.auditor.get(f"/api/history/{ENGINE}/{done['rowKey']}").data["output"] == '{"rotated": 2}'
    assert office.reader.get(f"/api/history/{ENGINE}/none-20260101T000000000000Z-1").status == 404


@IN_AZURE
def test_5_4_2_every_query_parameter_narrows(bench: Bench, office: Office) -> None:
    tables = Tables(bench.hf.dead_letters, bench.hf.history)
    one = add_entry(tables, created_at=NOON, instance_id="inst-1").row_key
    two = add_entry(
        tables,
        created_at=NOON + timedelta(hours=1),
        engine="tls",
        operation="renew",
        correlation_id="c-2",
        status=HistoryStatus.FAILED,
        error="CA said no",
    ).row_key

    def keys(**parameters: Any) -> list[str]:
        return [item["rowKey"] for item in office.reader.get("/api/history", **parameters).items]

    assert set(keys()) == {one, two}
    assert keys(engine="tls") == [two]
    assert keys(instanceId="inst-1") == [one]
    assert keys(status="Failed") == [two]
    assert keys(operation="rotate") == [one]
    assert keys(correlationId="c-2") == [two]
    assert keys(fromDate=told(NOON), toDate=told(NOON + timedelta(hours=1))) == [one]
    assert keys(fromDate=told(NOON + timedelta(microseconds=1))) == [two]


@IN_AZURE
def test_5_4_2_limit_and_continuation_token_over_engines_and_workloads(bench: Bench, office: Office) -> None:
    tables = Tables(bench.hf.dead_letters, bench.hf.history)
    for number in range(5):
        add_entry(tables, correlation_id=f"c-{number}")
        add_entry(tables, correlation_id=f"c-{number}", engine="jobs:email")
    pages = list(every_page(office.reader, "/api/history", limit=4))
    assert [len(page) for page in pages] == [4, 4, 2]
    assert len({(item["engine"], item["rowKey"]) for page in pages for item in page}) == 10
    assert office.reader.get("/api/history", limit=101).refusal == (400, "VALIDATION_ERROR", "limit")


@IN_AZURE
def test_5_4_3_the_response_has_the_standards_fields_and_no_others(bench: Bench, office: Office) -> None:
    bench.send()
    bench.deliver()
    [entry] = bench.history
    assert office.reader.get("/api/history").data == {
        "items": [
            {
                "engine": ENGINE,
                "rowKey": entry.row_key,
                "instanceId": "publisher",
                "operation": "rotate",
                "status": "Succeeded",
                "durationMs": entry.duration_ms,
                "createdAtUtc": told(entry.created_at),
                "correlationId": "c-1",
            }
        ],
        "continuationToken": None,
    }
