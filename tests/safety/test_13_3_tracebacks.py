"""Issue 13, line 3: every workload keeps the traceback of each failure, for the role `payload`."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from typing import NoReturn

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from holdfast import EngineProvider
from holdfast.core.redaction import without_secrets
from holdfast.database.error_text import bounded_traceback
from holdfast.records.failure_text import failure_parts, failure_text
from holdfast.records.history import HistoryFilter, HistoryStatus
from tests.api.clients import Office
from tests.cli.desk import Desk
from tests.conftest import UNDERLINING
from tests.runtime.workloads import WORKLOADS
from tests.safety.canaries import SECRETS


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def handle_badly(item: str, context: object) -> None:
    raise LookupError("no carrier")


@pytest.mark.parametrize("kind", WORKLOADS)
def test_13_3_every_workload_keeps_the_traceback_of_a_failure(
    url: str,
    kind: str,
    portal: BlockingPortal,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    provider = EngineProvider()
    workload = WORKLOADS[kind](url, provider)
    hf = workload.app()
    hf.migrate()
    workload.add(["item"])
    workload.run(["item"], handle_badly)
    failed = hf.history.page(HistoryFilter(status=HistoryStatus.FAILED)).items
    assert {entry.error for entry in failed} == {"LookupError: no carrier"}
    assert all("in handle_badly" in (entry.traceback or "") for entry in failed)
    letters = hf.dead_letters.page().items
    assert all("in handle_badly" in (letter.traceback or "") for letter in letters)
    assert bool(letters) == (kind in ("job", "engine"))
    assert hf.history.page(HistoryFilter(error="NO carrier")).items == failed
    assert hf.history.page(HistoryFilter(error="in handle_badly")).items == []

    office = Office(hf, portal)
    paths = [f"/api/history/{failed[0].engine}/{failed[0].row_key}"]
    paths += [f"/api/dlq/{letter.engine}/{letter.row_key}" for letter in letters]
    for path in paths:
        assert "in handle_badly" in office.auditor.get(path).data["traceback"]
        assert "traceback" not in office.reader.get(path).data
        assert "handle_badly" not in str(office.reader.get(path).body)

    desk = Desk(url, provider, monkeypatch, capsys)
    shown = desk("history", "show", failed[0].engine, failed[0].row_key, "--json").json
    assert (shown["error"], "in handle_badly" in shown["traceback"]) == ("LookupError: no carrier", True)
    assert all("traceback" not in item for item in desk("history", "list", "--json").items)
    provider.dispose_all()


@pytest.mark.parametrize("form", SECRETS)
def test_13_3_words_and_traceback_come_apart_whatever_the_words_are(form: str) -> None:
    words = form.format("abcdefghijk1abcdefghijkl")
    stored = without_secrets(failure_text(words, "Traceback\n"))
    assert failure_parts(stored) == (without_secrets(words), "Traceback\n")


def test_13_3_a_failure_fits_where_it_is_kept() -> None:
    assert len(failure_text("x" * 50_000, "y" * 8_001)) <= 20_000


def test_13_3_tracebacks_of_many_threads_do_not_break_each_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Python underlines what failed with a parser that must not be used by two threads at a time before 3.13."""

    def busy(*_segment: str) -> NoReturn:
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr(traceback, UNDERLINING, busy, raising=False)
    nothing: dict[str, int] = {}
    try:
        try:
            nothing["key"] + 1
        except KeyError as error:
            raise ExceptionGroup("two", [ValueError("no carrier"), error]) from error
    except ExceptionGroup as error:
        kept = bounded_traceback(error)
        logging.getLogger("holdfast.jobs").error("It failed", exc_info=error)
    for shown in (kept, caplog.text):
        assert 'nothing["key"] + 1' in shown
        assert "^" not in shown
