"""What the tables in Azure promise beyond the suite: their form, their limits, and what they say when they cannot."""

from __future__ import annotations

import base64
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import ServiceResponseError
from azure.data.tables import EdmType, EntityProperty, TableClient, TableEntity, TableServiceClient, UpdateMode

from holdfast.core.clock import SystemClock
from holdfast.core.errors import Ambiguous, ConfigurationError, Conflict, Unavailable
from holdfast.engines.azure import AzureStorage
from holdfast.engines.tables import azure_table, listing
from holdfast.engines.tables.azure import AzureTables
from holdfast.engines.tables.config import EngineTables
from holdfast.records.dead_letters import DeadLetter, LetterFilter, LetterStatus
from holdfast.records.history import HistoryFilter, HistoryStatus
from tests.components.azurite import KEY, AzuriteServer
from tests.components.ports import free_port
from tests.components.proxy import FaultProxy
from tests.engines.tables import (
    Tables,
    add_entry,
    add_letter,
    azure_tables,
    check_race_to_resolve,
    everything,
    made_tables,
    new_names,
)
from tests.records.samples import NOON, days_ago, letter

pytestmark = pytest.mark.component("azurite")


@pytest.fixture
def opened(azurite: AzuriteServer) -> Iterator[AzureTables]:
    with azure_tables(azurite.connection_string) as found:
        yield found


@pytest.fixture
def tables(opened: AzureTables) -> Tables:
    return Tables(opened.letters, opened.history)


@pytest.fixture
def raw(azurite: AzuriteServer, opened: AzureTables) -> Iterator[Callable[[str], TableClient]]:
    """The tables without us: by 'dlq' or 'history'."""
    with TableServiceClient.from_connection_string(azurite.connection_string) as service:
        names = {"dlq": opened.tables.dlq_table_name, "history": opened.tables.history_table_name}
        yield lambda which: service.get_table_client(names[which])


