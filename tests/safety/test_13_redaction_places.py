"""Issue 13, line 13: what handlers raise, in every place where somebody could see it.

Secrets are nowhere, and personal data is only where the role `payload` is needed, or the database itself.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal
from azure.data.tables import TableServiceClient
from hypothesis import Phase, given, settings

from holdfast import EngineProvider, Holdfast
from holdfast.engines.azure import AzureStorage
from holdfast.engines.registry import EngineTablesConfig
from holdfast.records.failure_text import words_of
from tests.api.clients import Office
from tests.cli.desk import Desk
from tests.components.azurite import AzuriteServer
from tests.runtime.account import Settled
from tests.runtime.workloads import WORKLOADS, Engines, Handle, Processors, Queued, Triggers, Workload
from tests.safety.told import (
    Canaries,
    Counted,
    RaisedError,
    Told,
    logged,
    names,
    secrets,
    telling,
    told_by_api,
    told_by_cells,
    told_by_commands,
)

RAISED_HERE = re.compile(rf"RaisedError at {re.escape(Path(__file__).name)}:\d")
NEWEST = 12  # as many records are looked at one by one
EXAMPLES = {"sqlite": 10, "postgres": 3, "mariadb": 3, "azure": 3}


class AzureEngines(Engines):
    """Engines whose queue and records are in a storage account."""

    def __init__(self, url: str, provider: EngineProvider, connection_string: str) -> None:
        super().__init__(url, provider)
        suffix = uuid.uuid4().hex
        self.tables = EngineTablesConfig(
            dlq_table_name=f"engineDlq{suffix}", history_table_name=f"engineHistory{suffix}"
        )
        self._connection_string = connection_string
        account = AzureStorage.from_connection_string(connection_string)
        self.app_options = {"app_name": f"shop-{suffix[:8]}", "engine_queues": account, "engine_tables": account}
        app = self.app()
        app.migrate()
        app.registry.init(self.tables)
        self.declared(lambda item, context: None).migrate()  # makes the tables that it names, and the queue

    def settled(self) -> dict[str, Settled]:
        app = self.declared(lambda item, context: None)
        letters = app.dead_letters.page().items
        return {each.correlation_id: Settled(False, True, words_of(each.error_message)) for each in letters}

    def told_by_tables(self) -> Told:
        """Return what is in the account's tables, by column."""
        names = {"letters": self.tables.dlq_table_name, "history": self.tables.history_table_name}
        found: Told = {}
        with TableServiceClient.from_connection_string(self._connection_string) as service:
            for place, name in names.items():
                for entity in service.get_table_client(name).list_entities():
                    for column, value in entity.items():
                        found.setdefault(f"cell {place}.{column}", []).append(str(value))
        return found


class Scene:
    """One workload on one database, whose handlers raise canaries, and everything that is then told."""

    def __init__(self, workload: Workload, desk: Desk, portal: BlockingPortal) -> None:
        self.workload, self._desk = workload, desk
        self._metrics = Counted()
        self._count, self._item = 0, ""
        workload.app_options["metrics"] = self._metrics
        self.hf = workload.app()
        self.hf.migrate()
        if self.hf.registry.read() is None:
            self.hf.registry.init()
        self._office = Office(self.hf, portal)

    def raising(self, canaries: Canaries) -> Told:
        """Return what is told at once of one more item, whose handler raises the canaries, by place."""
        self._count += 1
        self._item = f"item{self._count}"

        with logged() as log:
            self.workload.add([self._item])
            self.workload.run([self._item], raises(canaries))
        cells = told_by_cells(self.hf.database)
        return {"log": log.getvalue().splitlines(), "metrics": self._metrics.told, **cells}

    def told_later(self) -> Told:
        """Return what is told by records elsewhere, answers and commands."""
        declared = declared_with(self.workload, self._item, raises(Canaries("", "")))
        return {
            **(self.workload.told_by_tables() if isinstance(self.workload, AzureEngines) else {}),
            **told_by_api(self._office, NEWEST),
            **told_by_commands(self._desk, declared, NEWEST),
        }


