"""What has succeeded for a correlation id is done for that id alone: one that looks like it is another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import EngineProvider, Holdfast
from holdfast.records.history import HistoryStatus, NewEntry
from holdfast.records.tables import SqlHistoryTable, SqlLetterTable
from tests.components.processes import wait_until
from tests.engines.test_on_the_jobs_worker import running, waiting
from tests.records.samples import add_letter

DATABASES = [
    pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
    pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
    "sqlite_url",
]
ALIKE = ["order-7", "order-7 ", "Order-7", "órder-7", "o\u0301rder-7", "order-7\t"]


@pytest.fixture(params=DATABASES)
def hf(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    made = Holdfast(request.getfixturevalue(request.param), engine_provider=EngineProvider())
    yield made
    made._provider.dispose_all()


def test_14_1_messages_with_ids_that_look_alike_are_all_executed(hf: Holdfast) -> None:
    executed: list[str] = []

    @hf.engine("hmac")
    def rotate(context: Any, message: Any) -> None:
        executed.append(context.correlation_id)

    with running(hf):
        for name in ALIKE:  # the ids of the messages alone would keep them apart, or not
            rotate.send({}, message_id=name, correlation_id=name)
        wait_until(lambda: waiting(hf) == 0, "every message to end", 60)
        for name in ALIKE:
            rotate.send({}, message_id=f"again {name}", correlation_id=name)
        wait_until(lambda: waiting(hf) == 0, "the repetitions to end", 60)
    assert sorted(executed) == sorted(ALIKE)


def test_14_1_successes_and_letters_are_found_by_exactly_their_ids(hf: Holdfast) -> None:
    hf.migrate()
    history, letters = SqlHistoryTable(hf.database), SqlLetterTable(hf.database)
    for name in ALIKE:
        assert history.succeeded("hmac", "rotate", name) is None
        entry = history.add(
            NewEntry("hmac", "rotate", HistoryStatus.SUCCEEDED, 1, name, instance_id=name, item_id=name)
        )
        assert history.succeeded("hmac", "rotate", name) == entry
        assert history.of_correlation("hmac", name) == [entry]
        letter = add_letter(hf.database, item=name, correlation_id=name)
        assert letters.get("hmac", letter.row_key) == letter
    assert len(letters.page().items) == len(ALIKE)
