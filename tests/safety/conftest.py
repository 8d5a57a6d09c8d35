"""What the tests of what is told need: a loop for the API, and the commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from holdfast import EngineProvider
from holdfast.core.redaction import use_redaction
from tests.cli.desk import Desk


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as opened:
        yield opened


@pytest.fixture
def provider() -> Iterator[EngineProvider]:
    made = EngineProvider()
    yield made
    made.dispose_all()


@pytest.fixture
def desk(
    sqlite_url: str, provider: EngineProvider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Desk:
    """The commands, on whatever application a test hands them."""
    return Desk(sqlite_url, provider, monkeypatch, capsys)


class Nothing:
    """A policy that hides nothing."""

    def without_secrets(self, text: str) -> str:
        return text

    without_personal_data = without_secrets


@pytest.fixture
def nothing_hidden() -> Iterator[None]:
    before = use_redaction(Nothing())
    yield
    use_redaction(before)
