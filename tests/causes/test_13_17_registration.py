"""A processor whose registration is gone, as after a restore, says so as an error, with the next step."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.components.prepared import mariadb_url as mariadb_url
from tests.components.prepared import postgres_url as postgres_url
from tests.components.prepared import sqlite_url as sqlite_url
from tests.components.processes import wait_until
from tests.outbox.shops import Shop
from tests.runtime.workloads import running


@pytest.fixture(params=["sqlite_url", "postgres_url", "mariadb_url"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    opened = Shop(request.getfixturevalue(request.param))
    yield opened
    opened.provider.dispose_all()


def test_13_17_a_processor_whose_registration_was_rolled_back_says_so_as_an_error(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    shop.app.processor("totals", poll_seconds=0.01)(lambda messages: seen.append(len(messages)))
    shop.append(1)
    with running(shop.app):
        wait_until(lambda: seen, "the first message")
        shop.execute("DELETE FROM holdfast_processor_checkpoints")
        shop.append(2)
        wait_until(lambda: "is not registered any more" in caplog.text, "the processor to tell")
    told = [record for record in caplog.records if "is not registered any more" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.ERROR]
    assert "Restart the worker to register it; it then starts from beginning." in told[0].getMessage()
    assert "took over" not in caplog.text
    assert seen == [1]
    with running(shop.app):
        wait_until(lambda: sum(seen) == 3, "the restarted worker to deliver from the beginning")
