"""Seeing where triggers stand, and moving their checkpoints by hand, behind guardrails."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.forked import PATIENCE_SECONDS
from tests.cli.shop import ORDERS, Shop, assert_one_sentence

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
    assert "server_time: none is missed of rows that leave 'updated_at' to the database" in " ".join(table.split())
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
        result = shop.start_cli("trigger", "reset-to-beginning", "orders", "--json", stdin=terminal)
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


def test_13_1_show_says_what_is_proved_and_install_cursor_proves_it(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    told = " ".join(shop.cli("trigger", "show", "orders").stdout.split())
    assert "inserts, updates (not proved)" in told
    assert "no row is missed" not in told
    assert "none is missed of rows that leave 'updated_at' to the database" in told
    command = shown(shop)["source"]["capability"]["prove_updates_with"]
    assert command == "holdfast trigger install-cursor orders --column updated_at"
    wanted = command.split()[1:]
    dry = shop.cli(*wanted, "--dry-run")
    assert (dry.returncode, dry.stdout.count("CREATE TRIGGER")) == (0, 2)
    assert_one_sentence(shop.cli(*wanted), 3, "there is no terminal to confirm on")
    assert shown(shop)["source"]["capability"]["updates"] == "not proved"
    done = json.loads(shop.cli(*wanted, "--yes", "--json").stdout)
    assert (done["action"], done["dry_run"], len(done["statements"])) == ("install", False, 2)
    capability = shown(shop)["source"]["capability"]
    assert (capability["updates"], capability["covers"]) == ("proved", "every row")
    assert "Nothing to do" in shop.cli(*wanted, "--yes").stdout
    shop.sql("UPDATE orders SET item = 'ink', updated_at = '2001-01-01' WHERE id = 1")
    while not deliver_the_rest(shop):
        pass
    audited = "SELECT action, target, details FROM holdfast_audit"
    [(action, target, details)] = shop.rows(audited)
    assert (action, target) == ("trigger install-cursor", "orders")
    assert json.loads(details)["statements"].count("CREATE TRIGGER") == 2, "in one transaction, so in one row"
    removed = shop.cli(*wanted, "--remove", "--yes")
    assert [json.loads(row[2])["action"] for row in shop.rows(audited)] == ["install", "remove"]
    assert removed.stdout.count("DROP TRIGGER") == 2
    assert shown(shop)["source"]["capability"]["updates"] == "not proved"
    assert "Nothing to do" in shop.cli(*wanted, "--remove", "--yes").stdout


def test_13_1_install_cursor_asks_for_the_column_of_a_table_that_nobody_polls(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    shop.sql("CREATE TABLE parcels (id INTEGER PRIMARY KEY)")
    assert_one_sentence(shop.cli("trigger", "install-cursor", "parcels"), 2, "--column updated_at")
    done = shop.cli("trigger", "install-cursor", "parcels", "--column", "changed", "--yes")
    assert "ADD COLUMN changed" in done.stdout
    assert_one_sentence(shop.cli("trigger", "install-cursor", "nothing", "-c", "changed", "--yes"), 2, "'nothing'")
    assert_one_sentence(shop.cli("trigger", "install-cursor", "nothing"), 2, "'nothing' not found", "parcels", "Name")


@pytest.mark.parametrize("name", ["bad;col", "two words", "7th", "é", "x" * 64, '"'])
def test_13_1_install_cursor_adds_no_column_whose_name_is_not_plain(shop: Shop, name: str) -> None:
    shop.deliver(*ITEMS)
    shop.sql("CREATE TABLE parcels (id INTEGER PRIMARY KEY)")
    command = ("trigger", "install-cursor", "parcels", "--column", name, "--yes")
    assert_one_sentence(shop.cli(*command), 2, f"has no column '{name}'", "Name it so with --column")
    assert [row[1] for row in shop.rows("PRAGMA table_info(parcels)")] == ["id"]


def test_13_1_install_cursor_keeps_a_column_that_is_there_whatever_its_name(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    clock = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    shop.sql(f'CREATE TABLE parcels (id INTEGER PRIMARY KEY, "last change" TEXT NOT NULL DEFAULT ({clock}))')
    done = shop.cli("trigger", "install-cursor", "parcels", "--column", "last change", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("CREATE TRIGGER") == 2


def test_13_3_list_and_show_tell_why_a_trigger_fails(shop: Shop) -> None:
    hf = shop.deliver(*ITEMS)
    lease = hf.state.acquire("orders", ttl_seconds=600)
    lease.record_failure("RuntimeError: no carrier", lease.now())
    lease.record_failure("RuntimeError: no carrier", lease.now())
    lease.release()
    (listed,) = json.loads(shop.cli("trigger", "list", "--json").stdout)
    assert (listed["failure"]["error"], listed["failure"]["count"]) == ("RuntimeError: no carrier", 2)
    assert listed["failure"]["next_try_at"]
    assert shown(shop)["failure"] == listed["failure"]
    for command in (("list",), ("show", "orders")):
        table = " ".join(shop.cli("trigger", *command).stdout.split())
        assert "2 in a row" in table
        assert "no carrier" in table


BOUND_APP = """
from holdfast import DbBindings, Holdfast, SqlAlchemySource, StateStore

hf = Holdfast()
db = DbBindings()
source = SqlAlchemySource(url="%HOLDFAST_URL%", table="orders", cursor_column="updated_at", pk_columns=["id"])

@db.trigger(arg_name="changes", source=source, checkpoint_store=hf.state, name="bound")
def ship(timer, changes):
    pass
