"""Whatever is wrong, the command says so in one sentence, with an exit code, and leaves the state as it was."""

import json
import sqlite3
from contextlib import closing

import pytest

from tests.cli.desk import Desk
from tests.cli.shop import APP, ORDERS, Shop, assert_one_sentence

WITHOUT_ID_KEY = ORDERS.replace("INTEGER PRIMARY KEY", "INTEGER")


def app_with(trigger: str = 'hf.trigger("orders", cursor="updated_at", key="id")', url: str = "") -> str:
    return f"from holdfast import Holdfast\n\nhf = Holdfast({url})\n\n@{trigger}\ndef ship(changes):\n    pass\n"


def assert_refused_unchanged(shop: Shop, code: int, *parts: str, command: tuple[str, ...] = ("run",)) -> None:
    before = shop.documents() if shop.file.exists() else []
    result = shop.cli(*command)
    assert_one_sentence(result, code, *parts)
    assert (shop.documents() if shop.file.exists() else []) == before


@pytest.mark.parametrize(
    ("url", "code", "part"),
    [
        ("not a url", 2, "cannot be parsed"),
        ("sqlite://", 2, "in-memory"),
        ("nosuchdb://host/shop", 2, "is not a database Holdfast knows"),
        ("sqlite:////nowhere/at/all/shop.db", 2, "There is no SQLite file"),
        ("postgresql://app:s3cret@127.0.0.1:1/shop", 1, "does not answer"),
        ("mysql://app:s3cret@127.0.0.1:1/shop", 1, "does not answer"),
        ("postgresql+psycopg2://app:s3cret@127.0.0.1/shop", 2, "pip install psycopg2"),
        ("mssql+pyodbc://app:s3cret@127.0.0.1/shop", 2, "pip install 'holdfast[mssql]'"),
    ],
)
def test_database_that_cannot_be_used(shop: Shop, url: str, code: int, part: str) -> None:
    result = shop.cli("run", environment={"HOLDFAST_URL": url})
    assert_one_sentence(result, code, part)
    assert "s3cret" not in result.stdout + result.stderr


@pytest.mark.parametrize("command", [("migrate",), ("run", "--migrate"), ("trigger", "list")], ids=" ".join)
def test_database_that_does_not_answer_any_command(shop: Shop, command: tuple[str, ...]) -> None:
    unreachable = {"HOLDFAST_URL": "postgresql://app:s3cret@127.0.0.1:1/shop"}
    assert_one_sentence(shop.cli(*command, environment=unreachable), 1, "app:***@127.0.0.1:1/shop does not answer")


def test_trigger_over_another_database_that_does_not_answer(shop: Shop) -> None:
    shop.deliver("book")
    elsewhere = 'hf.trigger("orders", cursor="updated_at", url="postgresql://app:s3cret@127.0.0.1:1/other")'
    shop.write_app(app_with(elsewhere))
    assert_refused_unchanged(shop, 1, "does not answer", "***@127.0.0.1:1/other")


def test_no_database_named(shop: Shop) -> None:
    assert_one_sentence(shop.cli("run", environment={"HOLDFAST_URL": ""}), 2, "app.py, line 4", "HOLDFAST_URL")


def test_missing_migration(shop: Shop) -> None:
    shop.sql(ORDERS)
    for command in (("run",), ("trigger", "list"), ("trigger", "show", "orders")):
        assert_refused_unchanged(shop, 2, "0001 state documents", "holdfast migrate", command=command)


def test_missing_table(shop: Shop) -> None:
    shop.holdfast().migrate()
    assert_refused_unchanged(shop, 2, "Table 'orders' not found")


def test_missing_table_whose_key_would_be_looked_up(shop: Shop) -> None:
    shop.holdfast().migrate()
    shop.write_app(app_with('hf.trigger("orders", cursor="updated_at")'))
    assert_refused_unchanged(shop, 2, "Table 'orders' not found")


def test_missing_column(shop: Shop) -> None:
    shop.deliver("book")
    shop.write_app(app_with('hf.trigger("orders", cursor="changed_at", key="id")'))
    assert_refused_unchanged(shop, 2, "changed_at", "It has: id, item, updated_at")


def test_no_primary_key(shop: Shop) -> None:
    shop.holdfast().migrate()
    shop.sql(WITHOUT_ID_KEY)
    shop.write_app(app_with('hf.trigger("orders", cursor="updated_at")'))
    assert_refused_unchanged(shop, 2, "has no primary key", "key=[…]")


