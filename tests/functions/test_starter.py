"""``holdfast new function-app``: what it writes runs, on each database, without a change."""

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from holdfast.cli.main import run_command
from tests.components.azurite import AzuriteServer
from tests.components.processes import REPOSITORY, wait_until
from tests.functions import calls
from tests.functions.conftest import StartHost, sample_settings
from tests.functions.hosts import Host, invoke

FILES = [
    ".funcignore",
    "README.md",
    "function_app.py",
    "host.json",
    "local.settings.sample.json",
    "requirements.txt",
    "schema.sql",
]
URLS = {"postgres": "postgres_url", "mysql": "mariadb_url", "sqlite": "sqlite_url"}
DATABASES = ["postgres", "mysql", "mssql", "sqlite"]


def new(directory: Path, *options: str) -> int:
    return run_command(["new", "function-app", str(directory), *options])


def written(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(params=URLS)
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(request: pytest.FixtureRequest, database: str) -> Iterator[Engine]:
    made = create_engine(request.getfixturevalue(URLS[database]))
    yield made
    made.dispose()


def create_tables(engine: Engine, script: str) -> None:
    with engine.begin() as connection:
        match engine.dialect.name:
            case "postgresql":
                connection.exec_driver_sql(script)
            case "sqlite":
                connection.connection.cursor().executescript(script)
            case _:
                for statement in filter(str.strip, script.split(";")):
                    connection.exec_driver_sql(statement)


def started(app: Path, engine: Engine, azurite: AzuriteServer, start_host: StartHost) -> Host:
    url = engine.url.render_as_string(hide_password=False)
    ours = {"DB_URL": url, "AzureWebJobsStorage": azurite.connection_string}
    return start_host(app, sample_settings(app) | ours | {"WEBSITE_SITE_NAME": f"site-{uuid.uuid4().hex[:12]}"})


def test_a_starter_follows_its_table_and_answers(
    tmp_path: Path, database: str, engine: Engine, azurite: AzuriteServer, start_host: StartHost
) -> None:
    app = tmp_path / "app"
    assert new(app, "--database", database) == 0
    create_tables(engine, (app / "schema.sql").read_text())
    host = started(app, engine, azurite, start_host)
    assert {name: item.parameters for name, item in host.functions.items()} == {
        "follow_orders": ["timer"],
        "get_order": ["req"],
    }
    with engine.begin() as connection:
        place = "INSERT INTO orders (id, item, updated_at) VALUES (:id, :item, '2026-01-01 00:00:00.000')"
        connection.execute(text(place), [{"id": 1, "item": "book"}, {"id": 2, "item": "lamp"}])

    def logged() -> list[tuple[object, ...]]:
        outcome = invoke(host, "follow_orders", calls.timer())
        assert outcome.succeeded, outcome.error
        with engine.connect() as connection:
            return [
                tuple(row) for row in connection.execute(text("SELECT order_id, item FROM order_log ORDER BY item"))
            ]

    assert wait_until(logged, "the orders to be logged") == [(1, "book"), (2, "lamp")]
    assert logged() == [(1, "book"), (2, "lamp")]
    found = invoke(host, "get_order", calls.http("GET", "orders/2", route={"id": "2"})).response
    assert found is not None
    assert (found.status, found.body["item"], found.body["quantity"]) == (200, "lamp", 1)


@pytest.mark.parametrize("name", DATABASES)
def test_a_starter_is_complete_clean_and_names_its_driver(tmp_path: Path, name: str) -> None:
    app = tmp_path / "a" / "b"
    assert new(app, "--database", name) == 0
    assert written(app) == FILES
    [holdfast] = [item for item in map(Requirement, lines(app / "requirements.txt")) if item.name == "holdfast"]
    assert holdfast.extras == {"azure", name} - {"sqlite"}
    code = (app / "function_app.py").read_text()
    assert ("lookback=60" in code) == (name == "mssql")
    assert ('updates="trusted",  # the trigger in schema.sql' in code) == (name == "mssql")  # elsewhere it is proved
    assert "$" not in code + (app / "README.md").read_text()
    url = json.loads((app / "local.settings.sample.json").read_text())["Values"]["DB_URL"]
    assert url.startswith({"postgres": "postgresql://", "mssql": "mssql+pyodbc://"}.get(name, f"{name}://"))
    for command in ("check", "format --check"):
        ruff = f"{Path(sys.executable).with_name('ruff')} {command} --config {REPOSITORY / 'pyproject.toml'} {app}"
        done = subprocess.run(ruff.split(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_starter_for_sql_server_is_indexed(tmp_path: Path, start_host: StartHost) -> None:
    assert new(tmp_path, "--database", "mssql") == 0
    assert sorted(start_host(tmp_path, sample_settings(tmp_path)).functions) == ["follow_orders", "get_order"]


def test_the_command_tells_what_it_wrote_and_what_is_next(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "holdfast", "new", "function-app", "app"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    *wrote, following = done.stdout.splitlines()
    assert sorted(line.removeprefix("wrote app/") for line in wrote) == FILES
    assert following.startswith("Next: read app/README.md")


@pytest.mark.parametrize("given", ["", " "])
def test_an_empty_directory_name_is_not_the_present_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["new", "function-app", given]) == 2
    assert "write . for the present one" in " ".join(capsys.readouterr().err.split())
    assert written(tmp_path) == []
    assert run_command(["new", "function-app", "."]) == 0
    assert written(tmp_path) == FILES


def test_nothing_is_ever_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "host.json").write_text("mine")
    assert new(tmp_path) == 3
    assert "has host.json already; nothing was written" in capsys.readouterr().err
    assert written(tmp_path) == ["host.json", "notes.txt"]
    assert (tmp_path / "host.json").read_text() == "mine"
    (tmp_path / "host.json").unlink()
    assert new(tmp_path) == 0
    assert written(tmp_path) == sorted([*FILES, "notes.txt"])
    assert new(tmp_path) == 3


@pytest.mark.parametrize(
    ("target", "options", "code", "part"),
    [
        ("file", [], 3, "is a file; nothing was written"),
        ("file/below", [], 1, "could not be written"),
        ("dangling", [], 1, "could not be written"),
        ("app", ["--database", "oracle"], 2, "'oracle' is not one of 'postgres', 'mysql', 'mssql', 'sqlite'"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, options: list[str], code: int, part: str
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling" / "README.md").symlink_to(tmp_path / "nowhere")
    assert new(tmp_path / target, *options) == code
    said = capsys.readouterr().err
    assert part in said
    assert said.count("\n") == 1
    assert written(tmp_path) == ["dangling", "file"]
    assert written(tmp_path / "dangling") == ["README.md"]