class TestForm:
    def test_a_letter_has_the_standards_fields(self, tables: Tables, raw: Callable[[str], TableClient]) -> None:
        new = add_letter(tables)
        [row] = raw("dlq").list_entities()
        assert dict(row) == {
            "PartitionKey": "hmac",
            "RowKey": "m-1-20260301T120000123456Z",
            "Engine": "hmac",
            "InstanceId": "publisher",
            "OriginalQueue": "hmac-rotation-queue",
            "OriginalMessage": '{"key": "ü"}',
            "ErrorMessage": "vault said no",
            "DequeueCount": 5,
            "FirstFailureAtUtc": NOON - timedelta(hours=1),
            "LastFailureAtUtc": NOON,
            "Status": "Pending",
            "CorrelationId": "c-1",
            "ItemId": "m-1",
            "ChangeId": row["ChangeId"],
        }
        tables.letters.begin_retry("hmac", new.row_key, "eve", "m-2")
        tables.letters.finish_retry("hmac", new.row_key, "m-2")
        [row] = raw("dlq").list_entities()
        assert (row["Status"], row["ResolutionNotes"], row["ResolvedBy"]) == ("Resolved", "Retried", "eve")
        assert (row["RetriedAs"], row["RetryMessageId"], row["RetryBegunBy"]) == ("m-2", "m-2", "eve")
        assert isinstance(row["ResolvedAtUtc"], datetime)
        assert isinstance(row["RetryBegunAtUtc"], datetime)

    def test_an_entry_has_the_standards_fields(self, tables: Tables, raw: Callable[[str], TableClient]) -> None:
        entry = add_entry(tables, created_at=NOON, input="{}", output="1", error="no", item_id="m-1", attempt=2)
        [row] = raw("history").list_entities()
        assert dict(row) == {
            "PartitionKey": "hmac",
            "RowKey": f"c-1-20260301T120000123456Z-{entry.id}",
            "Engine": "hmac",
            "InstanceId": "publisher",
            "Operation": "rotate",
            "Status": "Succeeded",
            "DurationMs": EntityProperty(12, EdmType.INT64),
            "Input": "{}",
            "Output": "1",
            "Error": "no",
            "CreatedAtUtc": NOON,
            "CorrelationId": "c-1",
            "EntryId": EntityProperty(entry.id, EdmType.INT64),
            "ItemId": "m-1",
            "Attempt": 2,
            "ChangeId": row["ChangeId"],
        }

    def test_who_expired_a_letter_is_in_its_row(self, tables: Tables, raw: Callable[[str], TableClient]) -> None:
        add_letter(tables, last_failure_at=days_ago(9))
        assert tables.letters.expire(1, actor="eve") == 1
        [row] = raw("dlq").list_entities()
        assert (row["Status"], row["ResolvedBy"]) == ("Expired", "eve")
        assert row["ResolutionNotes"] == "failed more than 1 days before"

    def test_a_long_message_lies_in_properties_that_tools_can_read(
        self, tables: Tables, raw: Callable[[str], TableClient]
    ) -> None:
        message = "x" + "🦀" * 40_000
        add_letter(tables, original_message=message)
        [row] = raw("dlq").list_entities()
        parts = [row[name] for name in ("OriginalMessage", "OriginalMessage_1", "OriginalMessage_2")]
        assert "".join(parts) == message
        assert row["OriginalMessage_parts"] == 3
        assert all(len(part.encode("utf-16-le")) <= 64 * 1024 for part in parts)

    def test_our_largest_payload_fits(self, tables: Tables) -> None:
        message = base64.b64encode(random.Random(72).randbytes(768 * 1024)).decode()  # 1 MiB
        new = add_letter(tables, original_message=message, error_message="ü" * 5_000)
        resolved = tables.letters.resolve("hmac", new.row_key, "seen", "eve")
        assert resolved.original_message == message
        assert tables.letters.get("hmac", new.row_key) == resolved

    def test_what_fits_no_row_is_refused_and_not_cut(self, tables: Tables) -> None:
        message = base64.b64encode(random.Random(72).randbytes(1100 * 1024)).decode()
        with pytest.raises(ConfigurationError, match=r"too large for an Azure table.* nothing was cut off"):
            add_letter(tables, original_message=message)
        with pytest.raises(ConfigurationError, match="too large for an Azure table"):
            add_entry(tables, output=message)
        assert tables.letters.page().items == []
        assert tables.history.page().items == []

    def test_a_row_key_no_table_takes_is_refused(self, tables: Tables) -> None:
        for key in ("a/b", "a\tb", "🦀" * 257):
            with pytest.raises(ConfigurationError, match="cannot be a row key in an Azure table"):
                add_letter(tables, row_key=key)

    def test_a_time_before_the_services_calendar_is_refused(self, tables: Tables) -> None:
        with pytest.raises(ConfigurationError, match="before 1601"):
            add_letter(tables, first_failure_at=datetime(1600, 1, 1, tzinfo=UTC))
        add_letter(tables)
        assert len(tables.letters.page(LetterFilter(since=datetime(1, 1, 1, tzinfo=UTC))).items) == 1
        assert tables.letters.page(LetterFilter(until=datetime(1, 1, 2, tzinfo=UTC))).items == []

    def test_numbers_beyond_the_services_are_cut_to_its_largest(self, tables: Tables) -> None:
        add_letter(tables, dequeue_count=2**40)
        add_entry(tables, duration_ms=2**70, attempt=2**40)
        assert tables.letters.page().items[0].dequeue_count == 2**31 - 1
        [entry] = tables.history.page().items
        assert (entry.duration_ms, entry.attempt) == (2**63 - 1, 2**31 - 1)


