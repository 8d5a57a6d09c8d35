"""A password appears in no output, whatever goes wrong and however it is written."""

import logging
import re
import sys
from pathlib import Path

import pytest

from holdfast.cli.logs import OneLineFormatter
from holdfast.core.redaction import shown as redacted
from tests.cli.shop import Shop, assert_one_sentence

# Encoded as it must be: p@ss/w:rd#%é
ENCODED = "p%40ss%2Fw%3Ard%23%25%C3%A9"
FRAGMENTS = ("p@ss", "p%40ss", "w:rd", "w%3Ard", "40ss", "Fw", "ss/w", "%C3")


def assert_no_fragment(text: str) -> None:
    assert [part for part in FRAGMENTS if part in text] == []


@pytest.mark.parametrize("debug", ["", "1"], ids=["plain", "debug"])
@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
@pytest.mark.parametrize("command", [("run",), ("trigger", "list")], ids=" ".join)
def test_unreachable_database(shop: Shop, scheme: str, command: tuple[str, ...], debug: str) -> None:
    url = f"{scheme}://app:{ENCODED}@127.0.0.1:1/shop"
    result = shop.cli(*command, environment={"HOLDFAST_URL": url, "HOLDFAST_DEBUG": debug})
    assert result.returncode == 1
    assert "app:***@127.0.0.1:1/shop" in result.stderr
    assert_no_fragment(result.stdout + result.stderr)
    assert ("Traceback" in result.stderr) == bool(debug)


@pytest.mark.parametrize("debug", ["", "1"], ids=["plain", "debug"])
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:p@ss/w:rd@127.0.0.1:1/shop",
        "postgresql://app:p@ss@127.0.0.1/shop",
        "mysql://app:x@p@ss:w:rd/a",
    ],
)
def test_password_that_should_have_been_encoded(shop: Shop, url: str, debug: str) -> None:
    result = shop.cli("run", environment={"HOLDFAST_URL": url, "HOLDFAST_DEBUG": debug})
    assert result.returncode == 2
    assert "percent-encoded" in result.stderr
    assert_no_fragment(result.stdout + result.stderr)


@pytest.mark.parametrize("debug", ["", "1"], ids=["plain", "debug"])
def test_password_in_the_module_and_in_its_error(shop: Shop, debug: str) -> None:
    url = f"postgresql://app:{ENCODED}@127.0.0.1:1/shop"
    shop.write_app(f"url = '{url}'\nraise RuntimeError('cannot use {url}')\n")
    result = shop.cli("run", environment={"HOLDFAST_DEBUG": debug})
    assert result.returncode == 2
    assert "RuntimeError: cannot use postgresql://app:***@127.0.0.1:1/shop" in result.stderr
    assert_no_fragment(result.stdout + result.stderr)


def test_missing_driver(shop: Shop) -> None:
    result = shop.cli("run", environment={"HOLDFAST_URL": f"postgresql+psycopg2://app:{ENCODED}@127.0.0.1/shop"})
    assert_one_sentence(result, 2, "app:***@127.0.0.1/shop")
    assert_no_fragment(result.stdout + result.stderr)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at postgresql://app:secret@host:5432/db, port", "at postgresql://app:***@host:5432/db, port"),
        ("'mysql+pymysql://a:p@ss/w:rd@h/db'", "'mysql+pymysql://a:***@h/db'"),
        ("postgresql://app@host:5432/db", "postgresql://app@host:5432/db"),
        ("sqlite:////tmp/shop.db", "sqlite:////tmp/shop.db"),
        ("https://host:8080/path", "https://host:8080/path"),
    ],
)
def test_redacted(text: str, shown: str) -> None:
    assert redacted(text) == shown


def _record(event: str) -> logging.LogRecord:
    try:
        try:
            raise KeyError("postgresql://app:hunter2@host/db")
        except KeyError as cause:
            raise RuntimeError("wrapped") from cause
    except RuntimeError:
        record = logging.LogRecord("holdfast.trigger", logging.ERROR, "f", 1, "failed\nbadly", (), sys.exc_info())
    record.event = event
    return record


def test_log_shows_the_traceback_of_the_users_handler_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)
    formatter = OneLineFormatter("%(levelname)s %(message)s")
    assert formatter.format(_record("fetch_failed")) == "ERROR failed badly"
    of_handler = formatter.format(_record("handler_failed"))
    assert of_handler.startswith("ERROR failed badly\nTraceback")
    assert re.search(
        rf"\nKeyError at {re.escape(Path(__file__).name)}:\d+$", of_handler
    )  # what it says may be personal data
    assert "wrapped" not in of_handler


def test_log_shows_every_traceback_when_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    shown = OneLineFormatter("%(message)s").format(_record("fetch_failed"))
    assert "RuntimeError at" in shown
    assert "hunter2" not in shown
