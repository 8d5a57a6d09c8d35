"""Names of tables that change in the registry are followed by everything that runs; what cannot be had is refused."""

from __future__ import annotations

import uuid

import pytest

from holdfast.core.errors import ConfigurationError
from holdfast.engines.registry import EngineTablesConfig
from holdfast.engines.runner import Outcome
from tests.engines.places import ENGINE, Bench

IN_AZURE = pytest.mark.parametrize(
    "place", [pytest.param("azure", marks=pytest.mark.component("azurite"))], indirect=True
)


def rename(bench: Bench, **fields: str) -> None:
    with bench.hf.registry.locked("maintenance", duration_seconds=60) as held:
        held.configure_tables(EngineTablesConfig(**fields))  # type: ignore[arg-type]  # texts only


@IN_AZURE
def test_13_9_a_worker_that_runs_follows_changed_names(bench: Bench) -> None:
    driven, looking = bench.flow(), bench.process()
    bench.fails = lambda context: True
    bench.send("m-1", "c-1")
    assert driven.handle(bench.next(driven.queue)) is Outcome.RETRIED
    assert len(looking.history.of_correlation(ENGINE, "c-1")) == 1
    suffix = uuid.uuid4().hex
    rename(bench, dlq_table_name=f"dlq{suffix}", history_table_name=f"history{suffix}")
    bench.place.clock.advance(5)
    bench.process().migrate()
    bench.fails = lambda context: False
    assert driven.handle(bench.next(driven.queue)) is Outcome.SUCCEEDED
    for hf in (looking, bench.process()):
        [entry] = hf.history.of_correlation(ENGINE, "c-1")
        assert entry.error is None, "it was not written where the names no longer point to"


@IN_AZURE
def test_13_9_nothing_is_executed_while_the_named_tables_are_missing(bench: Bench) -> None:
    driven = bench.flow()
    bench.send()
    rename(bench, dlq_table_name=f"dlq{uuid.uuid4().hex}", history_table_name=f"history{uuid.uuid4().hex}")
    bench.place.clock.advance(5)
    with pytest.raises(ConfigurationError, match="history"):
        driven.handle(bench.next(driven.queue))
    assert bench.executions == []


@IN_AZURE
def test_13_9_another_account_is_refused_by_whoever_runs(bench: Bench) -> None:
    driven = bench.flow()
    bench.send()
    rename(bench, storage_account_name="elsewhere")
    bench.place.clock.advance(5)
    with pytest.raises(ConfigurationError, match="account 'elsewhere'"):
        driven.handle(bench.next(driven.queue))
    with pytest.raises(ConfigurationError, match="account 'elsewhere'"):
        _ = bench.process().dead_letters
    assert bench.executions == []


@pytest.mark.parametrize(
    "place",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.component("postgres18")),
        pytest.param("mariadb", marks=pytest.mark.component("mariadb")),
    ],
    indirect=True,
)
def test_13_9_names_that_tables_in_the_database_cannot_have_are_refused(bench: Bench) -> None:
    registry = bench.hf.registry
    for named in ({"dlq_table_name": "shopDlq"}, {"storage_account_name": "shopstorage"}):
        with pytest.raises(ConfigurationError, match="cannot name other tables: this application keeps them in its"):
            registry.init(EngineTablesConfig(**named))  # type: ignore[arg-type]  # texts only
        with pytest.raises(ConfigurationError, match="Nothing was written"):
            rename(bench, **named)
    registry.acquire("job-7")
    view = registry.change("job-7", {"region": "west"}, tables=EngineTablesConfig(retention_days=30))
    assert view.tables == EngineTablesConfig(retention_days=30)