class TestRowsOfOthers:
    def test_a_row_of_another_program_is_read(self, tables: Tables, raw: Callable[[str], TableClient]) -> None:
        raw("dlq").create_entity(
            {
                "PartitionKey": "spn",
                "RowKey": "i-1-2026",
                "OriginalMessage": "{}",
                "DequeueCount": EntityProperty(5, EdmType.INT64),
                "Status": "Pending",
            }
        )
        raw("history").create_entity({"PartitionKey": "spn", "RowKey": "c-1-2026", "Status": "Failed"})
        found = tables.letters.get("spn", "i-1-2026")
        assert found is not None
        assert (found.engine, found.instance_id, found.dequeue_count) == ("spn", "publisher", 5)
        assert abs(found.last_failure_at - days_ago(0)) < timedelta(minutes=5)
        tables.letters.resolve("spn", "i-1-2026", "done", "eve")
        entry = tables.history.get("spn", "c-1-2026")
        assert entry is not None
        assert (entry.row_key, entry.status) == ("c-1-2026", HistoryStatus.FAILED)
        assert tables.history.page().items == [entry]

    def test_a_letter_that_says_nothing_is_pending_and_can_be_settled(
        self, tables: Tables, raw: Callable[[str], TableClient]
    ) -> None:
        raw("dlq").create_entity({"PartitionKey": "spn", "RowKey": "r"})
        ours = add_letter(tables)
        found = {item.row_key: item for item in tables.letters.page(LetterFilter(status=LetterStatus.PENDING)).items}
        assert set(found) == {"r", ours.row_key}
        bare = found["r"]
        assert (bare.engine, bare.status, bare.original_message) == ("spn", LetterStatus.PENDING, "")
        assert (bare.error_message, bare.dequeue_count, bare.correlation_id) == ("", 0, "")
        assert abs(bare.last_failure_at - days_ago(0)) < timedelta(minutes=5)
        assert bare.first_failure_at == bare.last_failure_at
        assert tables.letters.expire(0, "spn", actor="eve") == 0
        assert tables.letters.resolve("spn", "r", "seen", "eve").status is LetterStatus.RESOLVED
        assert tables.letters.page(LetterFilter(status=LetterStatus.PENDING)).items == [ours]

    def test_a_status_that_nobody_knows_is_shown_and_the_letter_is_left_alone(
        self, tables: Tables, raw: Callable[[str], TableClient]
    ) -> None:
        ours = add_letter(tables)
        for key, status in (("parked", "Parked"), ("number", 7)):
            raw("dlq").create_entity({"PartitionKey": "spn", "RowKey": key, "Status": status})
        unknown = tables.letters.page(LetterFilter(status=LetterStatus.UNKNOWN)).items
        assert [(item.row_key, item.status) for item in unknown] == [
            ("number", LetterStatus.UNKNOWN),
            ("parked", LetterStatus.UNKNOWN),
        ]
        assert len(tables.letters.page().items) == 3
        assert tables.letters.page(LetterFilter(status=LetterStatus.PENDING)).items == [ours]
        with pytest.raises(Conflict, match="is Unknown"):
            tables.letters.resolve("spn", "parked", "x", "eve", despite_retry=True)
        with pytest.raises(Conflict, match="is Unknown"):
            tables.letters.expire_one("spn", "parked", "x", "eve")
        with pytest.raises(Conflict, match="is Unknown"):
            tables.letters.begin_retry("spn", "parked", "eve", "m-2")
        assert tables.letters.expire(0, "spn", actor="eve") == 0
        assert tables.letters.prune(0) == 0
        assert {row["Status"] for row in raw("dlq").query_entities("PartitionKey eq 'spn'")} == {"Parked", 7}

    def test_an_entry_whose_status_nobody_knows_is_shown_and_is_no_success(
        self, tables: Tables, raw: Callable[[str], TableClient]
    ) -> None:
        prefix = add_entry(tables, correlation_id="c-9", status=HistoryStatus.FAILED).row_key
        for key, more in (("0", {}), ("1", {"Status": "Parked"}), ("2", {"Status": False, "DurationMs": "long"})):
            given = {"Engine": "hmac", "Operation": "rotate", "CorrelationId": "c-9", **more}
            raw("history").create_entity({"PartitionKey": "hmac", "RowKey": f"{prefix[:-1]}{key}x", **given})
        unknown = tables.history.page(HistoryFilter(status=HistoryStatus.UNKNOWN)).items
        assert [item.status for item in unknown] == [HistoryStatus.UNKNOWN] * 3
        assert {item.duration_ms for item in unknown} == {0}
        assert len(tables.history.page().items) == 4
        assert tables.history.succeeded("hmac", "rotate", "c-9") is None
        assert len(tables.history.of_correlation("hmac", "c-9")) == 4

    def test_wrong_types_spoil_no_listing(self, tables: Tables, raw: Callable[[str], TableClient]) -> None:
        odd = {
            "Engine": 7,
            "OriginalMessage": 12.5,
            "ErrorMessage": True,
            "DequeueCount": float("inf"),
            "FirstFailureAtUtc": "2026-04-07T01:23:45Z",
            "LastFailureAtUtc": "yesterday",
            "ResolvedAtUtc": 7,
            "ResolutionNotes_packed": b"not zlib",
            "ItemId": EntityProperty(9, EdmType.INT64),
            "OriginalMessage_parts": "many",
        }
        raw("dlq").create_entity({"PartitionKey": "7", "RowKey": "r", "Status": "Pending", **odd})
        [found] = tables.letters.page().items
        assert (found.engine, found.original_message, found.error_message) == ("7", "12.5", "True")
        assert (found.dequeue_count, found.item_id, found.resolved_at) == (0, "9", None)
        assert found.first_failure_at == datetime(2026, 4, 7, 1, 23, 45, tzinfo=UTC)
        assert abs(found.last_failure_at - days_ago(0)) < timedelta(minutes=5)
        raw("history").create_entity({"PartitionKey": "7", "RowKey": "r", "Input_packed": b"x", "Attempt": "two"})
        [entry] = tables.history.page().items
        assert (entry.input, entry.attempt) == ("", None)

    def test_a_message_that_lost_a_part_is_told(self, tables: Tables, raw: Callable[[str], TableClient]) -> None:
        new = add_letter(tables, original_message="x" * 100_000)
        [row] = raw("dlq").list_entities()
        del row["OriginalMessage_2"]
        raw("dlq").update_entity(row, mode=UpdateMode.REPLACE)
        with pytest.raises(ConfigurationError, match="lost a part of its OriginalMessage"):
            tables.letters.get("hmac", new.row_key)
        with pytest.raises(ConfigurationError, match="lost a part of its OriginalMessage"):
            tables.letters.begin_retry("hmac", new.row_key, "eve", "m-2")
        assert [item.row_key for item in tables.letters.page().items] == [new.row_key], "it is listed all the same"


