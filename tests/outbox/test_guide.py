"""docs/outbox.md: its code runs, its commands are understood, and its tables and settings are those of the code."""

from __future__ import annotations

import inspect
import re
import shlex
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.cli.main import run_command
from holdfast.outbox.processors import Processors
from holdfast.outbox.schema import metadata
from holdfast.records.failure_text import words_of
from tests.components.processes import REPOSITORY
from tests.outbox.shops import Shop

GUIDE = REPOSITORY / "docs" / "outbox.md"
TEXT = GUIDE.read_text()
COMMANDS = [line.partition("  #")[0] for line in TEXT.splitlines() if line.startswith("holdfast ")]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def is_for_postgresql(block: str) -> bool:
    return "psycopg.connect" in block


class Guide:
    """The application that the guide's code is, on SQLite, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.database = directory / "shop.db"
        self.names: dict[str, Any] = {"__name__": "guide"}

    @property
    def hf(self) -> Holdfast:
        found: Holdfast = self.names["hf"]
        return found

    def run_code(self) -> None:
        """Run every block in order, as if it were one module; the tables are there after the first."""
        first, *others = [block for block in blocks("python") if not is_for_postgresql(block)]
        self.run_block(first)
        self.hf.migrate()
        [tables] = blocks("sql")
        with closing(sqlite3.connect(self.database)) as connection:
            connection.executescript(tables)
        for block in others:
            self.run_block(block)

    def run_block(self, block: str) -> None:
        exec(compile(block, str(GUIDE), "exec", dont_inherit=True), self.names)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guide]:
    monkeypatch.chdir(tmp_path)
    made = Guide(tmp_path)
    made.run_code()
    yield made
    made.hf._provider.dispose_all()


def test_the_code_of_the_guide_does_what_it_says(guide: Guide, capsys: pytest.CaptureFixture[str]) -> None:
    assert guide.names["appended"].is_new
    assert guide.names["delivered"] == 6
    totals = [("book", 12), ("lamp", 30), ("pen", 8)]
    assert guide.rows("SELECT * FROM totals ORDER BY item") == totals
    processors = guide.hf.processors
    processors.run_until_caught_up("totals", version=2)
    assert guide.rows("SELECT item, amount FROM totals_2 ORDER BY item") == totals
    assert guide.rows("SELECT sum(orders) FROM totals_2") == [(6,)]
    processors.run_until_caught_up("paid")
    assert guide.rows("SELECT * FROM paid") == [(7,)]
    processors.run_until_caught_up("audit")
    processors.when_caught_up("audit")
    processors.run_until_caught_up("mail")
    assert "with the key order-7-paid" in capsys.readouterr().out


def test_only_the_message_that_fails_alone_is_a_dead_letter(guide: Guide) -> None:
    guide.hf.processors.run_until_caught_up("receipts")
    rows = guide.rows("SELECT engine, item_id, dequeue_count, error_message FROM holdfast_dead_letters")
    assert [(*row[:3], words_of(row[3])) for row in rows] == [
        ("processor:receipts", "order-7-paid", 2, "ValueError: no such order")
    ]


def test_a_version_of_the_guide_is_promoted(guide: Guide) -> None:
    guide.hf.processors.run_until_caught_up("totals", version=2)
    assert guide.hf.processors.operator.promote("totals", actor="anne") == 2


@pytest.mark.component("postgres18")
def test_the_code_for_postgresql_appends(postgres_shop: Shop) -> None:
    [block] = filter(is_for_postgresql, blocks("python"))
    url = postgres_shop.url.replace("+psycopg", "")
    code = block.replace("postgresql://…", url)
    exec(compile(code, str(GUIDE), "exec", dont_inherit=True), {"hf": postgres_shop.app})
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT message_type FROM holdfast_outbox").fetchall() == [("OrderPlaced",)]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_is_understood(
    guide: Guide, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("guide_application")
    module.__dict__["hf"] = guide.hf
    monkeypatch.setitem(sys.modules, "guide_application", module)
    monkeypatch.setenv("HOLDFAST_APP", "guide_application:hf")
    run_command(shlex.split(command)[1:])
    told = capsys.readouterr().err
    assert "--help" not in told  # which every complaint about usage names
    assert "Unexpected" not in told


def test_the_guide_has_commands() -> None:
    assert len(COMMANDS) > 10


def test_the_guide_names_every_setting_with_its_default() -> None:
    told = {name: shown.strip('`"') for name, shown in re.findall(r"^\| `(\w+)` \| (.*?) \|", TEXT, re.MULTILINE)}
    parameters = inspect.signature(Processors.processor).parameters.values()
    defaults = {item.name: item.default for item in parameters if item.kind is item.KEYWORD_ONLY}
    assert set(told) >= set(defaults)
    plain = {name: f"{value:g}" if type(value) is float else str(value) for name, value in defaults.items() if value}
    assert {name: told[name] for name in plain} == plain


def test_the_guide_names_every_table() -> None:
    section = TEXT.partition("## The tables\n")[2]
    told = set(re.findall(r"^\| `(holdfast_\w+)` \|", section, re.MULTILINE))
    statements = (REPOSITORY / "src" / "holdfast" / "outbox" / "sql").rglob("schema.sql")
    made = {name for file in statements for name in re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", file.read_text())}
    assert told == made | set(metadata.tables)


def test_links_lead_somewhere() -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", TEXT):
        found = (GUIDE.parent / target).resolve() if target else GUIDE
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]
