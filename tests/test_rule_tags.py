"""A rule's tag stands in the docs, in the code that keeps it and in a test that shows it: the three sets are equal."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = (
    "CHECKPOINT|CLAIM|ENGINE|FENCE|HORIZON|KEYSET|LEASE|LIMIT|ONCE|OUTBOX|PERIODIC|REAP|REGISTRY|RETRY|STOP|"
    "SUSPECT|TRANSACTION"
)
TAG = re.compile(rf"\[((?:{KINDS})-[A-Z0-9-]+)\]")


def tags_in(folder: str, pattern: str) -> set[str]:
    return {tag for file in (ROOT / folder).rglob(pattern) for tag in TAG.findall(file.read_text(encoding="utf-8"))}


def test_docs_code_and_tests_name_the_same_rules() -> None:
    documented = tags_in("docs", "guarantees.md")
    assert documented, "no rules are documented"
    assert tags_in("src", "*.py") | tags_in("src", "*.sql") == documented
    assert tags_in("tests", "*.py") == documented