class TestPages:
    def test_a_page_that_has_read_enough_ends_early_and_says_where_to_go_on(
        self, tables: Tables, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "_MOST_READ", 10)
        for number in range(45):
            add_letter(tables, item=f"m-{number:02}", error_message="wanted" if number in (3, 33) else "other")
        wanted = LetterFilter(error="wanted")
        first = tables.letters.page(wanted)
        assert [one.item_id for one in first.items] == ["m-03"]
        assert first.continuation_token is not None
        found = everything(lambda after: tables.letters.page(wanted, after=after))
        assert [one.item_id for one in found] == ["m-03", "m-33"]

    def test_a_token_of_another_engines_list_is_refused(self, tables: Tables) -> None:
        for number in range(2):
            add_letter(tables, item=f"m-{number}")
        token = tables.letters.page(LetterFilter(engine="hmac"), 1).continuation_token
        with pytest.raises(ConfigurationError, match="not a continuation token"):
            tables.letters.page(LetterFilter(engine="tls"), 1, token)
        assert len(tables.letters.page(LetterFilter(engine="hmac"), 1, token).items) == 1

    def test_all_rows_of_one_correlation_id_are_read_by_their_keys(
        self, tables: Tables, raw: Callable[[str], TableClient]
    ) -> None:
        """The range of keys must not leave out what the correlation id alone would find."""
        for number in range(30):
            add_entry(tables, correlation_id=f"c-{number % 3}", created_at=NOON + timedelta(days=number * 500))
        wanted = HistoryFilter(engine="hmac", correlation_id="c-1")
        assert len(everything(lambda after: tables.history.page(wanted, 3, after))) == 10


