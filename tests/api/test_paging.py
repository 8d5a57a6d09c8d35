"""Paging: each row exactly once while rows are being added, and continuation tokens that only we can make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from anyio.from_thread import BlockingPortal
from sqlalchemy import insert
from sqlalchemy.engine import Engine

from holdfast import Holdfast
from holdfast.core.errors import ConfigurationError
from holdfast.records.combined_tables import CombinedHistory, CombinedLetters
from holdfast.records.protocol import HistoryTable, LetterTable
from holdfast.records.schema import dead_letters_table, history_table
from holdfast.records.tables import SqlHistoryTable, SqlLetterTable
from tests.api.clients import Office, every_page
from tests.components.azurite import AzuriteServer
from tests.engines.tables import add_entry as add_table_entry
from tests.engines.tables import migrated_engine, routed_tables
from tests.records.samples import NOON, add_entry, add_letter, letter

ROWS = 10_000
KEY = "a secret that is shared"


def letters(numbers: range, minutes: int = 0) -> list[dict[str, Any]]:
    """Letters of which hundreds failed in one moment."""
    made = (
        letter(item=f"m-{n}", correlation_id=f"c-{n}", last_failure_at=NOON + timedelta(minutes=minutes + n % 40))
        for n in numbers
    )
    names = [column.name for column in dead_letters_table.columns]
    return [{name: getattr(item, name) for name in names} | {"status": "Pending"} for item in made]


def entries(numbers: range, minutes: int = 0) -> list[dict[str, Any]]:
    usual = {"engine": "hmac", "operation": "rotate", "status": "Succeeded", "duration_ms": 1}
    moment = NOON + timedelta(minutes=minutes)
    return [{**usual, "correlation_id": f"c-{number}", "created_at": moment} for number in numbers]


def add(engine: Engine, table: Any, rows: list[dict[str, Any]]) -> None:
    with engine.begin() as connection:
        connection.execute(insert(table), rows)


@pytest.mark.parametrize(
    ("path", "table", "make"),
    [("/api/dlq", dead_letters_table, letters), ("/api/history", history_table, entries)],
    ids=["dead letters", "history"],
)
def test_ten_thousand_rows_come_exactly_once_while_rows_are_added(
    office: Office, path: str, table: Any, make: Any
) -> None:
    add(office.hf.database, table, make(range(ROWS)))
    seen: Counter[str] = Counter()
    for number, page in enumerate(every_page(office.reader, path, limit=100)):
        assert len(page) == 100 or number >= ROWS // 100
        seen.update(item["correlationId"] for item in page)
        first = ROWS + number * 6  # behind, among and before what is listed
        rows = [make(range(first + 2 * n, first + 2 * n + 2), minutes) for n, minutes in enumerate((-60, 0, 60))]
        add(office.hf.database, table, [row for some in rows for row in some])
    assert [number for number in range(ROWS) if seen[f"c-{number}"] != 1] == []
    assert max(seen.values()) == 1


class TestTokens:
    @pytest.fixture
    def filled(self, small_office: Office) -> Office:
        for number in range(3):
            add_letter(small_office.hf.database, item=f"m-{number}")
            add_entry(small_office.hf.database)
        return small_office

    def test_a_tampered_token_is_400(self, filled: Office) -> None:
        token = filled.reader.get("/api/dlq", limit=1).data["continuationToken"]
        assert len(filled.reader.get("/api/dlq", continuationToken=token).items) == 2
        position, signature = token.split(".")
        tampered = [
            token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :] for place in range(len(token))
        ]
        tampered += [position, f"{position}.", f".{signature}", f"{token}=", f"{token}A", f" {token}", token[1:], "ü"]
        for wrong in tampered:
            answer = filled.reader.get("/api/dlq", continuationToken=wrong)
            assert answer.refusal == (400, "VALIDATION_ERROR", "continuationToken"), wrong

    def test_a_token_is_good_for_the_listing_that_gave_it_out(self, filled: Office) -> None:
        token = filled.reader.get("/api/history", limit=1).data["continuationToken"]
        answer = filled.reader.get("/api/dlq", continuationToken=token)
        assert answer.refusal == (400, "VALIDATION_ERROR", "continuationToken")

    def test_a_token_of_another_process_is_400_unless_they_share_a_key(
        self, filled: Office, portal: BlockingPortal
    ) -> None:
        first, second, stranger = (Office(filled.hf, portal, continuation_key=key) for key in (KEY, KEY, None))
        token = first.reader.get("/api/dlq", limit=1).data["continuationToken"]
        assert len(second.reader.get("/api/dlq", continuationToken=token).items) == 2
        for other in (stranger, filled):
            assert other.reader.get("/api/dlq", continuationToken=token).refusal[0] == 400

    def test_a_key_that_can_be_guessed_is_refused(self, small_hf: Holdfast, portal: BlockingPortal) -> None:
        with pytest.raises(ConfigurationError, match="at least 16") as raised:
            Office(small_hf, portal, continuation_key="s3cret")
        assert "s3cret" not in str(raised.value)

    def test_the_longest_names_still_make_a_token_that_fits(self, small_office: Office) -> None:
        for number in range(2):
            add_letter(small_office.hf.database, engine="🦀" * 150, item=f"{number}" + "🦀" * 190)
        assert [len(page) for page in every_page(small_office.reader, "/api/dlq", limit=1)] == [1, 1]


@dataclass(frozen=True)
class InTwoPlaces:
    """An application whose engines' records are elsewhere than its workloads'."""

    dead_letters: LetterTable
    history: HistoryTable
    database: Engine

    @property
    def redrive(self) -> Any:
        raise NotImplementedError


class TestTwoPlaces:
    @pytest.fixture
    def spread(self, small_hf: Holdfast, portal: BlockingPortal, tmp_path: Path) -> Iterator[Office]:
        """An office whose engine's records are in one database and whose jobs' are in another."""
        with migrated_engine(f"sqlite:///{tmp_path / 'engines.db'}") as elsewhere:
            for number in range(5):
                add_letter(elsewhere, item=f"m-{number}")
                add_letter(small_hf.database, item=f"m-{number}", engine="jobs:email")
                add_entry(elsewhere)
                add_entry(small_hf.database, engine="jobs:email")
            application = InTwoPlaces(
                CombinedLetters(SqlLetterTable(elsewhere), SqlLetterTable(small_hf.database)),
                CombinedHistory(SqlHistoryTable(elsewhere), SqlHistoryTable(small_hf.database)),
                small_hf.database,
            )
            yield Office(application, portal)  # type: ignore[arg-type] # of an application the API asks no more

    @pytest.mark.parametrize("path", ["/api/dlq", "/api/history"])
    @pytest.mark.parametrize("limit", [1, 3, 5, 10])
    def test_each_row_comes_exactly_once(self, spread: Office, path: str, limit: int) -> None:
        pages = list(every_page(spread.reader, path, limit=limit))
        seen = Counter((item["engine"], item["rowKey"]) for page in pages for item in page)
        assert Counter(engine for engine, _ in seen) == {"hmac": 5, "jobs:email": 5}
        assert max(seen.values()) == 1
        assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)

    @pytest.mark.parametrize("path", ["/api/dlq", "/api/history"])
    def test_a_token_that_cannot_go_on_with_another_filter_is_400(self, spread: Office, path: str) -> None:
        token = spread.reader.get(path, limit=2).data["continuationToken"]
        assert len(spread.reader.get(path, engine="hmac", continuationToken=token).items) == 3
        answer = spread.reader.get(path, engine="jobs:email", continuationToken=token)
        assert answer.refusal == (400, "VALIDATION_ERROR", "continuationToken")
        assert "another filter" in answer.body["error"]["message"]

    @pytest.mark.parametrize("engine", ["hmac", "jobs:email"])
    @pytest.mark.parametrize("status", ["Resolved", "Expired"])
    def test_letters_of_both_are_settled_once(self, spread: Office, engine: str, status: str) -> None:
        [first, *_] = spread.reader.get("/api/dlq", engine=engine).items
        path, change = f"/api/dlq/{engine}/{first['rowKey']}", {"status": status, "resolutionNotes": "enough"}
        settled = spread.operator("PATCH", path, json=change).data
        assert (settled["status"], settled["resolutionNotes"], settled["resolvedBy"]) == (
            status,
            "enough",
            "the-operate",
        )
        assert spread.operator("PATCH", path, json=change).refusal[0] == 409

    def test_the_longest_names_still_make_a_token_that_fits(self, spread: Office) -> None:
        for number in range(2):
            add_letter(spread.hf.database, engine="jobs:" + "🦀" * 145, item=f"{number}" + "🦀" * 190)
        assert sum(len(page) for page in every_page(spread.reader, "/api/dlq", limit=1)) == 12

    @pytest.mark.parametrize("identifier", ["/" * 200, "a/b c", "x" * 200], ids=["shortened", "encoded", "long"])
    def test_every_key_of_an_azure_table_can_be_asked_for(
        self, small_hf: Holdfast, portal: BlockingPortal, azurite: AzuriteServer, identifier: str
    ) -> None:
        with routed_tables(azurite.connection_string, small_hf.database) as both:
            both.letters.add(letter(item=identifier, correlation_id=identifier))
            add_table_entry(both, correlation_id=identifier)
            application = InTwoPlaces(both.letters, both.history, small_hf.database)
            office = Office(application, portal)  # type: ignore[arg-type] # of an application the API asks no more
            for path in ("/api/dlq", "/api/history"):
                [listed] = office.reader.get(path).items
                found = office.reader.get(f"{path}/hmac/{quote(listed['rowKey'], safe='')}").data
                assert (found["rowKey"], found["correlationId"]) == (listed["rowKey"], identifier)


def test_14_14_a_row_that_cannot_be_read_is_named_beside_the_others(office: Office) -> None:
    for number in range(3):
        add(office.hf.database, dead_letters_table, letters(range(number, number + 1)))
    add(office.hf.database, history_table, entries(range(3)))
    is_sqlite = office.hf.database.dialect.name == "sqlite"
    moment = "5" if is_sqlite else "'infinity'"
    with office.hf.database.begin() as connection:
        connection.exec_driver_sql(f"UPDATE holdfast_history SET created_at = {moment} WHERE correlation_id = 'c-1'")
        connection.exec_driver_sql(
            f"UPDATE holdfast_dead_letters SET first_failure_at = {moment} WHERE correlation_id = 'c-1'"
        )
    for path in ("/api/history", "/api/dlq"):
        found = office.admin.get(path).data
        assert sorted(item["correlationId"] for item in found["items"]) == ["c-0", "c-2"]
        [sentence] = found["unreadable"]
        assert sentence.startswith("The row of holdfast_")
