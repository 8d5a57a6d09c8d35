"""Row level security that hides rows from a trigger's role, or Holdfast's own from a worker, is told."""

from __future__ import annotations

import re

import pytest

from holdfast import Holdfast, SqlAlchemySource
from holdfast.cli.trigger import _source_fields
from holdfast.cli.trigger_views import described_source
from holdfast.core.errors import ConfigurationError
from holdfast.trigger.sources.outbox import OutboxSource
from holdfast.trigger.sources.outbox_columns import OutboxDefinition
from tests.causes.roles import TABLES, Role
from tests.clocks import SteppedClock

ON = "ALTER TABLE orders ENABLE ROW LEVEL SECURITY"
TENANT = "CREATE POLICY tenant ON orders USING (tenant = 1)"
RESTRICTIVE = "CREATE POLICY tenant ON orders AS RESTRICTIVE USING (tenant = 1)"
SOURCES = {
    "table": {"table": "orders"},
    "query": {"query": "SELECT * FROM orders"},
    "view": {"table": "orders_seen"},
}


@pytest.fixture
def reader(postgres_role: Role) -> Role:
    """A role that may read a table of two tenants' orders, of which it is to see those of the first."""
    postgres_role.do(
        "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant int NOT NULL)",
    )
    postgres_role.do("CREATE VIEW orders_seen WITH (security_invoker) AS SELECT * FROM orders")
    postgres_role.do("INSERT INTO orders (tenant) VALUES (1), (2)")
    postgres_role.do(TABLES)
    return postgres_role


def source(app: Holdfast, **settings: object) -> SqlAlchemySource:
    given = {"cursor_column": "id", "pk_columns": ["id"], "horizon": "none", **settings}
    return SqlAlchemySource(db_config=app._config, engine_provider=app._provider, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", SOURCES)
def test_13_17_row_security_that_hides_source_rows_is_told(
    reader: Role, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    for statement in (ON, TENANT):
        reader.do(statement)
    seen = source(reader.app, **SOURCES[kind])
    found = seen.capability()
    assert found.hidden is not None
    assert reader.name in found.hidden
    assert "those that it hides when they are passed are never delivered" in found.hidden
    assert f"ALTER ROLE {reader.name} BYPASSRLS;" in found.hidden
    assert found.covers.endswith("if row level security shows them")
    warned = [record.getMessage() for record in caplog.records if "may be missed" in record.getMessage()]
    assert warned == [f"Rows of '{seen.source_descriptor.name}' may be missed: {found.hidden}"]
    shown = dict(_source_fields(described_source(seen, None)))
    assert shown["hidden rows"] == found.hidden
    assert [record["tenant"] for record in seen.fetch(None, 10)] == [1]


def test_13_17_what_the_warning_says_shows_all_rows(reader: Role) -> None:
    for statement in (ON, TENANT):
        reader.do(statement)
    hidden = source(reader.app, table="orders").capability().hidden or ""
    reader.do(hidden.partition("run: ")[2].partition(";")[0])
    seen = source(reader.app, table="orders")
    assert seen.capability().hidden is None
    assert [record["tenant"] for record in seen.fetch(None, 10)] == [1, 2]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("mended", ["it is off", "the owner reads", "BYPASSRLS"])
def test_13_17_where_no_row_is_hidden_nothing_is_said(reader: Role, kind: str, mended: str) -> None:
    if mended != "it is off":
        reader.do(ON)
    if mended == "BYPASSRLS":
        reader.do("ALTER ROLE {role} BYPASSRLS")
    if mended == "the owner reads":
        reader.do("ALTER TABLE orders OWNER TO {role}")
    found = source(reader.app, **SOURCES[kind]).capability()
    assert found.hidden is None
    assert "row level security" not in found.covers


@pytest.mark.parametrize(
    ("policies", "is_hidden"),
    [
        (["CREATE POLICY all_rows ON orders FOR SELECT USING (true)"], False),
        (["CREATE POLICY writes ON orders FOR UPDATE USING (true)"], True),
        (["CREATE POLICY others ON orders TO pg_monitor USING (true)"], True),
        (
            ["CREATE POLICY all_rows ON orders USING (true)", RESTRICTIVE],
            True,
        ),
        (["ALTER TABLE orders OWNER TO {role}", "ALTER TABLE orders FORCE ROW LEVEL SECURITY"], True),
    ],
)
def test_13_17_policies_are_read_as_postgresql_applies_them(reader: Role, policies: list[str], is_hidden: bool) -> None:
    for statement in (ON, *policies):
        reader.do(statement)
    assert (source(reader.app, table="orders").capability().hidden is not None) is is_hidden


def test_13_17_row_security_that_comes_while_a_trigger_runs_is_told(
    reader: Role, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SteppedClock()
    seen = source(reader.app, table="orders", clock=clock)
    assert len(seen.fetch(None, 10)) == 2
    assert "may be missed" not in caplog.text
    reader.do(ON)
    clock.advance(61)
    assert seen.fetch(None, 10) == []
    assert "Rows of 'orders' may be missed: row level security of table orders" in caplog.text


def test_13_17_row_security_of_an_outbox_table_is_told_too(reader: Role, caplog: pytest.LogCaptureFixture) -> None:
    reader.do(ON)
    outbox = OutboxSource(
        OutboxDefinition("id", None, None, "tenant", None, None),
        table="orders",
        db_config=reader.app._config,
        engine_provider=reader.app._provider,
    )
    assert "row level security of table orders" in (outbox.capability().hidden or "")
    assert "Rows of 'orders' may be missed" in caplog.text


@pytest.mark.parametrize("table", ["holdfast_jobs", "holdfast_history", "holdfast_migrations"])
def test_13_17_row_security_of_our_tables_is_refused_and_not_waited_for(postgres_role: Role, table: str) -> None:
    postgres_role.grant_everything_but("", "")
    postgres_role.do(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    refusal = postgres_role.refused()
    assert refusal.startswith(f"Row level security of {table} in ")
    assert f"shows the role {postgres_role.name} some rows only" in refusal
    postgres_role.granted(refusal.partition("; or let")[0])


def test_13_17_row_security_of_the_outbox_stops_the_processor_alone(postgres_role: Role) -> None:
    postgres_role.grant_everything_but("", "")
    postgres_role.do("ALTER TABLE holdfast_outbox ENABLE ROW LEVEL SECURITY")
    postgres_role.app.processor("totals")(print)
    [fault] = postgres_role.app.faults().values()
    assert isinstance(fault, ConfigurationError)
    assert re.match("Row level security of holdfast_outbox in .* some rows only", str(fault))
