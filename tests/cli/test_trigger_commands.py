"""Seeing where triggers stand, and moving their checkpoints by hand, behind guardrails."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shop import PATIENCE_SECONDS, Shop, assert_one_sentence

ITEMS = ("book", "pen", "lamp")


def shown(shop: Shop, *more: str) -> Any:
    result = shop.cli("trigger", "show", "orders", "--json", *more)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def deliver_the_rest(shop: Shop) -> int:
    return shop.holdfast().runner("orders").tick()


def test_list_before_anything_ran(shop: Shop) -> None:
    shop.cli("migrate")
    listed = json.loads(shop.cli("trigger", "list", "--json").stdout)
    assert [(item["name"], item["lease"]["state"], item["cursor"]) for item in listed] == [("orders", "free", None)]
    assert "at the beginning" in shop.cli("trigger", "list").stdout


def test_list_shows_holder_token_checkpoint_and_last_commit(shop: Shop) -> None:
    hf = shop.deliver(*ITEMS)
    lease = hf.state.acquire("orders", ttl_seconds=600)
    hf.state.acquire("retired", ttl_seconds=600).release()
    listed = json.loads(shop.cli("trigger", "list", "--json").stdout)
    orders, retired = listed
    assert orders["lease"]["owner_id"] == lease.owner_id
    assert orders["lease"]["state"] == "held"
    assert orders["fencing_token"] == lease.fencing_token
    assert orders["cursor"]["tiebreaker"] == {"id": 3}
    assert orders["updated_at"]
    assert (retired["name"], retired["declared"], retired["lease"]["state"]) == ("retired", False, "free")
    table = shop.cli("trigger", "list", "-a", "app:hf", environment={"HOLDFAST_APP": ""}).stdout
    assert str(lease.owner_id) in table
    assert "(id=3)" in table
    assert "retired (not declared)" in table


def test_list_tells_a_lease_whose_holder_died(shop: Shop) -> None:
    hf = shop.deliver(*ITEMS)
    hf.state.acquire("orders", ttl_seconds=600)
    view = hf.state.read("orders")
    assert view is not None
    snapshot = hf.state.documents.read("state/default/orders.json")
    assert snapshot is not None
    document = json.loads(snapshot.content)
    document["lease"]["expires_at"] = "2020-01-01T00:00:00Z"
    hf.state.documents.replace("state/default/orders.json", json.dumps(document).encode(), snapshot.etag)
    assert "ran out at 2020-01-01 00:00:00 UTC" in shop.cli("trigger", "list").stdout


def test_show_tells_source_horizon_lag_progress_and_audit(shop: Shop) -> None:
    hf = shop.deliver(*ITEMS)
    with hf.runner("orders").leased() as lease:
        lease.heartbeat({"page": [7, "[bold]"]})
        details = shown(shop, "--count")
        table = shop.cli("trigger", "show", "orders").stdout
    assert details["progress"] == {"page": [7, "[bold]"]}
    assert details["source"]["capability"]["horizon"] == "server_time"
    assert details["source"]["matches_state"] is True
    assert details["lag_seconds"] == 0
    assert details["rows_waiting"] == 0
    assert details["document"]["checkpoint"]["cursor"] == details["cursor"]
    assert details["audit"] == []
    assert "server_time: no row is missed" in table
    assert '{"page": [7, "[bold]"]}' in table


def test_show_tells_how_old_the_oldest_waiting_row_is(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    shop.sql("UPDATE orders SET updated_at = '2020-01-01 00:00:00.000'")
    shop.reset()
    details = shown(shop, "--count")
    assert details["rows_waiting"] == 3
    assert details["lag_seconds"] > 24 * 3600
    assert [entry["command"] for entry in details["audit"]] == ["reset-to-beginning"]
    assert details["audit"][0]["audit_id"] in shop.cli("trigger", "show", "orders").stdout


def test_show_tells_the_state_even_when_the_source_is_broken(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    shop.sql("DROP TABLE orders")
    result = shop.cli("trigger", "show", "orders", "--json")
    assert_one_sentence(result, 2, "Table 'orders' not found")
    details = json.loads(result.stdout)
    assert details["document"]["checkpoint"]["cursor"]["tiebreaker"] == {"id": 3}
    assert "not found" in details["source"]["error"]
    assert "cannot be used" in shop.cli("trigger", "show", "orders").stdout


def test_reset_to_beginning_delivers_every_row_again_and_can_be_undone(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    before = shop.state()
    result = shop.cli("trigger", "reset-to-beginning", "orders", "--yes")
    assert result.returncode == 0
    assert "3 rows would be delivered from there, 3 of them again" in result.stderr
    assert shop.cursor() is None
    assert shop.state()["lease"]["fencing_token"] > before["lease"]["fencing_token"]
    assert f"Audit id {shop.state()['last_reset_id']}" in result.stdout
    assert "holdfast trigger undo orders" in result.stdout

    assert shop.cli("trigger", "undo", "orders", "--yes").returncode == 0
    assert shop.cursor() == before["checkpoint"]["cursor"]
    assert deliver_the_rest(shop) == 0

    assert shop.cli("trigger", "undo", "orders", "--yes").returncode == 0
    assert shop.cursor() is None
    assert deliver_the_rest(shop) == 3


def test_reset_to_cursor_continues_behind_that_row(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    updated_at = shop.rows("SELECT updated_at FROM orders WHERE id = 1")[0][0]
    command = ("trigger", "reset-to-cursor", "orders", updated_at, "--key", "1")
    answer = json.loads(shop.cli(*command, "--yes", "--json").stdout)
    assert (answer["rows_after"], answer["rows_again"], answer["rows_skipped"]) == (2, 2, 0)
    assert answer["checkpoint_after"]["cursor"]["tiebreaker"] == {"id": 1}
    assert answer["audit_id"] == shop.state()["last_reset_id"]
    assert deliver_the_rest(shop) == 2


def test_reset_forward_says_what_would_not_be_delivered(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    shop.reset()
    command = ("trigger", "reset-to-cursor", "orders", "2999-01-01 00:00:00", "--key", "1", "--dry-run")
    assert "3 rows now waiting would NOT be delivered" in shop.cli(*command).stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("2020-01-01", "--key", "1", "--key", "2"), "The key of 'orders' is (id)"),
        (("2020-01-01", "--key", "first"), "'first' is not a valid int"),
    ],
)
def test_reset_to_a_cursor_that_does_not_fit(shop: Shop, arguments: tuple[str, ...], part: str) -> None:
    shop.deliver(*ITEMS)
    before = shop.documents()
    assert_one_sentence(shop.cli("trigger", "reset-to-cursor", "orders", *arguments, "--yes"), 2, part)
    assert shop.documents() == before


def test_reset_to_checkpoint_takes_what_show_printed(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    kept = shown(shop)
    (shop.directory / "whole.json").write_text(json.dumps(kept))
    (shop.directory / "document.json").write_text(json.dumps(kept["document"]))
    (shop.directory / "checkpoint.json").write_text(json.dumps(kept["document"]["checkpoint"]))
    for file in ("whole.json", "document.json", "checkpoint.json"):
        shop.reset()
        result = shop.cli("trigger", "reset-to-checkpoint", "orders", file, "--yes")
        assert result.returncode == 0, result.stderr
        assert shop.cursor() == kept["cursor"]
    assert deliver_the_rest(shop) == 0


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "cannot be read"),
        ("{", "is not a checkpoint"),
        ("[]", "is not a checkpoint"),
        ("{}", "holds no cursor"),
        ('{"cursor": {"kind": "moon+pk", "value": "1", "tiebreaker": {"id": 1}}}', "moon"),
        ('{"cursor": {"kind": "integer+pk", "value": "1", "tiebreaker": {"other": 1}}}', "key columns"),
    ],
)
def test_reset_to_a_file_that_is_no_checkpoint(shop: Shop, content: str | None, part: str) -> None:
    shop.deliver(*ITEMS)
    before = shop.documents()
    if content is not None:
        (shop.directory / "kept.json").write_text(content)
    result = shop.cli("trigger", "reset-to-checkpoint", "orders", "kept.json", "--yes")
    assert result.returncode in (1, 2)
    assert_one_sentence(result, result.returncode, part)
    assert shop.documents() == before


def test_clone_lets_another_trigger_start_at_the_same_place(shop: Shop) -> None:
    hf = shop.deliver(*ITEMS)
    assert shop.cli("trigger", "clone", "orders", "copy", "--yes").returncode == 0
    view = hf.state.read("copy")
    assert view is not None
    assert view.checkpoint["cursor"] == shop.cursor()
    before = shop.documents()
    assert_one_sentence(shop.cli("trigger", "clone", "orders", "copy", "--yes"), 2, "has state already")
    assert shop.documents() == before


CHANGES = [
    ("reset-to-beginning", "orders"),
    ("reset-to-cursor", "orders", "2020-01-01", "--key", "1"),
    ("reset-to-checkpoint", "orders", "kept.json"),
    ("undo", "orders"),
    ("clone", "orders", "copy"),
]


def shop_that_was_changed(shop: Shop) -> Shop:
    shop.deliver(*ITEMS)
    (shop.directory / "kept.json").write_text(json.dumps(shop.state()))
    shop.reset()
    return shop


@pytest.mark.parametrize("change", CHANGES, ids=" ".join)
def test_change_needs_a_confirmation_and_a_dry_run_changes_nothing(shop: Shop, change: tuple[str, ...]) -> None:
    before = shop_that_was_changed(shop).documents()
    assert_one_sentence(shop.cli("trigger", *change), 3, "Nothing was changed", "--yes")
    assert shop.documents() == before
    dry_run = shop.cli("trigger", *change, "--dry-run", "--json")
    assert dry_run.returncode == 0
    assert json.loads(dry_run.stdout)["rows_after"] in (0, 3)
    assert shop.documents() == before


@pytest.mark.parametrize("change", CHANGES[:-1], ids=" ".join)
def test_change_is_refused_while_the_lease_is_held(shop: Shop, change: tuple[str, ...]) -> None:
    shop_that_was_changed(shop).holdfast().state.acquire("orders", ttl_seconds=600)
    before = shop.documents()
    assert_one_sentence(shop.cli("trigger", *change, "--yes"), 3, "is held by", "until")
    assert shop.documents() == before
    assert shop.cli("trigger", *change, "--dry-run").returncode == 0


def test_nothing_to_undo(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    before = shop.documents()
    assert_one_sentence(shop.cli("trigger", "undo", "orders", "--yes"), 2, "nothing to undo")
    assert shop.documents() == before


def test_trigger_that_is_no_longer_declared_can_still_be_reset(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    shop.write_app("from holdfast import Holdfast\n\nhf = Holdfast()\n")
    assert_one_sentence(shop.cli("trigger", "reset-to-cursor", "orders", "1", "--key", "1"), 2, "cannot be typed")
    result = shop.cli("trigger", "reset-to-beginning", "orders", "--yes")
    assert result.returncode == 0
    assert "cannot be told" in result.stderr
    assert shop.cursor() is None


@pytest.mark.parametrize(("typed", "code"), [("orders", 0), ("order", 3), ("", 3)])
def test_name_typed_on_a_terminal(shop: Shop, typed: str, code: int) -> None:
    shop.deliver(*ITEMS)
    before = shop.cursor()
    controller, terminal = pty.openpty()
    os.write(controller, f"{typed}\n".encode())
    try:
        result = shop.cli("trigger", "reset-to-beginning", "orders", "--json", stdin=terminal)
    finally:
        os.close(controller)
        os.close(terminal)
    assert result.returncode == code, result.stderr
    assert "Type the trigger's name (orders)" in result.stderr
    assert shop.cursor() == (None if code == 0 else before)


def test_application_is_imported_from_the_current_directory(shop: Shop, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-P", "-m", "holdfast", "migrate", "app:hf"]
    for directory, code in ((elsewhere, 2), (shop.directory, 0)):
        result = subprocess.run(
            command, cwd=directory, env=shop.environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
        assert result.returncode == code
