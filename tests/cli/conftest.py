"""The shop that the tests of the command line run in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import EngineProvider
from tests.cli.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    provider = EngineProvider()
    yield Shop(tmp_path, provider)
    provider.dispose_all()
