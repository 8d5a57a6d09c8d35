"""One queue per database: every test that takes `queue` runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jobs.queues import Queue, open_queue

DATABASES = ("postgres_url", "sqlite_url", "mariadb_url")


@pytest.fixture(params=DATABASES)
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    with open_queue(request.getfixturevalue(request.param)) as opened:
        yield opened
