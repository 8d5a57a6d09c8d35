"""Issue 13, line 10: what is given up is kept and can be taken back; messages and log lines say what is true."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import AzureStorage
from holdfast.core.errors import ConfigurationError, Conflict, MessageError, NotFoundError, RegistryLocked
from holdfast.engines.messages import Defaults, EngineMessage, parse
from holdfast.engines.queues.storage import MOST_BYTES
from holdfast.engines.runner import Outcome
from holdfast.engines.tables.azure_letters import AzureLetterTable
from holdfast.records.dead_letters import DeadLetter, LetterStatus
from tests.engines.places import ENGINE, Bench
from tests.engines.test_poison import move_to_poison, poison_of
from tests.records.samples import days_ago, letter

EVERY_PLACE = pytest.mark.parametrize(
    "place",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.component("postgres18")),
        pytest.param("mariadb", marks=pytest.mark.component("mariadb")),
        pytest.param("azure", marks=pytest.mark.component("azurite")),
    ],
    indirect=True,
)
IN_AZURE = pytest.mark.parametrize(
    "place", [pytest.param("azure", marks=pytest.mark.component("azurite"))], indirect=True
)


def failed_long_ago(bench: Bench, item: str = "m-1", **fields: Any) -> DeadLetter:
    new = letter(item=item, last_failure_at=days_ago(400), first_failure_at=days_ago(400), **fields)
    assert bench.hf.dead_letters.add(new)
    return new


@EVERY_PLACE
def test_13_10_what_was_expired_just_now_survives_the_prune(bench: Bench) -> None:
    letters = bench.hf.dead_letters
    old, workload = failed_long_ago(bench), failed_long_ago(bench, "job-1", engine="jobs:email")
    assert letters.expire(90, actor="eve") == 2
    bench.hf.prune()
    assert {each.row_key for each in letters.page().items} == {old.row_key, workload.row_key}


@EVERY_PLACE
def test_13_10_an_expired_letter_of_another_program_is_counted_from_its_failure(bench: Bench) -> None:
    failed_long_ago(bench, status=LetterStatus.EXPIRED)
    bench.hf.prune()
    assert bench.letters == []


@EVERY_PLACE
@pytest.mark.parametrize("status", [LetterStatus.RESOLVED, LetterStatus.EXPIRED])
def test_13_10_a_settled_letter_is_reopened_and_can_be_retried(bench: Bench, status: LetterStatus) -> None:
    bench.fails = lambda context: True
    bench.send()
    assert bench.to_the_end()[-1] is Outcome.DEAD_LETTERED
    letters, [before] = bench.hf.dead_letters, bench.letters
    letters.settle(ENGINE, before.row_key, status, "n" * 70_000, "eve")
    reopened = letters.reopen(ENGINE, before.row_key, "too early", "anne")
    assert reopened == letters.get(ENGINE, before.row_key) == before
    bench.fails = lambda context: False
    bench.hf.redrive.retry(reopened, "anne")
    assert bench.to_the_end() == [Outcome.SUCCEEDED]


@EVERY_PLACE
def test_13_10_what_is_not_settled_is_not_reopened(bench: Bench) -> None:
    letters, pending = bench.hf.dead_letters, failed_long_ago(bench)
    with pytest.raises(Conflict, match="is Pending, not settled; nothing was changed"):
        letters.reopen(ENGINE, pending.row_key, "why not", "anne")
    with pytest.raises(NotFoundError):
        letters.reopen(ENGINE, "none", "why not", "anne")


@EVERY_PLACE
def test_13_10_a_letter_that_was_put_back_is_reopened_by_force_only(bench: Bench) -> None:
    bench.fails = lambda context: True
    bench.send()
    assert bench.to_the_end()[-1] is Outcome.DEAD_LETTERED
    letters, [before] = bench.hf.dead_letters, bench.letters
    retried_as = bench.hf.redrive.retry(before, "eve")
    with pytest.raises(Conflict, match=f"it was put back as '{retried_as}', which has an end of its own"):
        letters.reopen(ENGINE, before.row_key, "lost", "anne")
    assert letters.reopen(ENGINE, before.row_key, "lost", "anne", despite_retry=True) == before


@IN_AZURE
def test_13_10_of_two_who_change_a_letter_one_reopens_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = bench.hf.engines._records().letters
    settled = failed_long_ago(bench, status=LetterStatus.EXPIRED, resolved_at=days_ago(1), resolved_by="eve")
    found = AzureLetterTable._there

    def and_meanwhile(table: AzureLetterTable, engine: str, row_key: str) -> Any:
        seen = found(table, engine, row_key)
        monkeypatch.undo()
        letters.reopen(engine, row_key, "first", "eve")
        return seen

    monkeypatch.setattr(AzureLetterTable, "_there", and_meanwhile)
    with pytest.raises(Conflict, match="someone else was faster"):
        letters.reopen(ENGINE, settled.row_key, "second", "anne")


@IN_AZURE
def test_13_10_a_poison_letter_has_the_count_of_the_last_recorded_attempt_and_its_error(bench: Bench) -> None:
    bench.options["max_retry_attempts"] = 5
    bench.hf = bench.process()
    bench.send()
    bench.lose_workers(2)
    bench.fails = lambda context: True
    bench.deliver()
    move_to_poison(bench)
    bench.hf.engines.drain_poison(ENGINE)
    [found] = bench.letters
    assert (found.dequeue_count, found.error_message) == (3, "ValueError: no key at attempt 3")


@IN_AZURE
def test_13_10_a_poison_letter_without_a_recorded_attempt_has_the_hosts_count(bench: Bench) -> None:
    account = bench.place.account
    assert account is not None
    account._max_dequeue_count = 20
    bench.send()
    move_to_poison(bench)
    bench.next(poison_of(bench))  # a drain that died is no attempt
    bench.place.let_time_pass()
    bench.hf.engines.drain_poison(ENGINE)
    [found] = bench.letters
    assert found.dequeue_count == 20
    assert found.error_message.startswith(f"the host moved the message to '{bench.place.queue_name}-poison', and none")


@EVERY_PLACE
def test_13_10_a_message_is_as_long_as_its_letters(bench: Bench) -> None:
    """24,000 letters of two bytes fit where base64 leaves 48 KiB; escaped, each would take six."""
    text = "é" * 24_000
    bench.hf.engines.send(ENGINE, {"text": text}, message_id="m-1", correlation_id="c-1")
    assert bench.to_the_end() == [Outcome.SUCCEEDED]
    assert bench.executions[0].payload == {"text": text}
    [entry] = bench.history
    assert entry.input is not None
    assert text in entry.input


@EVERY_PLACE
def test_13_10_half_a_character_is_escaped_and_comes_back(bench: Bench) -> None:
    bench.hf.engines.send(ENGINE, {"half": "\ud83d", "é": 1}, message_id="m-1", correlation_id="c-1")
    assert bench.to_the_end() == [Outcome.SUCCEEDED]
    assert bench.executions[0].payload == {"half": "\ud83d", "é": 1}


@IN_AZURE
def test_13_10_what_is_too_long_is_still_refused(bench: Bench) -> None:
    with pytest.raises(MessageError, match="takes at most 65,536"):
        bench.hf.engines.send(ENGINE, {"text": "é" * MOST_BYTES}, message_id="m-1", correlation_id="c-1")


def test_13_10_seven_digits_of_a_second_are_read_in_a_message() -> None:
    body = json.dumps({"payload": 1, "enqueuedAtUtc": "2026-01-31T12:00:00.1234567Z"})
    message = parse(body, Defaults("m-1", ENGINE, "rotate"))
    assert message.enqueued_at == datetime.fromisoformat("2026-01-31T12:00:00.123456+00:00")


@EVERY_PLACE
def test_13_10_seven_digits_of_a_second_are_read_wherever_the_message_waits(bench: Bench) -> None:
    bench.send(enqueuedAtUtc="2026-01-31T12:00:00.1234567Z")
    assert bench.deliver() is Outcome.SUCCEEDED
    assert bench.executions[0].enqueued_at == datetime.fromisoformat("2026-01-31T12:00:00.123456+00:00")


@EVERY_PLACE
def test_13_10_a_lock_that_another_program_wrote_with_seven_digits_is_respected(bench: Bench) -> None:
    lock = {"lockJobId": "dotnet", "lockDurationSeconds": 60, "lockUntilUtc": "2099-01-31T12:00:00.1234567Z"}
    registry = bench.hf.registry.instance("tenant-7")
    document = {"registryVersion": 3, "instanceLock": lock}
    registry.documents.create(registry.name, json.dumps(document).encode())
    with pytest.raises(RegistryLocked, match=r"'dotnet' until 2099-01-31T12:00:00.123456Z"):
        registry.require_free()


@EVERY_PLACE
def test_13_10_retention_counts_from_when_a_letter_was_settled(bench: Bench) -> None:
    settled = {"status": LetterStatus.RESOLVED, "resolved_by": "eve"}
    failed_long_ago(bench, "old", resolved_at=days_ago(91), **settled)
    kept = failed_long_ago(bench, "late", resolved_at=days_ago(89), **settled)
    pending = failed_long_ago(bench, "pending")
    bench.hf.prune()
    assert {each.row_key for each in bench.letters} == {kept.row_key, pending.row_key}


@pytest.mark.parametrize("path", ["docs/engines.md", "examples/functions-engines/function_app.py"])
def test_13_10_guide_and_example_open_the_account_with_an_identity(path: str) -> None:
    text = (Path(__file__).parents[2] / path).read_text()
    assert "AzureStorage.from_account(" in text
    assert "credential=DefaultAzureCredential()" in text


class Identity:
    """A credential as azure-identity has them."""

    def get_token(self, *scopes: str, **options: Any) -> Any:
        raise AssertionError("nothing connects")


def test_13_10_an_account_is_opened_by_name_and_identity() -> None:
    identity = Identity()
    storage = AzureStorage.from_account("shopdata", credential=identity, max_dequeue_count=20)
    assert storage._queues.url.rstrip("/") == "https://shopdata.queue.core.windows.net"
    assert storage._tables.url.rstrip("/") == "https://shopdata.table.core.windows.net"
    assert storage._queues.credential is identity
    assert storage._tables.credential is identity
    assert storage._tables.account_name == "shopdata"
    storage.close()


@pytest.mark.parametrize(
    ("name", "credential", "told"),
    [
        ("Shop Data", Identity(), "cannot be the name of a storage account"),
        ("shopdata.example.org", Identity(), "cannot be the name of a storage account"),
        ("shopdata", None, "needs a credential such as DefaultAzureCredential"),
        ("shopdata", "c2VjcmV0", "for a key use from_connection_string"),
    ],
)
def test_13_10_what_is_no_account_or_no_credential_is_refused(name: str, credential: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as refused:
        AzureStorage.from_account(name, credential=credential)
    assert "c2VjcmV0" not in str(refused.value)


@EVERY_PLACE
def test_13_10_log_lines_of_engines_carry_the_correlation_id(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.engines")
    bench.send("m-1", "c-works")
    bench.to_the_end()
    bench.fails = lambda context: True
    bench.send("m-2", "c-fails")
    bench.to_the_end()
    lines = [record for record in caplog.records if record.name == "holdfast.engines"]
    for part, correlation_id in (("did 'rotate'", "c-works"), ("tries again", "c-fails"), ("gave message", "c-fails")):
        found = [record for record in lines if part in record.getMessage()]
        assert found, part
        assert all(f"'{correlation_id}'" in record.getMessage() for record in found)
        assert {getattr(record, "correlation_id", None) for record in found} == {correlation_id}


def test_13_10_a_rendered_message_is_read_as_it_was() -> None:
    message = EngineMessage(
        message_id="m", correlation_id="c", engine=ENGINE, operation="rotate", payload="é\ud83d\x00"
    )
    assert parse(message.rendered(), Defaults("", "", "")).payload == message.payload