class HeldReads:
    """Holds back whoever has read a letter until all have, so that every one changes what all have read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, readers: int) -> None:
        barrier = threading.Barrier(readers)
        read = azure_table.AzureTable.get
        waited = threading.local()
        waited.already = True  # in this thread, which looks at the outcome

        def held(table: azure_table.AzureTable, partition: str, row: str) -> TableEntity | None:
            found = read(table, partition, row)
            if not getattr(waited, "already", False):
                waited.already = True
                barrier.wait(30)
            return found

        monkeypatch.setattr(azure_table.AzureTable, "get", held)


class TestTheCondition:
    def test_of_two_who_have_read_the_same_one_wins(self, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
        new = add_letter(tables)
        HeldReads(monkeypatch, 2)
        check_race_to_resolve(tables, new)

    def test_without_the_etag_both_would_win(self, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
        """The planted bug: the race above must see that the condition is gone."""
        new = add_letter(tables)
        HeldReads(monkeypatch, 2)
        monkeypatch.setattr(
            azure_table, "_unmodified", lambda found: {"match_condition": MatchConditions.Unconditionally}
        )
        with pytest.raises(AssertionError, match="2 of two won"):
            check_race_to_resolve(tables, new)

    def test_who_finishes_what_another_has_just_finished_is_content(
        self, tables: Tables, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        new = add_letter(tables)
        tables.letters.begin_retry("hmac", new.row_key, "eve", "m-2")
        HeldReads(monkeypatch, 2)
        finished: list[DeadLetter] = []
        threads = [
            threading.Thread(target=lambda: finished.append(tables.letters.finish_retry("hmac", new.row_key, "m-2")))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(finished) == 2
        assert finished[0] == finished[1]

    def test_a_letter_changed_by_hand_meanwhile_is_a_conflict(
        self, tables: Tables, raw: Callable[[str], TableClient], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        new = add_letter(tables)
        change = azure_table.AzureTable.change

        def meanwhile(table: azure_table.AzureTable, found: TableEntity, changes: Any) -> TableEntity:
            raw("dlq").update_entity({**{key: found[key] for key in ("PartitionKey", "RowKey")}, "Note": "x"})
            return change(table, found, changes)

        monkeypatch.setattr(azure_table.AzureTable, "change", meanwhile)
        with pytest.raises(Conflict, match="is Pending: someone else was faster; nothing was changed"):
            tables.letters.resolve("hmac", new.row_key, "done", "eve")
        assert tables.letters.get("hmac", new.row_key) == new


class TestLostAnswers:
    @pytest.fixture
    def proxy(self, azurite: AzuriteServer) -> Iterator[FaultProxy]:
        with FaultProxy(azurite.table_port) as proxy:
            yield proxy

    @pytest.fixture
    def behind(self, azurite: AzuriteServer, proxy: FaultProxy) -> Iterator[Tables]:
        with azure_tables(proxy.redirect(azurite.connection_string)) as opened:
            yield Tables(opened.letters, opened.history)

    @pytest.mark.parametrize("lost", ["answer", "request"])
    def test_every_change_happens_once_although_a_message_is_lost(
        self, behind: Tables, proxy: FaultProxy, lost: str
    ) -> None:
        lose = proxy.drop_next_answer if lost == "answer" else proxy.drop_next_request
        new = letter()
        sprung = lose(b"POST ")
        assert behind.letters.add(new)
        assert sprung.is_set()
        assert not behind.letters.add(new)

        sprung = lose(b"PATCH ")
        begun = behind.letters.begin_retry("hmac", new.row_key, "eve", "m-2")
        assert sprung.is_set()
        assert behind.letters.get("hmac", new.row_key) == begun

        sprung = lose(b"PATCH ")
        finished = behind.letters.finish_retry("hmac", new.row_key, "m-2")
        assert sprung.is_set()
        assert behind.letters.page().items == [finished]

        sprung = lose(b"POST ")
        entry = add_entry(behind)
        assert sprung.is_set()
        assert behind.history.page().items == [entry]

    def test_a_lost_change_does_not_pass_for_that_of_another(self, behind: Tables, proxy: FaultProxy) -> None:
        new = letter()
        assert behind.letters.add(new)
        sprung = proxy.drop_next_answer(b"POST ")
        assert not behind.letters.add(replace(new, error_message="told again"))
        assert sprung.is_set()
        assert behind.letters.page().items == [new]

    def test_a_lost_delete_is_settled(self, behind: Tables, proxy: FaultProxy) -> None:
        for _ in range(3):
            add_entry(behind, created_at=days_ago(100))
        sprung = proxy.drop_next_answer(b"$batch")
        behind.history.prune()
        assert sprung.is_set()
        assert behind.history.page().items == []

    def test_a_change_that_is_never_answered_is_ambiguous(
        self, behind: Tables, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unanswered(*args: object, **options: object) -> None:
            raise ServiceResponseError("lost")

        new = letter()
        assert behind.letters.add(new)
        monkeypatch.setattr(TableClient, "create_entity", unanswered)
        monkeypatch.setattr(TableClient, "update_entity", unanswered)
        with pytest.raises(Ambiguous, match="may or may not have happened"):
            behind.letters.add(letter(item="m-2"))
        with pytest.raises(Ambiguous, match="may or may not have happened"):
            behind.letters.resolve("hmac", new.row_key, "done", "eve")

    def test_no_answer_after_a_lost_one_is_still_ambiguous(
        self, behind: Tables, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing was written by the second attempt; what the first did is not known."""
        sprung = threading.Event()
        write = TableClient.create_entity

        def write_then_away(client: TableClient, *args: Any, **options: Any) -> Any:
            if not sprung.is_set():
                sprung.set()
                write(client, *args, **options)
                proxy.refuse()
                proxy.cut()
                raise ServiceResponseError("lost")
            return write(client, *args, **options)

        monkeypatch.setattr(TableClient, "create_entity", write_then_away)
        with pytest.raises(Ambiguous):
            behind.letters.add(letter())
        proxy.pass_through()
        assert not behind.letters.add(letter())

    def test_a_service_that_is_away_is_unavailable(self, behind: Tables, proxy: FaultProxy) -> None:
        proxy.refuse()
        proxy.cut()
        with pytest.raises(Unavailable, match="Nothing was written; try again"):
            behind.letters.add(letter())
        with pytest.raises(Unavailable):
            behind.letters.page()
        proxy.pass_through()
        assert behind.letters.page().items == []