def test_null_cursors(shop: Shop) -> None:
    shop.holdfast().migrate()
    shop.sql(ORDERS.replace("updated_at TEXT NOT NULL", "updated_at TEXT"))
    shop.sql("INSERT INTO orders (item, updated_at) VALUES ('book', NULL)")
    assert_refused_unchanged(shop, 2, "rows with NULL", "NOT NULL")


def test_cursor_the_database_does_not_fill(shop: Shop) -> None:
    shop.holdfast().migrate()
    shop.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
    assert_refused_unchanged(shop, 2, "would be skipped for ever", "lookback")


def test_where_clause_that_does_not_parse(shop: Shop) -> None:
    shop.deliver("book")
    shop.write_app(app_with("hf.trigger('orders', cursor='updated_at', key='id', where='item = = 1')"))
    assert_refused_unchanged(shop, 2, "where clause", "item = = 1")


def test_where_clause_with_an_unbound_parameter(shop: Shop) -> None:
    shop.deliver("book")
    shop.write_app(app_with("hf.trigger('orders', cursor='updated_at', key='id', where='item = :item')"))
    assert_refused_unchanged(shop, 2, "item")


def test_cursor_without_an_index_is_a_warning_with_the_statement_to_run(shop: Shop) -> None:
    shop.deliver("book")
    shop.sql("DROP INDEX idx_orders_updated_at")
    result = shop.cli("trigger", "show", "orders")
    assert result.returncode == 0
    assert "WARNING" in result.stderr
    statement = "CREATE INDEX idx_orders_updated_at ON orders (updated_at, id)"
    assert statement in result.stderr
    shop.sql(statement)
    assert shop.cli("trigger", "install-cursor", "orders", "--yes").returncode == 0
    assert shop.cli("trigger", "show", "orders").stderr == ""


def test_a_checkpoint_file_that_is_not_there(shop: Shop) -> None:
    shop.deliver("book")
    result = shop.cli("trigger", "reset-to-checkpoint", "orders", "nosuch.json", "--yes")
    assert result.returncode == 2
    assert "'nosuch.json' cannot be read: No such file or directory. Name a file that" in result.stderr


def replace_document(shop: Shop, content: bytes) -> None:
    with closing(sqlite3.connect(shop.file)) as connection, connection:
        connection.execute("UPDATE holdfast_state SET content = ? WHERE name = 'state/default/orders.json'", (content,))


STATE_COMMANDS = [
    ("trigger", "show", "orders"),
    ("trigger", "list"),
    ("trigger", "reset-to-beginning", "orders", "--yes"),
    ("trigger", "undo", "orders", "--yes"),
    ("trigger", "clone", "orders", "copy", "--yes"),
]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"{half a docu", "is corrupt"),
        (b"[]", "is corrupt"),
        (b'{"version": 1, "checkpoint": {}, "lease": {"owner_id": 7}}', "is corrupt"),
        (b'{"version": 2, "checkpoint": {}}', "has version 2"),
    ],
    ids=["half", "list", "lease", "newer"],
)
def test_unreadable_state(shop: Shop, content: bytes, part: str) -> None:
    shop.deliver("book")
    replace_document(shop, content)
    assert_refused_unchanged(shop, 1, part, "Nothing was changed")


@pytest.mark.parametrize("command", STATE_COMMANDS, ids=" ".join)
def test_unreadable_state_under_any_command(shop: Shop, command: tuple[str, ...]) -> None:
    shop.deliver("book")
    replace_document(shop, b"{half a docu")
    assert_refused_unchanged(shop, 1, "is corrupt", "Nothing was changed", command=command)


def test_unreadable_state_hides_no_other_trigger(shop: Shop) -> None:
    hf = shop.deliver("book")
    hf.state.acquire("other", ttl_seconds=60).release()
    replace_document(shop, b"{")
    listed = json.loads(shop.cli("trigger", "list", "--json").stdout)
    assert [(item["name"], item["error"] is None) for item in listed] == [("orders", False), ("other", True)]


def test_source_that_changed(shop: Shop) -> None:
    shop.deliver("book")
    shop.write_app(app_with("""hf.trigger('orders', cursor='updated_at', key='id', where="item <> 'pen'")"""))
    assert_refused_unchanged(shop, 2, "has changed since its checkpoint was written", "reset-to-beginning")
    shown = shop.cli("trigger", "show", "orders")
    assert "differs from the checkpoint's" in shown.stdout


