"""docs/registry.md: its code runs and does what it says, its commands are understood, its document fits the schema."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.cli.main import run_command
from holdfast.engines.registry_shape import json_schema, parse
from tests.components.processes import REPOSITORY

GUIDE = REPOSITORY / "docs" / "registry.md"
TEXT = GUIDE.read_text()
COMMANDS = [line.partition("  #")[0] for line in TEXT.splitlines() if line.startswith("holdfast ")]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdfast]:
    """The application that the guide's code is, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks("python"):
        exec(compile(block, str(GUIDE), "exec", dont_inherit=True), names)
    hf: Holdfast = names["hf"]
    yield hf
    hf._provider.dispose_all()


def test_the_code_of_the_guide_does_what_it_says(capsys: pytest.CaptureFixture[str], guide: Holdfast) -> None:
    [refusal, state] = capsys.readouterr().out.splitlines()
    assert refusal.startswith("The registry is locked by 'job-7' until 20")
    assert state == "{'components': {'api': '1.2'}}"
    view = guide.registry.read()
    assert view is not None
    assert view.state == {"components": {"api": "1.2"}, "region": "west"}
    assert view.tables.retention_days == 30
    assert not view.is_locked


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_is_understood(
    guide: Holdfast, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("guide_application")
    module.__dict__["hf"] = guide
    monkeypatch.setitem(sys.modules, "guide_application", module)
    monkeypatch.setenv("HOLDFAST_APP", "guide_application:hf")
    run_command(shlex.split(command)[1:])
    told = capsys.readouterr().err
    assert "--help" not in told  # which every complaint about usage names
    assert "Unexpected" not in told


def test_the_guide_has_commands() -> None:
    assert {shlex.split(command)[2] for command in COMMANDS} == {"init", "show", "lock", "unlock"}


def test_the_document_of_the_guide_is_one() -> None:
    [shown] = blocks("json")
    document = parse(shown.encode(), "guide")
    schema = json_schema()["properties"]
    assert set(schema) == set(document) - {"components"}
    assert set(schema["instanceLock"]["properties"]) == set(document["instanceLock"])
    assert json.loads(shown) == document


def test_the_rules_of_the_guide_are_those_of_the_code() -> None:
    code = (REPOSITORY / "src" / "holdfast" / "engines" / "registry_document.py").read_text()
    assert set(re.findall(r"\[REGISTRY-\d\]", TEXT)) == set(re.findall(r"\[REGISTRY-\d\]", code))