class TestOpening:
    def test_missing_tables_are_made(self, azurite: AzuriteServer) -> None:
        names = EngineTables(f"dlq{free_port()}x{random.getrandbits(60)}", f"history{random.getrandbits(60)}")
        for _ in range(2):
            with made_tables(azurite.connection_string, names) as opened:
                assert opened.letters.page().items == []
                assert opened.history.page().items == []

    def test_a_missing_table_is_one_sentence(self, azurite: AzuriteServer) -> None:
        with TableServiceClient.from_connection_string(azurite.connection_string) as service:
            tables = AzureTables(service, EngineTables("missingDlq", "missingHistory"))
            for call in (
                lambda: tables.letters.add(letter()),
                lambda: tables.letters.get("hmac", "m-1"),
                lambda: tables.letters.page(),
                lambda: tables.letters.prune(),
                lambda: tables.history.succeeded("hmac", "rotate", "c"),
            ):
                with pytest.raises(ConfigurationError, match=r"there is no table 'missing.* Create it"):
                    call()

    # azure-data-tables asks an XML element for its truth when a refusal comes as XML; Python 3.12 warns about that.
    @pytest.mark.filterwarnings("ignore:Testing an element's truth value:DeprecationWarning")
    def test_a_refused_key_is_told_without_showing_it(self, azurite: AzuriteServer) -> None:
        wrong = azurite.connection_string.replace("AccountKey=Eby8", "AccountKey=AAAA")
        with (
            pytest.raises(ConfigurationError, match=r"was refused \(403") as refused,
            made_tables(wrong, EngineTables()),
        ):
            raise AssertionError("not reached")
        assert KEY[4:] not in str(refused.value)

    def test_a_connection_string_that_is_none_is_told_without_showing_it(self) -> None:
        with pytest.raises(ConfigurationError, match="cannot be read") as refused:
            AzureStorage.from_connection_string("AccountKey=secret")
        assert "secret" not in str(refused.value)
        assert refused.value.__cause__ is None

    def test_an_account_that_is_away_is_unavailable(self, azurite: AzuriteServer) -> None:
        away = azurite.connection_string.replace(f":{azurite.table_port}", f":{free_port()}")
        with pytest.raises(Unavailable), made_tables(away, EngineTables()):
            raise AssertionError("not reached")


class WrongClock(SystemClock):
    """A machine whose clock is 400 days ahead."""

    def now(self) -> datetime:
        return super().now() + timedelta(days=400)


class TestTime:
    def test_a_machine_with_a_wrong_clock_forgets_nothing_too_early(self, azurite: AzuriteServer) -> None:
        with azure_tables(azurite.connection_string, clock=WrongClock()) as opened:
            tables = Tables(opened.letters, opened.history)
            add_letter(tables, status=LetterStatus.EXPIRED, last_failure_at=days_ago(89))
            pending = add_letter(tables, item="m-2", last_failure_at=days_ago(89))
            entry = add_entry(tables)
            assert abs(entry.created_at - days_ago(0)) < timedelta(minutes=5)
            assert (tables.history.prune(), tables.letters.prune()) == (0, 0)
            assert tables.letters.expire(90, actor="eve") == 0
            resolved = tables.letters.resolve("hmac", pending.row_key, "done", "eve")
            assert resolved.resolved_at is not None
            assert abs(resolved.resolved_at - days_ago(0)) < timedelta(minutes=5)

    def test_the_first_call_of_all_asks_the_service_for_its_time(self, azurite: AzuriteServer) -> None:
        names = new_names()
        with made_tables(azurite.connection_string, names) as opened:
            add_entry(Tables(opened.letters, opened.history), created_at=days_ago(89))
        with TableServiceClient.from_connection_string(azurite.connection_string) as service:
            again = AzureTables(service, names, clock=WrongClock())
            assert again.history.prune() == 0
