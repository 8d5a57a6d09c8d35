"""The HTTP API over the application of a bench, for the sections about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.api.clients import Office
from tests.engines.places import Bench


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """An event loop on a thread, which requests run on."""
    with start_blocking_portal() as opened:
        yield opened


@pytest.fixture
def office(bench: Bench, portal: BlockingPortal) -> Office:
    return Office(bench.hf, portal)
