"""One queue per database: every test that takes `queue` runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.components.prepared import mariadb_url as mariadb_url
from tests.components.prepared import postgres_url as postgres_url
from tests.components.prepared import sqlite_url as sqlite_url
from tests.jobs.queues import Queue, open_queue

DATABASES = ("postgres_url", "sqlite_url", "mariadb_url")


@pytest.fixture(params=DATABASES)
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    with open_queue(request.getfixturevalue(request.param)) as opened:
        yield opened
