"""docs/durable-operations.md: its code runs and does what it says."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast.durable
from tests.components.ports import free_port
from tests.components.processes import REPOSITORY, wait_until

GUIDE = REPOSITORY / "docs" / "durable-operations.md"
TEXT = GUIDE.read_text()


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the guide's code makes, with a port of its own for the hub."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    port = str(free_port())
    for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE):
        exec(compile(block.replace("4001", port), str(GUIDE), "exec", dont_inherit=True), names)
    yield names
    names["tasks"].close()
    names["hub"].stop()
    names["hf"]._provider.dispose_all()


def test_the_code_of_the_guide_does_what_it_says(guide: dict[str, Any]) -> None:
    hf = guide["hf"]
    guide["renew"].send({"hosts": ["b.invalid"]}, correlation_id="c-2")
    worker = threading.Thread(target=lambda: hf.run(handle_signals=False), daemon=True)
    worker.start()
    try:
        wait_until(lambda: len(hf.history.page().items) == 2, "both ends in the history")
    finally:
        hf.stop()
        worker.join(30)
    assert not worker.is_alive()
    outputs = {entry.correlation_id: json.loads(entry.output) for entry in hf.history.page().items}
    assert outputs["c-1"] == {"installed": ["a.example", "b.example"]}
    assert "b.invalid does not exist" in outputs["c-2"]["error"]


def test_names_and_links_of_the_guide_exist() -> None:
    for name in holdfast.durable.__all__:
        assert getattr(holdfast.durable, name)
    for name in ("DurableFunctions", "functions_orchestrator", "functions_activity", "FunctionsOperation", "when_any"):
        assert name in TEXT
        assert name in holdfast.durable.__all__
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", TEXT):
        assert (GUIDE.parent / target).resolve().exists(), target


def test_the_lines_about_functions_are_those_of_the_example() -> None:
    example = (REPOSITORY / "examples" / "functions-engines" / "function_app.py").read_text()
    for line in (
        "durable = DurableFunctions()",
        "    with durable.invocation(client):",
        '        await hf.engines.handle_async("tls", msg)',
        "durable.register(app)",
    ):
        assert line in TEXT
        assert line in example
