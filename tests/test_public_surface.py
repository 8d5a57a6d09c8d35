"""What ``import holdfast`` offers, what it drags in, and that what we print never holds a password."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import DbConfig, EngineProvider, Holdfast, SqlAlchemySource
from holdfast.core.config import parse_url, resolve_db_config, resolve_env_vars, safe_url
from holdfast.core.errors import ConfigurationError, MissingDependencyError

HEAVY = (
    "azure",
    "boto3",
    "botocore",
    "grpc",
    "fastapi",
    "uvicorn",
    "jinja2",
    "typer",
    "rich",
    "opentelemetry",
    "psycopg",
    "pymysql",
    "httpx",
    "confluent_kafka",
)


def test_importing_pulls_in_no_cloud_sdk_no_web_framework_no_grpc() -> None:
    code = "import json, sys, holdfast; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not set(HEAVY) & set(loaded)


def test_every_exported_name_exists_and_is_documented() -> None:
    for name in holdfast.__all__:
        exported = getattr(holdfast, name)
        if isinstance(exported, type):
            assert (exported.__doc__ or "").strip(), f"{name} has no docstring"


def test_the_names_of_the_foundation_are_exported() -> None:
    expected = {
        "Holdfast", "DbConfig", "EngineProvider", "PollTrigger", "PollContext", "PollRunner", "RowChange",
        "SqlAlchemySource", "BlobCheckpointStore", "RetryPolicy", "MetricsCollector", "DbError", "ConfigurationError",
        "LeaseAcquireError", "FetchError", "HandlerError", "CommitError", "LostLeaseError", "CursorValue", "CursorPart",
        "CursorSerializationError", "DbConnectionError", "NotFoundError", "QueryError", "WriteError", "__version__",
    }  # fmt: skip
    assert expected <= set(holdfast.__all__)


SECRET = "s3cr%40t/p:w"
URLS = [
    f"postgresql://app:{SECRET}@db.example/shop",
    f"mysql://app:{SECRET}@db.example/shop",
    f"postgresql://app@db.example/shop?password={SECRET}",
    "mssql+pyodbc://app:s3cr%40t%2Fp%3Aw@db.example/shop?driver=x&PWD_TOKEN=s3cr",
    "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BUID%3Dapp%3BPWD%3Ds3cret",
    "mysql://app@db.example/shop?pwd=s3cret&charset=utf8mb4",
]


@pytest.mark.parametrize("url", URLS)
def test_no_repr_shows_a_password(url: str) -> None:
    shown = [safe_url(url), repr(DbConfig(connection_url=url)), str(DbConfig(connection_url=url)), repr(Holdfast(url))]
    shown.append(repr(SqlAlchemySource(url=url, table="t", cursor_column="c", pk_columns=["id"])))
    assert not any("s3cr" in text for text in shown), shown


@pytest.mark.parametrize("url", ["", "nonsense", "postgres//x", "://", "postgresql://u:p%ZZ@h:port/d"])
def test_a_wrong_url_is_one_sentence_without_the_url(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Holdfast(url or None).database.connect()
    assert "p%ZZ" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bare_urls_get_our_drivers() -> None:
    assert parse_url("postgresql://h/d").drivername == "postgresql+psycopg"
    assert parse_url("mysql://h/d").drivername == "mysql+pymysql"
    assert parse_url("postgresql+asyncpg://h/d").drivername == "postgresql+asyncpg"


def test_environment_variables_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DB", "sqlite:///shop.db")
    assert resolve_env_vars("%SHOP_DB%?x=100%%") == "sqlite:///shop.db?x=100%"
    with pytest.raises(ConfigurationError, match="NO_SUCH_VARIABLE"):
        resolve_env_vars("%NO_SUCH_VARIABLE%")


def test_an_unknown_database_and_a_missing_driver_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="'dbase'"):
        _ = Holdfast("dbase://h/d").database
    monkeypatch.setitem(sys.modules, "pyodbc", None)
    with pytest.raises(MissingDependencyError, match=r"holdfast\[mssql\]"):
        _ = Holdfast("mssql+pyodbc://h/d").database


def test_no_database_at_all_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    with pytest.raises(ConfigurationError, match="HOLDFAST_URL"):
        Holdfast()
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///from-environment.db")
    assert "from-environment" in repr(Holdfast())
    with pytest.raises(ConfigurationError, match="in-memory"):
        Holdfast("sqlite://")


def test_a_filled_in_value_is_not_filled_in_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password that happens to hold %SOMETHING% must reach the driver as it is."""
    monkeypatch.setenv("SHOP_URL", "postgresql://app:a%SHOP_URL%b@h/d")
    engine = EngineProvider().get_engine(resolve_db_config(url="%SHOP_URL%", db_config=None))
    assert engine.url.password == "a%SHOP_URL%b"
    assert repr(resolve_db_config(url="%SHOP_URL%", db_config=None)).count("***") == 1


def test_percent_encoding_in_a_password_is_no_variable() -> None:
    url = "postgresql://app:p%40ss%2Fw@h/d"
    assert EngineProvider().get_engine(DbConfig(connection_url=url)).url.password == "p@ss/w"


def test_every_name_is_found_where_types_are_told_it_is() -> None:
    told = {
        f".{statement.module}": tuple(alias.name for alias in statement.names)
        for block in ast.parse(Path(holdfast.__file__).read_text()).body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
    }
    assert told == holdfast._FOUND_IN
    assert {"__version__", *holdfast._MODULES} == set(holdfast.__all__)
    assert set(holdfast.__all__) <= set(dir(holdfast))
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Holdfats'"):
        holdfast.Holdfats  # type: ignore[attr-defined]  # noqa: B018 - a type checker finds it, too


@pytest.mark.parametrize(
    "code", ["import holdfast", "from holdfast.cli.main import run_command; run_command(['--version'])"]
)
def test_what_nobody_has_asked_for_is_not_imported(code: str) -> None:
    asked = (
        f"{code}; import json, sys; print(json.dumps([name for name in sys.modules if name.startswith('holdfast.')]))"
    )
    printed = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True, text=True).stdout
    rooms = {name.split(".")[1] for name in json.loads(printed.splitlines()[-1])}
    assert rooms <= {"_version", "cli", "core", "runtime"}
    assert len(json.loads(printed.splitlines()[-1])) < 20


DECLARED = {
    "trigger": "hf.trigger('orders', cursor='updated_at')(print)",
    "jobs": "hf.job()(lambda: None)",
    "outbox": "hf.processor('totals')(print)",
}


@pytest.mark.parametrize("workload", [None, *DECLARED])
def test_a_workload_that_nobody_declares_is_not_loaded(workload: str | None) -> None:
    code = f"from holdfast import Holdfast; hf = Holdfast('sqlite:///no.db'); {DECLARED.get(workload or '', 'pass')}"
    asked = f"{code}; import sys; print(*(name for name in sys.modules if name.startswith('holdfast.')))"
    printed = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True, text=True).stdout
    own = {
        f"holdfast.{room}.{room if room == 'jobs' else 'runner'}" for room in ("trigger", "jobs", "outbox", "engines")
    }
    loaded = own & set(printed.split())
    assert loaded == ({f"holdfast.{workload}.{'jobs' if workload == 'jobs' else 'runner'}"} if workload else set())
