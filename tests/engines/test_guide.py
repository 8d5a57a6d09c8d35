"""docs/engines.md and examples/engines: their code runs and does what it says."""

from __future__ import annotations

import importlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.engines.messages import Defaults, parse
from holdfast.records.dead_letters import LetterStatus
from holdfast.records.history import HistoryStatus
from tests.components.processes import REPOSITORY, wait_until

GUIDE = REPOSITORY / "docs" / "engines.md"
TEXT = GUIDE.read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The application that the guide's code is, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks("python"):
        exec(compile(block, str(GUIDE), "exec", dont_inherit=True), names)
    yield names
    names["hf"]._provider.dispose_all()


def run_until(hf: Holdfast, condition: Any, what: str) -> None:
    worker = threading.Thread(target=lambda: hf.run(handle_signals=False), daemon=True)
    worker.start()
    try:
        wait_until(condition, what)
    finally:
        hf.stop()
        worker.join(30)
    assert not worker.is_alive()


def state_of(hf: Holdfast, instance: str) -> dict[str, Any]:
    view = hf.registry.instance(instance).read()
    assert view is not None
    return dict(view.state)


def has_ended(hf: Holdfast) -> bool:
    return bool(hf.dead_letters.page().items) and hf.history.succeeded("hmac", "rotate", "c-1") is not None


def test_the_code_of_the_guide_does_what_it_says(capsys: pytest.CaptureFixture[str], guide: dict[str, Any]) -> None:
    hf: Holdfast = guide["hf"]
    assert capsys.readouterr().out.strip() == guide["sent"].message_id
    run_until(hf, lambda: len(hf.history.page().items) == 2, "both rotations in the history")
    assert {tenant: state_of(hf, tenant) for tenant in ("tenant-1", "tenant-2")} == {
        "tenant-1": {"key": "k-2"},
        "tenant-2": {"key": "k-3"},
    }
    [done] = hf.history.of_correlation("hmac", "tenant-1-rotation-7")
    assert (done.status, json.loads(done.output or "")) == (HistoryStatus.SUCCEEDED, {"rotated": "tenant-1"})


def test_the_message_of_the_guide_is_one() -> None:
    message = parse(blocks("json")[0], Defaults("m", "other", "other"))
    assert (message.engine, message.operation, message.payload) == ("hmac", "rotate", {"key": "k-2"})


def test_the_host_file_of_the_guide_gives_up_later_than_an_engine_does() -> None:
    queues = json.loads(blocks("json")[1])["extensions"]["queues"]
    assert queues["maxDequeueCount"] > 5


def test_the_example_rotates_and_buries_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples" / "engines"))
    monkeypatch.delitem(sys.modules, "app", raising=False)
    app = importlib.import_module("app")

    hf: Holdfast = app.hf
    try:
        hf.migrate()
        app.rotate.send({}, instance_id="tenant-1", correlation_id="c-1")
        hf.engines.send("hmac", {"fail": True}, instance_id="tenant-2", operation="rotate")
        run_until(
            hf, lambda: hf.dead_letters.page().items and hf.history.succeeded("hmac", "rotate", "c-1"), "both ends"
        )
        [letter] = hf.dead_letters.page().items
        assert (letter.status, letter.error_message) == (
            LetterStatus.PENDING,
            "RuntimeError: the key vault did not answer",
        )
        assert state_of(hf, "tenant-1")["rotatedBy"] == "c-1"
        assert "rotatedBy" not in state_of(hf, "tenant-2")
    finally:
        hf._provider.dispose_all()
        monkeypatch.delitem(sys.modules, "app", raising=False)
