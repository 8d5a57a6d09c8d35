"""What the worker sees when it loads an app: before anything is up, and when something is wrong."""

import json
import re
import sqlite3
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from holdfast import DbError
from tests.components.processes import REPOSITORY
from tests.functions import calls
from tests.functions.conftest import EXAMPLES, UNREACHABLE, StartHost, sample_settings
from tests.functions.hosts import IndexingFailedError, RuntimeHost, invoke

LOCK = REPOSITORY / "requirements" / "functions313.lock"
APPS = sorted(path.parent for path in EXAMPLES.glob("*/function_app.py"))
by_name = pytest.mark.parametrize("app", APPS, ids=lambda app: app.name)

TYPES_FOR_THE_CHECKER_ONLY = """
from __future__ import annotations

from typing import TYPE_CHECKING

import azure.functions as func

from holdfast import DbBindings, SqlAlchemySource, StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore

if TYPE_CHECKING:
    from holdfast import DbOut, PollContext, RowChange

app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)
db = DbBindings()
source = SqlAlchemySource(url="%DB_URL%", table="orders", cursor_column="id", pk_columns=["id"])


@app.timer_trigger(arg_name="timer", schedule="0 * * * * *")
@db.output("out", url="%DB_URL%", table="copies")
@db.trigger(arg_name="changes", source=source, checkpoint_store=StateStore(MemoryDocumentStore()))
def copy(timer: func.TimerRequest, changes: list[RowChange], out: DbOut, context: PollContext) -> None:
    out.set([{"id": change.pk["id"], "batch": context.batch_id} for change in changes])
"""
HOST_CONTEXT = """
import azure.functions as func

from holdfast import DbBindings, DbReader

app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)
db = DbBindings()


@app.route(route="copies")
@db.inject_reader("reader", url="%DB_URL%")
def count(req: func.HttpRequest, reader: DbReader, context: func.Context) -> func.HttpResponse:
    return func.HttpResponse(f'"{context.function_name}: {reader.scalar("SELECT count(*) FROM copies")}"')
"""
WRONG_ORDER = """
import azure.functions as func

from holdfast import DbBindings, DbReader

app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)


@DbBindings().inject_reader("reader", url="%DB_URL%")
@app.route(route="copies")
def count(req: func.HttpRequest, reader: DbReader) -> func.HttpResponse:
    return func.HttpResponse("never")
"""


SEEN = {
    "timer": {"ship_orders": ("timer", False), "keep_journal": ("timer", True)},
    "http": {"get_order": ("req", False), "list_orders": ("req", True), "place_order": ("req", True)},
    "queue": {"record_order": ("msg", False), "cancel_order": ("msg", True)},
}
"""For each function the one parameter that the worker may see, and whether it is async."""


@by_name
def test_the_worker_sees_the_trigger_and_nothing_we_inject_while_nothing_is_up(
    app: Path, start_host: StartHost
) -> None:
    storage = f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey=QQ==;BlobEndpoint=http://{UNREACHABLE}/a"
    down = {"DB_URL": f"postgresql://app:s3cret@{UNREACHABLE}/shop", "AzureWebJobsStorage": storage}
    host = start_host(app, sample_settings(app) | down)
    assert {name: (item.parameters, item.is_async) for name, item in host.functions.items()} == {
        name: ([parameter], is_async) for name, (parameter, is_async) in SEEN[app.name].items()
    }
    for name, function in host.functions.items():
        outcome = invoke(host, name, call_for(function.bindings[0]["type"]))
        assert not outcome.succeeded
        assert "s3cret" not in (outcome.error or "")


def call_for(binding: str) -> calls.Call:
    match binding:
        case "timerTrigger":
            return calls.timer()
        case "httpTrigger":
            body = {"customer": "ada", "item": "book"}
            route = {"id": "7d9d1b2e-55b4-4a3a-9c2c-2a8b4d1d9b11"}
            return calls.http("GET", "orders", query={"customer": "ada"}, route=route, body=body)
    return calls.Call("queueTrigger", "msg", {"string": '{"order_id": 7, "lines": [{"line": 1}]}'})