def raises(canaries: Canaries) -> Handle:
    def handle(item: str, context: object) -> None:
        raise RaisedError(telling(canaries.secret, canaries.name))

    return handle


def declared_with(workload: Workload, item: str, handle: Handle) -> Holdfast:
    """Return the application as its commands have it."""
    if isinstance(workload, (Triggers, Processors)):
        return workload.declared(item, handle)
    assert isinstance(workload, Queued)
    return workload.declared(handle)


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def database(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(request: pytest.FixtureRequest, database: str) -> str:
    found: str = request.getfixturevalue(f"{database}_url")
    return found


@pytest.mark.parametrize("kind", WORKLOADS)
def test_13_13_secrets_are_nowhere_and_personal_data_only_for_payload(
    database: str, url: str, kind: str, provider: EngineProvider, desk: Desk, portal: BlockingPortal
) -> None:
    scene = Scene(WORKLOADS[kind](url, provider), desk, portal)

    check(scene, EXAMPLES[database])


@pytest.mark.component("azurite")
def test_13_13_the_same_of_engine_records_in_azure_tables(
    azurite: AzuriteServer, sqlite_url: str, provider: EngineProvider, desk: Desk, portal: BlockingPortal
) -> None:
    workload = AzureEngines(sqlite_url, provider, azurite.connection_string)
    check(Scene(workload, desk, portal), EXAMPLES["azure"])


def check(scene: Scene, examples: int) -> None:
    """Compare what is told of a number of items with what may be told."""
    raised: list[Canaries] = []

    @settings(max_examples=examples, deadline=None, derandomize=True, phases=[Phase.generate])
    @given(secret=secrets, name=names)
    def each(secret: str, name: str) -> None:
        raised.append(Canaries(secret, name))
        told = scene.raising(raised[-1])
        failed = [line for line in told["log"] if re.match("(?:WARNING|ERROR) .*RaisedError", line)]
        assert failed
        assert [line for line in failed if not RAISED_HERE.search(line)] == []
        assert raised[-1].leaks(told) == set()

    each()
    told = scene.told_later()
    assert {place for canaries in raised for place in canaries.leaks(told)} == set()
    for place in ("payload: /api/history/one", "holdfast history show"):
        assert any(canaries.name in str(told[place]) for canaries in raised), "who may see payloads sees it"


RECORDS = {
    "cell holdfast_history.error",
    "read: /api/history/one",
    "payload: /api/history/one",
    "holdfast history list",
    "holdfast history show",
}
LETTERS = {
    "cell holdfast_dead_letters.error_message",
    "read: /api/dlq",
    "read: /api/dlq/one",
    "payload: /api/dlq",
    "payload: /api/dlq/one",
    "holdfast dlq list",
    "holdfast dlq show",
}
WITHOUT_REDACTION = {
    "trigger": {"log", *RECORDS, "cell holdfast_state.content", "holdfast trigger list", "holdfast trigger show"},
    "job": {"log", *RECORDS, *LETTERS, "cell holdfast_jobs.last_error", "holdfast jobs list", "holdfast jobs show"},
    "processor": {"log", *RECORDS, "cell holdfast_processor_checkpoints.reason", "holdfast processor list"},
    "engine": {"log", *RECORDS, *LETTERS},
}


@pytest.mark.usefixtures("nothing_hidden")
@pytest.mark.parametrize("kind", WORKLOADS)
def test_13_13_planted_without_redaction_canaries_are_found_in_every_place(
    sqlite_url: str, kind: str, provider: EngineProvider, desk: Desk, portal: BlockingPortal
) -> None:
    canaries = Canaries("hunter2hunter2hunter2222", "Anneliese")
    scene = Scene(WORKLOADS[kind](sqlite_url, provider), desk, portal)
    assert canaries.leaks({**scene.raising(canaries), **scene.told_later()}) == WITHOUT_REDACTION[kind]
