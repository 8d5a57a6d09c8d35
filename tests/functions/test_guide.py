"""The guide's code: all of docs/azure-functions.md is one function app, and the worker loads it."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.components.processes import REPOSITORY
from tests.functions import calls
from tests.functions.conftest import StartHost
from tests.functions.hosts import invoke

DOCS = REPOSITORY / "docs"
GUIDE = DOCS / "azure-functions.md"
TABLES = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL);
CREATE TABLE order_lines (order_id INTEGER NOT NULL, line INTEGER NOT NULL, PRIMARY KEY (order_id, line));
CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance >= 0));
INSERT INTO orders VALUES (7, 1), (8, 1);
INSERT INTO order_lines VALUES (7, 1), (7, 2), (8, 1);
INSERT INTO accounts VALUES (1, 100), (2, 0);
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def guide_app(tmp_path: Path) -> Path:
    (tmp_path / "function_app.py").write_text("\n\n".join(blocks("python")))
    return tmp_path


@pytest.fixture
def database(sqlite_url: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    with closing(connection):
        connection.executescript(TABLES)
        yield connection


def test_the_code_of_the_guide_is_an_app_that_works(
    guide_app: Path, start_host: StartHost, sqlite_url: str, database: sqlite3.Connection
) -> None:
    host = start_host(guide_app, {"DB_URL": sqlite_url, "AzureWebJobsStorage": "UseDevelopmentStorage=true"})
    assert {name: (item.parameters, item.is_async) for name, item in host.functions.items()} == {
        "ship": (["timer"], False),
        "get_customer": (["req"], False),
        "open_orders": (["req"], False),
        "save_customer": (["req"], False),
        "transfer": (["msg"], False),
        "cancel": (["req"], True),
        "count_orders": (["timer"], True),
    }
    assert invoke(host, "save_customer", calls.http("POST", "customers", body={"id": 1, "name": "Ada"})).succeeded
    assert database.execute("SELECT name FROM customers").fetchall() == [("Ada",)]
    for function, call, text in (
        ("get_customer", calls.http("GET", "customers/1", route={"id": "1"}), "Ada"),
        ("open_orders", calls.http("GET", "open-orders", query={"customer": "1"}), "7, 8"),
        ("cancel", calls.http("POST", "orders/7/cancel", route={"id": "7"}), ""),
    ):
        outcome = invoke(host, function, call)
        assert outcome.response is not None, outcome.error
        assert outcome.response.text == text
    assert database.execute("SELECT order_id FROM order_lines").fetchall() == [(8,)]
    message = {"from": 1, "from_balance": 60, "to": 2, "to_balance": -1}
    assert not invoke(host, "transfer", calls.Call("queueTrigger", "msg", {"string": json.dumps(message)})).succeeded
    assert database.execute("SELECT balance FROM accounts ORDER BY id").fetchall() == [(100,), (0,)]


def test_the_other_blocks_of_the_guide_are_what_they_say() -> None:
    [host] = blocks("json")
    assert json.loads(host)["version"] == "2.0"
    assert blocks("python")
    assert any("holdfast new function-app" in block for block in blocks(""))


@pytest.mark.parametrize("page", [GUIDE, DOCS / "azure-functions-db.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]