@pytest.fixture
def copying(sqlite_url: str) -> Iterator[sqlite3.Connection]:
    """A database with two orders, and nothing copied yet."""
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    with closing(connection):
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT)")
        connection.execute("CREATE TABLE copies (id INTEGER PRIMARY KEY, batch TEXT NOT NULL)")
        connection.execute("INSERT INTO orders (id) VALUES (1), (2)")
        yield connection


def test_injected_parameters_may_have_types_that_only_the_type_checker_imports(
    start_host: StartHost, tmp_path: Path, sqlite_url: str, copying: sqlite3.Connection
) -> None:
    (tmp_path / "function_app.py").write_text(TYPES_FOR_THE_CHECKER_ONLY)
    host = start_host(tmp_path, {"DB_URL": sqlite_url})
    assert host.functions["copy"].parameters == ["timer"]
    outcome = invoke(host, "copy", calls.timer())
    assert outcome.succeeded, outcome.error
    assert copying.execute("SELECT id, batch LIKE 'batch%' FROM copies").fetchall() == [(1, 1), (2, 1)]


@pytest.mark.component("functions")
def test_the_hosts_own_context_is_passed_on(tmp_path: Path, sqlite_url: str, copying: sqlite3.Connection) -> None:
    (tmp_path / "function_app.py").write_text(HOST_CONTEXT)
    with RuntimeHost(tmp_path, {"DB_URL": sqlite_url}) as host:
        outcome = invoke(host, "count", calls.http("GET", "copies"))
    assert outcome.response is not None, outcome.error
    assert outcome.response.body == "count: 0"


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (TYPES_FOR_THE_CHECKER_ONLY, "SourceConfigurationError", "'DB_URL' is not set"),
        (WRONG_ORDER, "ConfigurationError", "@app.… on top, @db.inject_reader below it"),
    ],
    ids=["missing setting", "wrong order"],
)
def test_what_is_wrong_is_said_in_one_sentence_when_the_app_is_loaded(
    start_host: StartHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, error: str, message: str
) -> None:
    monkeypatch.delenv("DB_URL", raising=False)
    (tmp_path / "function_app.py").write_text(source)
    with pytest.raises((IndexingFailedError, DbError), match=message) as caught:
        start_host(tmp_path, {})
    assert error in f"{type(caught.value).__name__}: {caught.value}"
    assert "\n" not in str(caught.value)


@by_name
def test_the_files_of_an_app_fit_together(app: Path) -> None:
    host = json.loads((app / "host.json").read_text())
    assert host["version"] == "2.0"
    assert host["extensionBundle"]["id"] == "Microsoft.Azure.Functions.ExtensionBundle"
    sample = json.loads((app / "local.settings.sample.json").read_text())
    used = set(re.findall(r'%(\w+)%|"(AzureWebJobsStorage)"', (app / "function_app.py").read_text()))
    assert {one or other for one, other in used} <= sample["Values"].keys()
    assert sample["Values"]["FUNCTIONS_WORKER_RUNTIME"] == "python"
    assert (app / "README.md").read_text().startswith("# ")


@by_name
def test_the_requirements_of_an_app_exist_and_are_those_the_tests_ran_with(app: Path) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    locked = {pinned.group(1) for pinned in re.finditer(r"^([\w.-]+)==", LOCK.read_text(), re.MULTILINE)}
    for line in (app / "requirements.txt").read_text().splitlines():
        requirement = Requirement(line)
        if requirement.name == project["name"]:
            assert requirement.extras <= project["optional-dependencies"].keys()
            locked_names = (
                Requirement(item).name
                for extra in requirement.extras
                for item in project["optional-dependencies"][extra]
            )
            assert set(locked_names) <= locked
        else:
            assert requirement.name in locked