@pytest.mark.parametrize("name", ["a/b", "..", "../orders", "a..b", ".hidden", "a b", ""])
def test_name_that_cannot_be_a_path_segment(shop: Shop, name: str) -> None:
    shop.deliver("book")
    assert_refused_unchanged(shop, 2, "cannot be used", command=("trigger", "show", name))


@pytest.mark.parametrize(
    "arguments",
    [
        ("reset-to-beginning", "../orders"),
        ("reset-to-cursor", "../orders", "1", "--key", "1"),
        ("undo", "../orders"),
        ("clone", "../orders", "copy"),
        ("clone", "orders", "../copy"),
    ],
    ids=" ".join,
)
def test_name_that_cannot_be_a_path_segment_changes_nothing(shop: Shop, arguments: tuple[str, ...]) -> None:
    shop.deliver("book")
    assert_refused_unchanged(shop, 2, "cannot be used", command=("trigger", *arguments, "--yes"))


@pytest.mark.parametrize("name", ["a/b", ".."])
def test_declared_name_that_cannot_be_a_path_segment(shop: Shop, name: str) -> None:
    shop.write_app(app_with(f'hf.trigger("orders", cursor="updated_at", key="id", name="{name}")'))
    assert_one_sentence(shop.cli("run"), 2, "app.py, line 5", "cannot be used")


def test_nothing_declared(shop: Shop) -> None:
    shop.write_app("from holdfast import Holdfast\n\nhf = Holdfast()\n")
    assert_one_sentence(shop.cli("run", "--migrate"), 2, "Nothing is declared to run")


def test_unknown_trigger(shop: Shop) -> None:
    shop.deliver("book")
    for command in ("show", "reset-to-beginning", "undo"):
        assert_refused_unchanged(
            shop, 2, "There is no trigger named 'order'", "orders", command=("trigger", command, "order")
        )


APPS = {
    "no reference": ("", APP, ("module:attribute",)),
    "no attribute": ("app", APP, ("module:attribute",)),
    "a file": ("app.py:hf", APP, ("app:hf",)),
    "no module": ("shop:hf", APP, ("no module 'shop'",)),
    "no submodule": ("shop.app:hf", APP, ("no module 'shop'",)),
    "no such attribute": ("app:holdfast", APP, ("has no 'holdfast'", "Use app:hf")),
    "not a Holdfast": ("app:ship", APP, ("function", "Use app:hf")),
    "import that is missing": ("app:hf", "import nosuchpackage\n", ("app.py, line 1", "nosuchpackage")),
    "syntax error": ("app:hf", "hf = (\n", ("app.py, line 1", "SyntaxError")),
    "error in the module": ("app:hf", "\n\nhf = {}['url']\n", ("app.py, line 3", "KeyError: 'url'")),
    "error below the module": ("app:hf", "import json\nhf = json.loads('{')\n", ("app.py, line 2", "JSONDecodeError")),
    "module that exits": ("app:hf", "import sys\n\nsys.exit(5)\n", ("app.py, line 3", "SystemExit: 5")),
    "two of one name": ("app:hf", APP + APP.partition("hf = Holdfast()")[2], ("app.py, line 11", "two triggers named")),
    "no cursor": ("app:hf", app_with('hf.trigger("orders")'), ("app.py, line 5", "needs cursor")),
}


@pytest.mark.parametrize("case", APPS)
def test_application_that_cannot_be_loaded(shop: Shop, case: str) -> None:
    reference, source, parts = APPS[case]
    shop.write_app(source)
    assert_one_sentence(shop.cli("run", environment={"HOLDFAST_APP": reference}), 2, *parts)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nosuchcommand",),
        ("run", "--nosuchoption"),
        ("run", "app:hf", "more"),
        ("run", "--drain-seconds", "-1"),
        ("run", "--drain-seconds", "soon"),
        ("trigger", "show"),
        ("trigger", "reset-to-cursor", "orders", "5"),
    ],
    ids=" ".join,
)
def test_wrong_usage(shop: Shop, arguments: tuple[str, ...]) -> None:
    assert_one_sentence(shop.cli(*arguments), 2, "--help")


def test_a_role_nobody_knows_is_named(bare_desk: Desk) -> None:
    arguments = ("serve", "--new-token", "anne", "--role", "read", "--role", "king")
    bare_desk.refused(2, "'king' is not a role", "read, payload, operate, admin", arguments=arguments)
    bare_desk.refused(2, "a token needs a --role", arguments=arguments[:3])
