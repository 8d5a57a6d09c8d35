"""Issue 13, line 16: the audit can be read. How tokens end is in `tests/safety/test_13_16_tokens.py`."""

from __future__ import annotations

from tests.api.clients import Office
from tests.records.samples import add_letter


def test_13_16_the_audit_can_be_read_and_its_details_with_payload_only(office: Office) -> None:
    letters = [add_letter(office.hf.database, item=f"m-{number}") for number in range(3)]
    for letter in letters:
        body = {"status": "Resolved", "resolutionNotes": "sent by post"}
        office.operator("PATCH", f"/api/dlq/hmac/{letter.row_key}", json=body)
    first = office.reader.get("/api/audit", limit=2)
    assert [item["target"] for item in first.items] == [f"hmac/{letter.row_key}" for letter in letters[:0:-1]]
    assert {(item["actor"], item["action"]) for item in first.items} == {("the-operate", "dlq resolve")}
    assert not any("details" in item for item in first.items)
    rest = office.auditor.get("/api/audit", continuationToken=first.data["continuationToken"], limit=2)
    assert [item["details"]["notes"] for item in rest.items] == ["sent by post"]
    assert office.reader.get("/api/audit", target=f"hmac/{letters[0].row_key}").items[0]["id"] == rest.items[0]["id"]
