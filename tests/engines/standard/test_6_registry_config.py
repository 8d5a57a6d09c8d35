"""Section 6, the registry's configuration of the tables (``engineTablesConfig``)."""

from __future__ import annotations

import uuid

import pytest
from azure.data.tables import TableServiceClient

from holdfast.core.errors import ConfigurationError
from holdfast.engines.registry import EngineTablesConfig
from holdfast.records.dead_letters import LetterStatus
from tests.components.azurite import ACCOUNT
from tests.engines.places import Bench, Place
from tests.engines.tables import Tables, add_entry
from tests.records.samples import days_ago, letter

AZURE = [pytest.param("azure", marks=pytest.mark.component("azurite"))]


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_6_the_tables_have_the_names_that_the_registry_gives(bench: Bench) -> None:
    bench.fails = lambda context: True
    bench.send()
    bench.to_the_end()
    with TableServiceClient.from_connection_string(str(bench.place.connection_string)) as service:
        names = (bench.tables.tables.dlq_table_name, bench.tables.tables.history_table_name)
        assert [len([*service.get_table_client(name).list_entities()]) for name in names] == [1, 2]


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_6_another_account_than_the_registrys_is_refused(place: Place) -> None:
    suffix = uuid.uuid4().hex
    config = EngineTablesConfig(
        storage_account_name="elsewhere", dlq_table_name=f"dlq{suffix}", history_table_name=f"history{suffix}"
    )
    place.application().registry.init(config)
    with pytest.raises(ConfigurationError, match=f"'elsewhere', and this connection is to '{ACCOUNT}'"):
        place.application().migrate()


def test_6_retention_days_come_from_the_registry(bench: Bench) -> None:
    registry = bench.hf.registry
    view = registry.acquire("setup", duration_seconds=50)
    tables = view.tables
    registry.configure_tables(
        "setup",
        EngineTablesConfig(
            dlq_table_name=tables.tables.dlq_table_name,
            history_table_name=tables.tables.history_table_name,
            retention_days=30,
        ),
    )
    registry.release("setup")
    hf = bench.process()
    add_entry(Tables(hf.dead_letters, hf.history), correlation_id="old", created_at=days_ago(31))
    failed = {"last_failure_at": days_ago(31), "first_failure_at": days_ago(31)}
    settled = {"status": LetterStatus.EXPIRED, "resolved_at": days_ago(31), "resolved_by": "eve"}
    assert hf.dead_letters.add(letter(**failed, **settled))
    pruned = hf.prune()
    assert (pruned.history, pruned.dead_letters) == (1, 1)


def test_6_an_application_without_a_registry_has_the_standards_values() -> None:
    config = EngineTablesConfig()
    assert (config.tables.dlq_table_name, config.tables.history_table_name) == ("engineDlq", "engineHistory")
    assert config.retention_days == 90
