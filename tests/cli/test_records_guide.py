"""docs/records.md: every command in it is one, and the columns it names are those of the tables."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from holdfast.records.schema import dead_letters_table, history_table
from tests.cli.desk import Desk

GUIDE = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
COMMANDS = [line.partition("  #")[0] for line in GUIDE.splitlines() if line.startswith("holdfast ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_is_understood(bare_desk: Desk, command: str) -> None:
    bare_desk.hf.migrate()
    answer = bare_desk(*shlex.split(command)[1:], "--json")
    assert "--help" not in answer.err  # which every complaint about usage names
    assert "Unexpected" not in answer.err


def test_the_guide_has_commands() -> None:
    assert len(COMMANDS) > 10


@pytest.mark.parametrize("table", [history_table, dead_letters_table], ids=lambda table: table.name)
def test_the_guide_names_every_column(table: object) -> None:
    title = "## History" if table is history_table else "## Dead letters"
    section = GUIDE.partition(f"{title}\n")[2].partition("\n## ")[0]
    told = {name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    columns = history_table.columns if table is history_table else dead_letters_table.columns
    assert told == {column.name for column in columns}
