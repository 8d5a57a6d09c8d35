"""The walks of docs/architecture.md lead through functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "holdfast"
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text()
FILES = sorted(set(re.findall(r"`([a-z_/]+(?:\.py|/))`", PAGE.split("## Five walks")[1])))
NAMES = sorted(set(re.findall(r"`([a-z_/]+\.py)` `([A-Za-z_.]+)`(?: or `([A-Za-z_.]+)`)?", PAGE)))


def _defined(file: str) -> set[str]:
    names: set[str] = set()
    for node in ast.parse((SOURCE / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


@pytest.mark.parametrize("file", FILES)
def test_every_file_of_a_walk_is_there(file: str) -> None:
    assert (SOURCE / file).exists()


@pytest.mark.parametrize(("file", "name", "other"), NAMES, ids=str)
def test_every_function_of_a_walk_is_there(file: str, name: str, other: str) -> None:
    assert {name, other} - {""} <= _defined(file)


def test_the_walks_are_not_empty() -> None:
    assert len(NAMES) > 35


@pytest.mark.parametrize("package", sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()))
def test_every_package_has_its_place(package: str) -> None:
    former = {"state"}
    contributing = (REPOSITORY / "CONTRIBUTING.md").read_text()
    assert package in former or (re.search(rf"\b{package}\b", PAGE) and f"`src/holdfast/{package}`" in contributing)