"""


def test_13_5_the_checkpoint_of_a_bound_trigger_can_be_moved_to_a_cursor(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    shop.write_app(BOUND_APP)
    (moment,) = shop.rows("SELECT updated_at FROM orders WHERE id = 2")[0]
    done = shop.cli("trigger", "reset-to-cursor", "bound", moment, "--key", "2", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows_after"] == 1
    listed = {item["name"]: item for item in json.loads(shop.cli("trigger", "list", "--json").stdout)}
    assert listed["bound"]["declared"] is True
    assert listed["bound"]["cursor"]["tiebreaker"] == {"id": 2}
    assert_one_sentence(
        shop.cli("trigger", "reset-to-cursor", "bound", "soon", "--key", "2", "--yes"), 2, "is not a time"
    )


ELSEWHERE_APP = """
from holdfast import DbBindings, Holdfast, SqlAlchemySource

hf = Holdfast()
db = DbBindings()
source = SqlAlchemySource(url="sqlite:///elsewhere.db", table="orders", cursor_column="updated_at", pk_columns=["id"])

@db.trigger(arg_name="changes", source=source, checkpoint_store=hf.state, name="elsewhere")
def ship(timer, changes):
    pass
"""


def elsewhere(shop: Shop) -> Shop:
    """Return another database with a table of the same name, which only a bound trigger polls."""
    shop.deliver(*ITEMS)
    other = Shop(shop.directory, shop._provider)
    other.file = shop.directory / "elsewhere.db"
    shop.write_app(ELSEWHERE_APP)
    other.sql(ORDERS)
    return other


def triggers_of(shop: Shop) -> list[Any]:
    return shop.rows("SELECT tbl_name FROM sqlite_master WHERE type = 'trigger'")


def test_13_1_install_cursor_goes_where_the_bound_trigger_reads(shop: Shop) -> None:
    other = elsewhere(shop)
    capability = json.loads(shop.cli("trigger", "show", "elsewhere", "--json").stdout)["source"]["capability"]
    done = shop.cli(*capability["prove_updates_with"].split()[1:], "--yes")
    assert done.returncode == 0, done.stderr
    assert triggers_of(shop) == []
    assert {table for (table,) in triggers_of(other)} == {"orders"}


def test_13_1_install_cursor_asks_which_of_two_tables_of_one_name_is_meant(shop: Shop) -> None:
    other = elsewhere(shop)
    shop.write_app(
        ELSEWHERE_APP + '@hf.trigger("orders", cursor="updated_at", key="id")\ndef here(changes):\n    pass\n'
    )
    command = ("trigger", "install-cursor", "orders", "--yes")
    assert_one_sentence(shop.cli(*command), 2, "elsewhere, orders poll a table 'orders'", "--trigger NAME")
    assert (triggers_of(shop), triggers_of(other)) == ([], [])
    assert_one_sentence(shop.cli(*command, "--trigger", "nobody"), 2, "no trigger 'nobody' that polls")
    assert shop.cli(*command, "--trigger", "orders").returncode == 0
    assert triggers_of(shop)
    assert triggers_of(other) == []


def test_13_1_a_view_is_not_told_to_install_a_cursor(shop: Shop) -> None:
    hf = shop.deliver(*ITEMS)
    shop.sql("CREATE VIEW seen AS SELECT * FROM orders")
    hf.trigger("seen", cursor="updated_at", key="id", horizon="none")(len)
    capability = hf.runner("seen").source.capability()
    assert (capability.updates, capability.prove_updates_with) == ("not proved", None)
    assert "'seen' is a view" in capability.updates_because


TWO_STORES_APP = (
    BOUND_APP
    + """

from holdfast.lease.stores.file import FileDocumentStore

others = StateStore(FileDocumentStore("states"), app_name="others")

@db.trigger(arg_name="changes", source=source, checkpoint_store=others, name="bound")
def bill(timer, changes):
    pass
"""
)


def test_13_5_two_bound_triggers_of_one_name_are_both_listed_and_neither_is_moved(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    shop.write_app(TWO_STORES_APP)
    listed = json.loads(shop.cli("trigger", "list", "--json").stdout)
    assert [item["name"] for item in listed if item["declared"]] == ["bound", "bound"]
    command = ("trigger", "reset-to-beginning", "bound", "--yes")
    assert_one_sentence(shop.cli(*command), 2, "2 triggers are called 'bound'", "another name=")


OUTBOX_APP = """
from holdfast import DbBindings, Holdfast

hf = Holdfast()
db = DbBindings()

@db.trigger(
    arg_name="events", source="letters", strategy="outbox", position="seq", message_type="kind", url="%HOLDFAST_URL%",
    checkpoint_store=hf.state, name="letters",
)
def send(timer, events):
    pass
"""


def test_13_5_the_checkpoint_of_a_bound_outbox_can_be_moved_to_a_cursor(shop: Shop) -> None:
    shop.deliver(*ITEMS)
    shop.write_app(OUTBOX_APP)
    listed = {item["name"]: item for item in json.loads(shop.cli("trigger", "list", "--json").stdout)}
    assert listed["letters"]["declared"] is True, "whether or not there is a table"
    moving = ("trigger", "reset-to-cursor", "letters", "2", "--key", "2", "--yes", "--json")
    assert_one_sentence(shop.cli(*moving), 2, "'letters'")
    shop.sql(
        "CREATE TABLE letters (seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, data TEXT);"
        "INSERT INTO letters (kind) VALUES ('a'), ('b'), ('c')"
    )
    done = shop.cli(*moving)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows_after"] == 1
